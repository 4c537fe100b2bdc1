"""All numbers of the views, for every shape of model, against the formulas of the papers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.extras.inspection.command import make_part
from nmt.extras.inspection.figure import (
    TIMES,
    Bars,
    Grid,
    Heatmap,
    Links,
    Node,
    Product,
    Step,
    Steps,
    Table,
    TextFigure,
    Tree,
    Words,
)
from nmt.extras.inspection.inspected import Inspected
from nmt.extras.inspection.options import InspectOptions
from nmt.extras.inspection.sublayers import KINDS
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN
from nmt.text.tokenizer import Tokenizer
from tests.extras.inspection.conftest import SHAPES
from tests.extras.inspection.plain import Watched
from tests.extras.inspection.test_parts import figures_of

SOURCE, TARGET = "Hund und Katze schläft", "die Katze läuft nicht"
SPECIAL = {BOS_ID: "BOS", EOS_ID: "EOS"}


@dataclass
class Case:
    """A model with one sentence pair, its formulas, and what they make of the pair."""

    folder: Path
    plain: Watched
    source: list[int]
    target: list[int]  # Without BOS and EOS.
    tokenizer: Tokenizer

    def inspected(self, **choice: Any) -> Inspected:
        return Inspected(self.folder, InspectOptions(**{"source": SOURCE, **choice}))

    def figures(self, view: str, **choice: Any) -> Any:
        return make_part(view, self.inspected(**choice))

    def log_probs(self, target: Sequence[int]) -> Tensor:
        """Log probabilities of all next tokens, where PAD, UNK and BOS are never chosen."""
        logits = self.plain.logits(self.source, [BOS_ID, *target])
        logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
        return logits.log_softmax(1)

    def labels(self, ids: Sequence[int]) -> list[str]:
        return [SPECIAL.get(index) or self.tokenizer.piece(index) for index in ids]


def formulas_of(inspected: Inspected, checkpoint: str = "best") -> Watched:
    model = inspected.load(checkpoint)
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    return Watched(model.config, weights)


@pytest.fixture(params=SHAPES)
def case(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Case:
    folder = folders[request.param]
    inspected = Inspected(folder)
    tokenizers = inspected.tokenizers
    first = [BOS_ID] if request.param == "pre-halves" else []
    source = [*first, *tokenizers.source.encode(SOURCE), EOS_ID]
    target = tokenizers.target.encode(TARGET)
    assert len(source) != len(target) + 1  # so that rows and columns cannot be confused
    plain = formulas_of(inspected)
    plain.logits(source, [BOS_ID, *target])
    return Case(folder, plain, source, target, tokenizers.target)


def without_none(values: Any) -> Any:
    """Replace empty cells, such as weights under the mask, by 0."""
    if isinstance(values, list | tuple):
        return [without_none(each) for each in values]
    return 0.0 if values is None else values


def close(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    both = (torch.as_tensor(without_none(x), dtype=torch.float64) for x in (found, expected))
    torch.testing.assert_close(*both, rtol=tolerance, atol=tolerance)


def numbers(text: object) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+\.\d+", str(text))]


def table_of(step: Step, title: str = "") -> Table:
    (table,) = [x for x in step.figures if isinstance(x, Table) and title in x.title]
    return table


def test_weights_of_attention_are_those_of_the_formulas(case: Case) -> None:
    part = case.figures("attention", target=TARGET)
    grids, layers = figures_of(part, Grid), figures_of(part, Steps)
    for kind, grid, steps in zip(KINDS, grids, layers, strict=True):
        expected = case.plain.attention(kind)
        close(grid.values, expected)
        for step, weights in zip(steps.steps, expected, strict=True):
            arcs, mean = step.figures
            assert isinstance(arcs, Links)
            assert isinstance(mean, Heatmap)
            close(list(arcs.weights.values()), weights)
            close(mean.values, weights.mean(0))
    (upper_half,) = figures_of(part, Heatmap)
    close(upper_half.values, case.plain.mean_cross())


def test_the_blocks_of_a_product_have_the_product_that_they_show(case: Case) -> None:
    """Of X W + b = Q the corner: four words, and the first four columns of the first head."""
    part = case.figures("score", target=TARGET, layer=1, head=(1,))
    products = {figure.title: figure.blocks for figure in figures_of(part, Product)}
    stream = case.plain.streams["encoder.0.self"]
    head = case.plain.of_heads["encoder.0.self_attention"][0]
    width = stream.before.shape[1]
    for letter in "QKV":
        x, weight, bias, result = products[f"{letter} of all heads"]
        assert x.shape == (len(case.source), width)
        assert (weight.label, weight.sign, bias.sign, result.sign) == (
            f"W^{letter}",
            TIMES,
            "+",
            "=",
        )
        assert weight.shape == (width, result.shape[1])
        assert len(result.values) == min(4, len(case.source))
        if case.plain.config.positions != "rotary" or letter == "V":
            expected = head.value if letter == "V" else head.query if letter == "Q" else head.key
            close(result.values, expected[:4, :4])
    query, key, product, weights = products["Head 1: weights"]
    close(query.values, head.query[:4, :4])
    close(key.values, head.key.T[:4, :4])
    close(product.values, head.products[:4, :4])
    close(weights.values, head.weights[:4, :4])
    *_, mixed = products["Head 1: weighted sum of the values"]
    close(mixed.values, head.mixed[:4, :4])


def test_the_words_and_the_size_of_the_stream_are_those_of_the_formulas(case: Case) -> None:
    part = case.figures("flow", target=TARGET)
    drawn = figures_of(part, Words)
    (bars,) = figures_of(part, Bars)
    sizes = list(bars.values["L2 norm"])
    assert bars.high == max(sizes)
    for side, words in zip(("encoder", "decoder"), drawn, strict=True):
        streams = [s for name, s in case.plain.streams.items() if name.startswith(side)]
        embedding, *stages = words.stages.values()
        close(embedding, streams[0].before[:, :4])
        for vectors, stream in zip(stages, streams, strict=True):
            close(vectors, stream.after[:, :4])
        assert len(words.words) == len(embedding)
        expected = [stream.after.norm(dim=1).mean() for stream in streams]
        close(sizes[: len(streams)], torch.stack(expected))
        del sizes[: len(streams)]
    assert not sizes


def test_the_arithmetic_of_a_head_is_that_of_the_formulas(case: Case) -> None:
    part = case.figures("score", target=TARGET, layer=1, head=(3,))
    name = "encoder.0.self_attention"
    head = case.plain.of_heads[name][2]
    width = head.query.shape[1]
    scores = head.products / math.sqrt(width)
    of_queries, of_tokens = figures_of(part, Steps)
    stream = case.plain.streams["encoder.0.self"]
    mixed = [each.mixed for each in case.plain.of_heads[name]]
    total = stream.before + stream.added
    stages = [*mixed, torch.cat(mixed, dim=1), stream.added, stream.before, total]
    if case.plain.config.norm_position == "post":
        stages.append(stream.after)
    for i, (step, of_token) in enumerate(zip(of_queries.steps, of_tokens.steps, strict=True)):
        *rows, last = table_of(step, "All keys").rows
        close([row[2] for row in rows], head.products[i])
        close([row[3] for row in rows], scores[i])
        close([row[4] for row in rows], head.weights[i])
        close([numbers(row[1]) for row in rows], head.key[:, :6])
        close([numbers(row[5]) for row in rows], head.value[:, :6])
        shares = head.weights[i].unsqueeze(1) * head.value
        close([numbers(row[6]) for row in rows], shares[:, :6])
        assert last[4] == pytest.approx(1)
        close(numbers(last[6]), head.mixed[i, :6])
        # q = ..., then the first six terms and the sum, then the division by the root.
        (text,) = [x for x in step.figures if isinstance(x, TextFigure)]
        terms = torch.stack([head.query[i, :6], head.key[0, :6]], dim=1).flatten().tolist()
        product, score = head.products[i, 0].item(), scores[i, 0].item()
        close(numbers(text.lines[0]), head.query[i, :6])
        close(numbers(text.lines[1]), [*terms, product])
        close(numbers(text.lines[2]), [product, product, math.sqrt(width), score])
        rows = list(table_of(of_token).rows)
        assert [row[1] for row in rows] == [stage.shape[1] for stage in stages]
        close([row[2] for row in rows], [stage[i].norm() for stage in stages])
        close([numbers(row[3]) for row in rows], torch.stack([x[i, :6] for x in stages]))


def test_sizes_of_matrices_are_their_letters(case: Case) -> None:
    """Queries come from the tokens that read, keys and values from those that are read.

    Packed, a matrix has no batch, and the tokens come first.
    """
    groups = case.plain.config.num_kv_heads or 4
    sizes = {"B": 1, "H": 4, "G": groups, "S": len(case.source), "T": len(case.target) + 1}
    sizes |= {"d_k": 8, "d_model": 32, "H d_k": 32}
    g = "H" if groups == 4 else "G"
    *tables, _ = figures_of(case.figures("shapes", target=TARGET), Table)
    for table, (t, s) in zip(tables, (("S", "S"), ("T", "T"), ("T", "S")), strict=True):
        letters = {
            "X": ("B", t, "d_model"),
            "Q": ("B", "H", t, "d_k"),
            "K": ("B", g, s, "d_k"),
            "V": ("B", g, s, "d_k"),
            "scores": ("B", "H", t, s),
            "A": ("B", "H", t, s),
            "Z": ("B", "H", t, "d_k"),
            "concat": ("B", t, "H d_k"),
            "output": ("B", t, "d_model"),
        }
        for name, _, shape, size, packed in table.rows:
            wanted = letters[str(name)]
            assert shape == f"({', '.join(wanted)})"
            assert size == str(tuple(sizes[letter] for letter in wanted))
            inner = [x for x in wanted[1:] if x not in (t, s)]
            is_packed = name not in ("scores", "A")
            rows = s if name in ("K", "V") else t
            expected = str((sizes[rows], *(sizes[x] for x in inner))) if is_packed else ""
            assert packed == expected


def test_norms_and_gradients_of_the_flow_are_those_of_the_formulas(case: Case) -> None:
    plain = case.plain
    for weight in plain.weights.values():
        weight.requires_grad_()
    gold = torch.tensor([*case.target, EOS_ID])
    loss = F.cross_entropy(plain.logits(case.source, [BOS_ID, *case.target]), gold)
    part = case.figures("flow", target=TARGET)
    for table, side in zip(figures_of(part, Table), ("encoder", "decoder"), strict=True):
        expected = []
        for name, stream in plain.streams.items():
            module = name if name.endswith("feed_forward") else f"{name}_attention"
            weights = [x for key, x in plain.weights.items() if key.startswith(f"{module}.")]
            if name.startswith(side):
                of_stream, *of_weights = torch.autograd.grad(
                    loss, [stream.after, *weights], retain_graph=True
                )
                before, added, after = (x.norm(dim=1).mean().item() for x in stream)
                of_all = torch.cat([x.flatten() for x in of_weights]).norm().item()
                row = [before, added, after, added / before, of_stream.norm().item(), of_all]
                expected.append(row)
        close([row[1:] for row in table.rows], expected)
    maps = iter(figures_of(part, Heatmap))
    for kind in KINDS:
        of_kind = plain.attention(kind).detach()
        terms = -of_kind * of_kind.clamp(min=1e-30).log()
        close(next(maps).values, terms.sum(-1).mean(-1))
        # Row i of T rows corresponds to column i (S - 1) / (T - 1) of S columns.
        num_rows, num_columns = of_kind.shape[2:]
        slope = (num_columns - 1) / (num_rows - 1)
        distances = [[abs(j - i * slope) for j in range(num_columns)] for i in range(num_rows)]
        mean = (of_kind * torch.tensor(distances)).sum(-1).mean(-1)
        close(next(maps).values, mean)
    assert next(maps, None) is None


def tokens_of(tree: Tree, ids: dict[str, int]) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Yield each node after the root with the tokens from the root to the node."""
    paths: list[tuple[int, ...]] = [()]
    for node in tree.nodes[1:]:
        assert node.parent is not None
        paths.append((*paths[node.parent], ids[node.label]))
        yield node, paths[-1]


def test_scores_of_the_trace_are_those_of_the_formulas(case: Case) -> None:
    """score = log P / length^0.6 + 0.4 sum of log(min(attention to a source token, 1)).

    The length counts EOS. The sum is over source tokens without BOS and EOS (Wu et al. 2016).
    """
    options = ("decoding.coverage_penalty=0.4", "decoding.length_penalty=0.6")
    part = case.figures("trace", set_=options, beam_size=2)
    ids = {label: x for x, label in enumerate(case.labels(range(case.tokenizer.vocab_size)))}
    words = [place for place, x in enumerate(case.source) if x not in (BOS_ID, EOS_ID)]

    @cache
    def read(tokens: tuple[int, ...]) -> tuple[Tensor, float]:
        """Log probabilities of the next token after each prefix, and the coverage."""
        log_probs = case.log_probs(tokens)
        attention = case.plain.mean_cross().sum(0)[words]
        return log_probs, 0.4 * attention.clamp(max=1).log().sum().item()

    def log_prob(tokens: tuple[int, ...]) -> float:
        rows, _ = read(tokens[:-1])
        return sum(rows[place, token].item() for place, token in enumerate(tokens))

    tree = figures_of(part, Tree)[0]
    rows = []
    for node, tokens in tokens_of(tree, ids):
        total = log_prob(tokens)
        if node.label == "EOS":
            penalty = len(tokens) ** 0.6
            _, coverage = read(tokens[:-1])
            score = total / penalty + coverage
            text = case.tokenizer.decode(tokens[:-1])
            rows.append([text, len(tokens), total, penalty, coverage, score])
            assert numbers(node.detail) == pytest.approx([score], abs=2e-4)
        else:
            assert numbers(node.detail) == pytest.approx([total], abs=2e-4)
    rows.sort(key=lambda row: -row[5])
    finished = figures_of(part, Table)[0]
    assert [row[0] for row in finished.rows] == [row[0] for row in rows]
    close([row[1:] for row in finished.rows], [row[1:] for row in rows], 1e-3)
    assert {row[4] for row in rows} != {0.0}
    for step in figures_of(part, Steps)[0].steps:
        for name, shown_total, *likely in table_of(step).rows:
            tokens = tuple(ids[label] for label in str(name).split(" ") if label != "BOS")
            assert shown_total == pytest.approx(log_prob(tokens) if tokens else 0, abs=1e-3)
            shares, best = read(tokens)[0][-1].exp().topk(len(likely))
            shown = [str(cell).strip("\u2068\u2069").rpartition(" ") for cell in likely]
            assert [label for label, _, _ in shown] == case.labels(best.tolist())
            assert [float(x) for _, _, x in shown] == pytest.approx(shares.tolist(), abs=1e-4)


@pytest.mark.parametrize("case", ["pre-halves"], indirect=True)
def test_words_of_every_step_are_recomputed_with_and_without_the_mask(case: Case) -> None:
    part = case.figures("trace", unmasked=True)
    num_steps = len(figures_of(part, Steps)[0].steps)
    both = []
    for table, is_causal in zip(figures_of(part, Table)[-2:], (True, False), strict=True):
        case.plain.is_causal = is_causal
        words: list[int] = []
        rows = []
        while len(words) < num_steps + 5 and EOS_ID not in words[-1:]:
            words = case.log_probs(words).argmax(1).tolist()
            rows.append(case.labels(words))
        assert [row[1:] for row in table.rows] == rows
        both.append(rows)
    assert both[0] != both[1]


def test_losses_of_each_checkpoint_are_those_of_the_formulas(case: Case) -> None:
    """The target is 0.9 for the right token, and 0.1 spread over the vocabulary."""
    inspected = case.inspected(target=TARGET, checkpoint=("untrained", "best"))
    part = make_part("distributions", inspected)
    gold = [*case.target, EOS_ID]
    size = case.tokenizer.vocab_size
    wanted = 0.9 * F.one_hot(torch.tensor(gold), size).double() + 0.1 / size
    entropy = -(wanted * wanted.log()).sum(1)
    chosen = []
    for name, table in zip(("untrained", "best"), figures_of(part, Table), strict=True):
        logits = formulas_of(inspected, name).logits(case.source, [BOS_ID, *case.target])
        cross_entropy = -(wanted * logits.log_softmax(1)).sum(1)
        logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
        shares = logits.softmax(1)
        chosen.append(shares)
        right = shares.gather(1, torch.tensor(gold).unsqueeze(1))[:, 0]
        columns = [right.log(), cross_entropy, cross_entropy - entropy]
        *rows, last = table.rows
        close([row[1:] for row in rows], torch.stack([right, *columns], dim=1))
        close(last[2:], [column.sum() for column in columns])
        assert numbers(table.note) == pytest.approx([math.exp(-right.log().mean())], rel=0.01)
    ids = {label: index for index, label in enumerate(case.labels(range(size)))}
    (steps,) = figures_of(part, Steps)
    for place, step in enumerate(steps.steps):
        (bars,) = step.figures
        assert isinstance(bars, Bars)
        drawn = [ids[label] for label in bars.labels]
        likely = {
            gold[place],
            *(x for shares in chosen for x in shares[place].topk(6).indices.tolist()),
        }
        assert set(drawn) == likely
        series = [wanted[place], *(shares[place] for shares in chosen)]
        close(list(bars.values.values()), torch.stack(series)[:, drawn])
    (text,) = figures_of(part, TextFigure)
    figures = [numbers(line)[-1] for line in text.lines]
    expected = [0.9 + 0.1 / size, 0.1 / size, entropy[0].item()]
    assert figures == pytest.approx(expected, abs=1e-4)


def test_roles_and_losses_of_heads_are_those_of_the_formulas(folders: dict[str, Path]) -> None:
    """The loss of a head is what the references lose, per token and with EOS, if it is silent."""
    lines = {"de": ["Hund läuft", "Katze"], "en": ["Katze und Hund", "Hund schläft"]}
    for side, texts in lines.items():
        Path(f"a.{side}").write_text("\n".join(texts) + "\n", encoding="utf-8")
    inspected = Inspected(folders["pre-halves"])
    plain = formulas_of(inspected)
    encode = inspected.tokenizers.source.encode
    pairs = [
        ([BOS_ID, *encode(a), EOS_ID], encode(b))
        for a, b in zip(lines["de"], lines["en"], strict=True)
    ]
    num_tokens = sum(len(target) + 1 for _, target in pairs)

    def log_prob() -> float:
        total = 0.0
        for source, target in pairs:
            logits = plain.logits(source, [BOS_ID, *target])
            logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
            gold = torch.tensor([*target, EOS_ID])
            total -= F.cross_entropy(logits, gold, reduction="sum").item()
        return total / num_tokens

    def looks(kind: str) -> Tensor:
        """The sums of the four shares over the rows of the last pass. (layers, H, 4)."""
        weights = plain.attention(kind)
        layers, heads, num_rows, num_columns = weights.shape
        slope = (num_columns - 1) / (num_rows - 1)
        sums = torch.zeros(layers, heads, 4, dtype=torch.float64)
        for i in range(num_rows):
            for j in range(num_columns):
                end = 0 if kind == "decoder" else num_columns - 1
                is_near = abs(j - i * slope) <= 1
                counted = torch.tensor([j == i - 1, j == i, j == end, is_near])
                sums += weights[:, :, i, j, None] * counted
        return sums

    whole = log_prob()
    shares: dict[str, Tensor] = {kind: torch.zeros(()) for kind in KINDS}
    for source, target in pairs:
        plain.logits(source, [BOS_ID, *target])
        for kind in KINDS:
            num_rows = sum(map(len, (x for x, _ in pairs))) if kind == "encoder" else num_tokens
            shares[kind] = shares[kind] + looks(kind) / num_rows
    tables = figures_of(make_part("heads", inspected), Table)
    roles = set()
    for kind, table in zip(KINDS, tables, strict=True):
        side, name = ("decoder", "cross") if kind == "cross" else (kind, "self")
        rows = iter(table.rows)
        for layer, of_layer in enumerate(shares[kind].tolist()):
            for head, (previous, itself, end, near) in enumerate(of_layer):
                plain.silent = (f"{side}.{layer}.{name}_attention", head)
                loss = whole - log_prob()
                named = {"previous token": previous, "itself": itself, "end": end}
                if kind == "cross":
                    named = {"previous token": 0, "itself": 0, "end": end}
                role = max(named, key=named.__getitem__)
                if named[role] < 0.5:
                    role = "diagonal" if near >= 0.5 else ""
                roles.add(role)
                row = next(rows)
                assert str(row[0]).startswith(f"layer {layer + 1}")
                assert str(row[0]).endswith(f"head {head + 1}")
                close(row[1:5], [*named.values(), near])
                assert row[5] == role
                assert row[6] == pytest.approx(loss, abs=1e-4)
        assert next(rows, None) is None
    assert len(roles) > 2  # otherwise the table would not show whether roles are right
