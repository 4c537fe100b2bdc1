"""The Transformers of five texts, each worked out plainly from its text's formulas.

Each takes a model for its numbers, source ids and the ids that the decoder reads, and returns the
logits. Nothing is shared but `letters`, which gives the parameters the letters of the texts: a row
vector times a matrix. What a text leaves open is as in Vaswani et al. (2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from nmt.model.transformer import Transformer

_FUSED = {"query_key_value": "QKV", "key_value": "KV", "query": "Q"}


def letters(model: Transformer) -> dict[str, Tensor]:
    """Parameters with queries, keys and values apart; matrices of layers are transposed: x W."""
    result: dict[str, Tensor] = {}
    for name, parameter in model.state_dict().items():
        if not name.startswith(("encoder.", "decoder.")):
            result[name] = parameter
            continue
        layer, part, last = name.rsplit(".", 2)
        blocks = parameter.chunk(len(_FUSED.get(part, "1")))
        for letter, block in zip(_FUSED.get(part, [part]), blocks, strict=True):
            result[f"{layer}.{letter}.{last}"] = block.T if block.ndim == 2 else block
    return result


def one_page(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    """Transformer Explained in One Single Page: one-hot rows times matrices, one for each head."""
    w, h = letters(model), model.config.num_heads
    n_vol, d_model = w["source_vectors"].shape
    d_k = d_model // h

    def pe(x: Tensor) -> Tensor:
        rows = [
            [
                math.cos(i / 10000 ** ((j - 1) / d_model))
                if j % 2
                else math.sin(i / 10000 ** (j / d_model))
                for j in range(d_model)
            ]
            for i in range(len(x))
        ]
        return torch.tensor(rows)

    def mask(scores: Tensor) -> Tensor:
        i, j = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
        return torch.where(i >= j, scores, -torch.inf)

    def multi_head(name: str, x: Tensor, y: Tensor, *, is_masked: bool = False) -> Tensor:
        heads = []
        for j in range(h):
            of_head = slice(j * d_k, (j + 1) * d_k)
            wq, wk, wv = (w[f"{name}.{letter}.weight"][:, of_head] for letter in "QKV")
            scores = (x @ wq) @ (y @ wk).T / math.sqrt(d_k)
            heads.append((mask(scores) if is_masked else scores).softmax(dim=1) @ (y @ wv))
        return torch.cat(heads, dim=1) @ w[f"{name}.output.weight"]

    def ffn(name: str, x: Tensor) -> Tensor:
        inner = x @ w[f"{name}.inner.weight"] + w[f"{name}.inner.bias"]
        return inner.clamp(min=0) @ w[f"{name}.outer.weight"] + w[f"{name}.outer.bias"]

    def layer_norm(name: str, x: Tensor) -> Tensor:
        mean, variance = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * w[f"{name}.norm.weight"]

    one_hot = torch.eye(n_vol)
    z = math.sqrt(d_model) * one_hot[source] @ w["source_vectors"]
    z = z + pe(z)
    for i in range(model.config.encoder_layers):
        layer = f"encoder.{i}"
        z = layer_norm(f"{layer}.self_residual", z + multi_head(f"{layer}.self_attention", z, z))
        z = layer_norm(f"{layer}.feed_forward_residual", z + ffn(f"{layer}.feed_forward", z))
    y_0 = torch.zeros(1, n_vol)
    shifted = torch.cat((y_0, one_hot[target[1:]]))
    y = math.sqrt(d_model) * shifted @ w["source_vectors"]
    y = y + pe(y)
    for i in range(model.config.decoder_layers):
        layer = f"decoder.{i}"
        mixed = multi_head(f"{layer}.self_attention", y, y, is_masked=True)
        y = layer_norm(f"{layer}.self_residual", y + mixed)
        y = layer_norm(f"{layer}.cross_residual", y + multi_head(f"{layer}.cross_attention", y, z))
        y = layer_norm(f"{layer}.feed_forward_residual", y + ffn(f"{layer}.feed_forward", y))
    return y @ w["output_vectors"].T + w["output_bias"]


def from_scratch(model: Transformer, sources: list[list[int]], targets: list[list[int]]) -> Tensor:
    """Yet another explanation and implementation: padded batches, heads in one tensor, pre-norm."""
    w, h, pad = letters(model), model.config.num_heads, 0
    d_e = model.config.model_dim

    def padded(rows: list[list[int]]) -> Tensor:
        return torch.tensor([row + [pad] * (max(map(len, rows)) - len(row)) for row in rows])

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        return torch.layer_norm(x, (d_e,), w[f"{name}.weight"], w[f"{name}.bias"])

    def attention(name: str, x: Tensor, y: Tensor, is_hidden: Tensor) -> Tensor:
        shape = d_e, h, d_e // h
        q, k, v = (
            torch.einsum("bsd,dhk->bhsk", values, w[f"{name}.{letter}.weight"].reshape(shape))
            + w[f"{name}.{letter}.bias"].view(1, h, 1, -1)
            for letter, values in zip("QKV", (x, y, y), strict=True)
        )
        s = torch.einsum("bhik,bhjk->bhij", q, k) / math.sqrt(d_e // h)
        s = s.masked_fill(is_hidden, -torch.inf).softmax(-1)
        return linear(f"{name}.output", torch.einsum("bhij,bhjk->bihk", s, v).flatten(2))

    def feed_forward(name: str, x: Tensor) -> Tensor:
        return linear(f"{name}.outer", linear(f"{name}.inner", x).relu())

    def embed(side: str, ids: Tensor) -> Tensor:
        return w[f"{side}_vectors"][ids] + w[f"{side}_embedding.positions.weight"][: ids.shape[1]]

    x_input, y_input = padded(sources), padded(targets)
    x_mask, y_mask = (ids.eq(pad)[:, None, None, :] for ids in (x_input, y_input))
    future = torch.ones(y_input.shape[1], y_input.shape[1]).triu(1) > 0
    x = embed("source", x_input)
    for i in range(model.config.encoder_layers):
        name = f"encoder.{i}"
        normed = norm(f"{name}.self_residual.norm", x)
        x = x + attention(f"{name}.self_attention", normed, normed, x_mask)
        x = x + feed_forward(f"{name}.feed_forward", norm(f"{name}.feed_forward_residual.norm", x))
    memory = norm("encoder_norm", x)
    y = embed("target", y_input)
    for i in range(model.config.decoder_layers):
        name = f"decoder.{i}"
        normed = norm(f"{name}.self_residual.norm", y)
        y = y + attention(f"{name}.self_attention", normed, normed, y_mask | future)
        normed = norm(f"{name}.cross_residual.norm", y)
        y = y + attention(f"{name}.cross_attention", normed, memory, x_mask)
        y = y + feed_forward(f"{name}.feed_forward", norm(f"{name}.feed_forward_residual.norm", y))
    logits = norm("decoder_norm", y) @ w["output_vectors"].T + w["output_bias"]
    return logits[y_input != pad]


def annotated(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    """The Annotated The Annotated Transformer: positions from 1, and either order of the norm."""
    w, h, d = letters(model), model.config.num_heads, model.config.model_dim
    is_pre = model.config.norm_position == "pre"

    def embed(table: Tensor, ids: list[int]) -> Tensor:
        values = table[ids] * d**0.5
        for place in range(len(ids)):
            pos = place + 1  # "the second word's PE should be sin(2 / ...)"
            for i in range(d // 2):
                values[place, 2 * i] += math.sin(pos / 10000 ** (2 * i / d))
                values[place, 2 * i + 1] += math.cos(pos / 10000 ** (2 * i / d))
        return values

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return centred * scale * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(
        name: str, x: Tensor, y: Tensor | None = None, blocked: Tensor | None = None
    ) -> Tensor:
        outputs, y = list[Tensor](), x if y is None else y
        for head in range(h):
            q, k, v = (
                values @ w[f"{name}.{letter}.weight"].chunk(h, dim=1)[head]
                for letter, values in zip("QKV", (x, y, y), strict=True)
            )
            scores = q @ k.T / k.shape[1] ** 0.5
            if blocked is not None:
                scores[blocked] = -torch.inf
            outputs.append(scores.softmax(-1) @ v)
        return torch.hstack(outputs) @ w[f"{name}.output.weight"]

    def network(name: str, x: Tensor) -> Tensor:
        inner = torch.addmm(w[f"{name}.inner.bias"], x, w[f"{name}.inner.weight"]).relu()
        return torch.addmm(w[f"{name}.outer.bias"], inner, w[f"{name}.outer.weight"])

    def stack(side: str, x: Tensor, layers: int, memory: Tensor | None = None) -> Tensor:
        future = torch.ones(len(x), len(x)).tril() == 0
        for i in range(layers):
            name = f"{side}.{i}"
            blocked = None if memory is None else future
            first = partial(attention, f"{name}.self_attention", blocked=blocked)
            sublayers: list[tuple[str, Callable[[Tensor], Tensor]]] = [("self", first)]
            if memory is not None:
                sublayers.append(("cross", partial(attention, f"{name}.cross_attention", y=memory)))
            sublayers.append(("feed_forward", partial(network, f"{name}.feed_forward")))
            for kind, sublayer in sublayers:
                place = f"{name}.{kind}_residual.norm"
                x = x + sublayer(norm(place, x)) if is_pre else norm(place, x + sublayer(x))
        return norm(f"{side}_norm", x) if is_pre else x

    table = w["source_vectors"]
    memory = stack("encoder", embed(table, source), model.config.encoder_layers)
    return stack("decoder", embed(table, target), model.config.decoder_layers, memory) @ table.T


def illustrated(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    """The Illustrated Transformer: word by word in six steps, sines and cosines in two halves."""
    w, h, d_m = letters(model), model.config.num_heads, model.config.model_dim

    def encoding(position: int) -> Tensor:
        rates = [10000 ** (-i / (d_m // 2 - 1)) for i in range(d_m // 2)]
        angles = [position * rate for rate in rates]
        return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])

    def embed(ids: list[int]) -> list[Tensor]:
        return [w["source_vectors"][word] * d_m**0.5 + encoding(i) for i, word in enumerate(ids)]

    def project(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(name: str, word: Tensor, others: list[Tensor]) -> Tensor:
        d_a, parts = d_m // h, []
        for head in range(h):
            of_head = slice(head * d_a, (head + 1) * d_a)
            query = project(f"{name}.Q", word)[of_head]  # 1: three vectors
            keys = [project(f"{name}.K", other)[of_head] for other in others]
            values = [project(f"{name}.V", other)[of_head] for other in others]
            scores = [float(query.dot(key)) / math.sqrt(d_a) for key in keys]  # 2: score, 3: divide
            total = sum(map(math.exp, scores))  # 4: softmax
            z = torch.zeros(d_a)
            for score, value in zip(scores, values, strict=True):
                z += math.exp(score) / total * value  # 5: weigh, 6: sum
            parts.append(z)
        return project(f"{name}.output", torch.cat(parts))

    def add_and_normalize(name: str, x: Tensor, z: Tensor) -> Tensor:
        both = x + z
        sigma = ((both - both.mean()) ** 2).mean().add(1e-5).sqrt()
        return w[f"{name}.norm.weight"] * (both - both.mean()) / sigma + w[f"{name}.norm.bias"]

    def feed_forward(name: str, x: Tensor) -> Tensor:
        x_inner = project(f"{name}.feed_forward.inner", x)
        z = project(f"{name}.feed_forward.outer", torch.maximum(x_inner, torch.tensor(0.0)))
        return add_and_normalize(f"{name}.feed_forward_residual", x, z)

    words = embed(source)
    for i in range(model.config.encoder_layers):
        name = f"encoder.{i}"
        read = [attention(f"{name}.self_attention", word, words) for word in words]
        pairs = zip(words, read, strict=True)
        words = [add_and_normalize(f"{name}.self_residual", x, z) for x, z in pairs]
        words = [feed_forward(name, word) for word in words]
    outputs = embed(target)
    for i in range(model.config.decoder_layers):
        name = f"decoder.{i}"
        read = [
            attention(f"{name}.self_attention", word, outputs[: t + 1])  # no later word
            for t, word in enumerate(outputs)
        ]
        pairs = zip(outputs, read, strict=True)
        outputs = [add_and_normalize(f"{name}.self_residual", x, z) for x, z in pairs]
        read = [attention(f"{name}.cross_attention", word, words) for word in outputs]
        pairs = zip(outputs, read, strict=True)
        outputs = [add_and_normalize(f"{name}.cross_residual", x, z) for x, z in pairs]
        outputs = [feed_forward(name, word) for word in outputs]
    return torch.stack([w["source_vectors"] @ output for output in outputs])


def notes(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    """Transformer Notes: column vectors, and norms that divide by sigma + epsilon."""
    w, h, d_model = letters(model), model.config.num_heads, model.config.model_dim
    d_k = d_model // h

    def embed(ids: list[int]) -> Tensor:  # (d_model, n)
        columns = []
        for pos, word in enumerate(ids):
            i = torch.arange(d_model // 2)
            angle = pos / 10000 ** (2 * i / d_model)
            pe = torch.stack((angle.sin(), angle.cos())).T.flatten()
            columns.append(math.sqrt(d_model) * w["source_vectors"][word] + pe)
        return torch.stack(columns, dim=1)

    def head(name: str, number: int, x: Tensor, y: Tensor, *, is_causal: bool) -> Tensor:
        rows = slice(number * d_k, (number + 1) * d_k)
        wq, wk, wv = (w[f"{name}.{letter}.weight"].T[rows] for letter in "QKV")
        z = torch.zeros(d_k, x.shape[1])
        for i in range(x.shape[1]):
            q_i = wq @ x[:, i]
            last = i + 1 if is_causal else y.shape[1]
            e_i = torch.stack([q_i @ (wk @ y[:, j]) for j in range(last)])
            s_i = e_i / math.sqrt(d_k)
            alpha_i = s_i.exp() / s_i.exp().sum()
            for j in range(last):
                z[:, i] += alpha_i[j] * (wv @ y[:, j])
        return z

    def attention(name: str, x: Tensor, y: Tensor, *, is_causal: bool = False) -> Tensor:
        z = torch.cat([head(name, number, x, y, is_causal=is_causal) for number in range(h)])
        return w[f"{name}.output.weight"].T @ z

    def ffn(name: str, x: Tensor) -> Tensor:
        w1, w2 = (w[f"{name}.feed_forward.{part}.weight"].T for part in ("inner", "outer"))
        b1, b2 = (w[f"{name}.feed_forward.{part}.bias"][:, None] for part in ("inner", "outer"))
        return w2 @ torch.relu(w1 @ x + b1) + b2

    def layer_norm(name: str, a: Tensor) -> Tensor:
        mu = a.sum(0) / d_model
        sigma = (((a - mu) ** 2).sum(0) / d_model).sqrt()
        return (a - mu) / (sigma + 1e-5) * w[f"{name}_residual.norm.weight"][:, None]

    z = embed(source)
    for layer in range(model.config.encoder_layers):
        name = f"encoder.{layer}"
        z = layer_norm(f"{name}.self", z + attention(f"{name}.self_attention", z, z))
        z = layer_norm(f"{name}.feed_forward", z + ffn(name, z))
    x = embed(target)
    for layer in range(model.config.decoder_layers):
        name = f"decoder.{layer}"
        mixed = attention(f"{name}.self_attention", x, x, is_causal=True)
        x = layer_norm(f"{name}.self", x + mixed)
        x = layer_norm(f"{name}.cross", x + attention(f"{name}.cross_attention", x, z))
        x = layer_norm(f"{name}.feed_forward", x + ffn(name, x))
    return (w["source_vectors"] @ x).T
