"""The encoder-decoder Transformer (Vaswani et al. 2017), for training and step-by-step decoding.

Shapes: B sentences, S source and T target positions, N packed target and M packed source tokens, V
vocabulary, D model width. In decoding, K beams and R = B * K rows. For caches, see
`nmt.model.decoder_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.model.attention import Padding, look_for_flash, to_padded
from nmt.model.decoder_state import CrossCache, DecoderState, SelfCache, StepInputs
from nmt.model.layers import (
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    make_norm,
)
from nmt.model.positions import Embedding
from nmt.packed import Packed

# Parameters with a row for each entry of a vocabulary -> the side of the vocabulary. Which of them
# exist depends on the configuration.
VOCABULARY_SIDES: Mapping[str, int] = {
    "source_vectors": 0,
    "target_vectors": 1,
    "output_vectors": 1,
    "output_bias": 1,
}
_Forward = Callable[..., Tensor]  # The `forward` of a layer, or a function that calls it.


class DecodeToken(Protocol):
    """A faster replacement of `Transformer.decode_token`."""

    def with_room(self, state: DecoderState) -> DecoderState:
        """Return a state with space for one more position, in memory that this object prefers."""
        ...

    def __call__(self, inputs: StepInputs, /) -> Tensor:
        """Return hidden states (R, D)."""
        ...


class Transformer(nn.Module):
    """Encoder, decoder and output projection.

    Training calls `forward`, then computes the loss with `output_weight`. Decoding calls `start`
    once, then `decode_step`, `logits` and `DecoderState.select` for each position.

    Args:
        config: The model section.
        source_vocab_size: Size of the source vocabulary.
        target_vocab_size: Size V of the target vocabulary.
    """

    def __init__(self, config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self._shares_inputs = config.shares_inputs
        self._ties_output = config.ties_output
        # Whether to store only the inputs of each layer, and recompute the rest in the backward
        # pass.
        self.recompute = False
        self._compiler: Callable[[_Forward], _Forward] | None = None
        self._compiled = dict[_Forward, _Forward]()  # Compiled functions by original.
        self.source_vectors = _vectors(source_vocab_size, config.model_dim)
        # Tied embeddings are one parameter under the first name, so they are stored once.
        if not config.shares_inputs:
            self.target_vectors = _vectors(target_vocab_size, config.decoder_dim)
        if not config.ties_output:
            self.output_vectors = _vectors(target_vocab_size, config.decoder_dim)
        self.output_bias = None
        if config.output_bias:
            self.output_bias = nn.Parameter(torch.zeros(target_vocab_size))
        self.source_embedding = Embedding(config, config.model_dim)
        # Marian shifts the embedded target by one position instead of using BOS: the embedding of
        # the first position is 0.
        zero_start = config.decoder_start == "zero"
        self.target_embedding = Embedding(config, config.decoder_dim, zero_start=zero_start)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm = _final_norm(config, config.model_dim)
        self.decoder_norm = _final_norm(config, config.decoder_dim)
        if config.embedding_init == "xavier-uniform":
            # The layers of encoder and decoder are initialized like this anyway.
            for name, parameter in self.named_parameters():
                if parameter.ndim > 1 and not name.startswith(("encoder.", "decoder.")):
                    nn.init.xavier_uniform_(parameter)

    @property
    def target_embeddings(self) -> Tensor:
        """Embedding matrix of the target: (V, D)."""
        if self._shares_inputs:
            return self.source_vectors
        return self.target_vectors

    @property
    def output_weight(self) -> Tensor:
        """Output projection: (V, D)."""
        if self._ties_output:
            return self.target_embeddings
        return self.output_vectors

    @property
    def _aligning_layers(self) -> set[nn.Module]:
        """The decoder layers whose cross-attention is used for word alignment: the upper half.

        Upper layers align best. Garg et al. (2019), Jointly Learning to Align and Translate, found
        the fifth of six layers. Attention is taken from the step that predicts a token. Chen et al.
        (2020) take the step that reads it, which was worse for three decoder layers on Multi30k.
        """
        upper = len(self.decoder) // 2
        return set(self.decoder[upper:])

    def compile_layers(self, compiled: Callable[[_Forward], _Forward] | None) -> None:
        """Compile the layers with ``compiled``; None undoes it.

        Each type of layer is compiled once. Only `forward` uses compiled layers, in training and
        for the validation loss. Names of parameters do not change.

        Args:
            compiled: Compiles a function, for example `torch.compile`.
        """
        self._compiler = compiled
        self._compiled = {}

    def compiled(self, function: _Forward) -> _Forward:
        """Return ``function``, compiled if the layers are compiled. For use in loss functions."""
        if self._compiler is None:
            return function
        if function not in self._compiled:
            self._compiled[function] = self._compiler(function)
        return self._compiled[function]

    def _run(self, layer: nn.Module, *inputs: Tensor | Packed) -> Tensor:
        """Call ``layer``, compiled and with recomputation if these are set."""
        # `__call__`, not `forward`, so that hooks run (`nmt inspect` uses them).
        run: _Forward = nn.Module.__call__
        if self._compiler is not None:
            run = self.compiled(type(layer).forward)
        if self.recompute and self.training:
            return checkpoint(run, layer, *inputs, use_reentrant=False)
        return run(layer, *inputs)

    def encode(self, source: Packed, *, run: _Forward = nn.Module.__call__) -> Tensor:
        """Encode source sentences: (M, D).

        Args:
            source: Source ids, each sentence ending in EOS.
            run: Calls a layer with its inputs.
        """
        # Searching for a kernel imports a compiler, which must not happen inside compiled layers.
        look_for_flash(source)
        table = self.source_embedding.position_table(source.max_length)
        values = self.source_embedding(source.ids, source.positions, self.source_vectors, table)
        for layer in self.encoder:
            values = run(layer, values, source)
        return self.encoder_norm(values)

    def decode(
        self, target: Packed, memory: Tensor, source: Packed, *, run: _Forward = nn.Module.__call__
    ) -> Tensor:
        """Run the decoder over whole target sentences: (N, D).

        Args:
            target: BOS and target ids.
            memory: The encoder's output. (M, D).
            source: Sentences of ``memory``.
            run: Calls a layer with its inputs.
        """
        table = self.target_embedding.position_table(target.max_length)
        values = self.target_embedding(target.ids, target.positions, self.target_embeddings, table)
        for layer in self.decoder:
            values = run(layer, values, memory, target, source)
        return self.decoder_norm(values)

    @override
    def forward(self, source: Packed, target: Packed) -> Tensor:
        """Return hidden states of the decoder, from which the next tokens are predicted.

        Args:
            source: Source ids, each sentence ending in EOS.
            target: BOS and target ids.

        Returns:
            (N, D), without the filler of ``target``.
        """
        if self._compiler is not None:
            for packed in (source, target):
                Padding.of(packed)  # cached here, because compiled layers must not do it
        memory = self.encode(source, run=self._run)
        hidden = self.decode(target, memory, source, run=self._run)
        if target.num_filler:
            hidden = hidden[: -target.num_filler]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Project hidden states to logits: (..., D) -> (..., V)."""
        return _project(hidden, self.output_weight, self.output_bias)

    def narrow_output(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function for the logits of ``tokens`` (V',) only: (..., D) -> (..., V')."""
        weight = self.output_weight.index_select(0, tokens)
        bias = None
        if self.output_bias is not None:
            bias = self.output_bias.index_select(0, tokens)
        return lambda hidden: _project(hidden, weight, bias)

    @torch.inference_mode()
    def align(self, source: Packed, target: Packed) -> Tensor:
        """Return the attention to each source token when each target token is predicted.

        Always runs in evaluation mode.

        Args:
            source: Source ids, each sentence ending in EOS.
            target: BOS and target ids.

        Returns:
            (B, T, S), float32, averaged over the heads of the upper half of the layers. Row t
            belongs to the prediction of token t + 1 of ``target``. Rows sum to 1. Rows of padding
            have no meaning.
        """
        weights: list[Tensor] = []
        aligning = self._aligning_layers

        def run(layer: nn.Module, *inputs: Tensor | Packed) -> Tensor:
            if layer in aligning:
                return layer(*inputs, weights=weights)
            return layer(*inputs)

        # The same layers as in decoding, over the whole target at once.
        with evaluating(self):
            self.decode(target, self.encode(source), source, run=run)
        return torch.stack(weights).mean(0)

    @torch.inference_mode()
    def start(
        self, source: Packed, *, with_coverage: bool = False, allowed: Tensor | None = None
    ) -> DecoderState:
        """Encode a batch of sources, and return a state with one beam per sentence.

        Args:
            source: Source ids, each sentence ending in EOS.
            with_coverage: Whether to sum the attention to each source token over all steps.
            allowed: See `DecoderState.allowed`.
        """
        # Keys and values of the source are the same in every step, so they are projected once.
        memory = self.encode(source)
        attentions = [m for m in self.decoder.modules() if isinstance(m, CrossAttention)]
        num_groups = attentions[0].num_kv_heads
        width = source.max_length
        # Keys and values of each layer in turn. (B * G, S, E) each.
        padded = []
        for attention in attentions:
            key, value = attention.project_cross_kv(memory)
            padded += [to_padded(key, source), to_padded(value, source)]
        shape = (len(attentions), 2, len(source), num_groups, width, -1)
        cross_kv = torch.stack(padded).view(shape)
        mask = memory.new_zeros(len(source), width)
        mask.masked_fill_(~source.mask(), -torch.inf)
        coverage = None
        if with_coverage:
            coverage = torch.zeros(mask.shape, device=mask.device)
        return DecoderState(
            cross_kv=cross_kv,
            source_mask=mask[:, None, None, :].repeat(1, num_groups, 1, 1),
            self_kv=cross_kv[..., :0, :],  # no target positions yet
            num_beams=1,
            length=0,
            coverage=coverage,
            allowed=allowed,
        )

    @torch.inference_mode()
    def decode_step(
        self, state: DecoderState, tokens: Tensor, run: DecodeToken | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Append one token to each beam.

        Args:
            state: State of the beams so far. Its caches are reused.
            tokens: The new token of each beam. (B, K), int64.
            run: A replacement of `decode_token`. Not used if the state has a coverage.

        Returns:
            Hidden states (B, K, D), and the next state.
        """
        weights = None  # Attention weights of each aligning layer, for the coverage.
        if state.coverage is not None:
            weights = list[Tensor]()
            run = None  # recorded steps cannot return attention weights
        state = state.with_room() if run is None else run.with_room(state)
        new_length = state.length + 1
        ids = tokens.flatten()
        rows = state.rows
        # Caches may be in a different order than beams (see `reorder_cache`). Move tokens to the
        # rows of their caches, and move results back.
        if rows is not None:
            ids = torch.empty_like(ids).index_copy_(0, rows, ids)
        inputs = StepInputs(
            ids=ids,
            position=tokens.new_full((1,), state.length),
            table=self.target_embedding.position_table(new_length),
            source_mask=state.source_mask,
            cross_kv=state.cross_kv,
            self_kv=state.self_kv.narrow(4, 0, new_length),
        )
        hidden = run(inputs) if run else self.decode_token(inputs, weights=weights)
        coverage = state.coverage
        if weights is not None and coverage is not None:
            mean_weights = torch.stack(weights).mean(0)  # (B, K, S)
            mean_weights = mean_weights.flatten(0, 1)
            if rows is not None:
                mean_weights = mean_weights.index_select(0, rows)
            coverage = coverage + mean_weights
        if rows is not None:
            hidden = hidden.index_select(0, rows)
        state = replace(state, length=new_length, coverage=coverage)
        return hidden.view(*tokens.shape, -1), state

    def decode_token(
        self,
        inputs: StepInputs,
        *,
        filled: Tensor | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Run the decoder on one token of each row.

        No branch depends on tensor values, so a CUDA graph can record this method.

        Args:
            inputs: Tokens and caches.
            filled: See `SelfCache.mask`.
            weights: A list to append attention weights of the aligning layers to. (B, K, S) each.

        Returns:
            Hidden states. (R, D).
        """
        ids, position, table, source_mask, cross_kv, self_kv = inputs
        values = self.target_embedding(ids, position, self.target_embeddings, table)
        aligning = set() if weights is None else self._aligning_layers
        layers = zip(self.decoder, cross_kv.unbind(0), self_kv.unbind(0), strict=True)
        for layer, layer_cross_kv, layer_self_kv in layers:
            key, value = layer_cross_kv.unbind(0)
            self_cache = SelfCache(layer_self_kv, position, filled)
            cache = (self_cache, CrossCache(key, value, source_mask))
            layer_weights = weights if layer in aligning else None
            values = layer(values, cache=cache, weights=layer_weights)
        return self.decoder_norm(values)


def _project(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Project (..., D) to logits (..., V). On a GPU, 16-bit inputs give float32 if not training.

    Similar logits are often equal in 16 bits, which would make the best tokens ambiguous.
    """
    is_16_bit_on_gpu = hidden.is_cuda and hidden.dtype.itemsize == 2
    if not is_16_bit_on_gpu or torch.is_grad_enabled():
        return F.linear(hidden, weight, bias)
    # A 16-bit product with a float32 result: casting the weights would double their memory. `mm`
    # only multiplies matrices, so the leading dimensions become one.
    rows = hidden.reshape(-1, hidden.shape[-1])
    logits = torch.mm(rows, weight.mT, out_dtype=torch.float32)
    if bias is not None:
        logits = logits + bias
    return logits.view(*hidden.shape[:-1], -1)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put models into evaluation mode; afterwards restore training mode where it was active."""
    were_training = [model for model in models if model.training]
    for model in were_training:
        model.eval()
    try:
        yield
    finally:
        for model in were_training:
            model.train()


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> Transformer:
    """Build a Transformer on the CPU in float32, initialized by torch's default random generator.

    Raises:
        ValueError: Source and target share embeddings, but their vocabularies differ in size.
    """
    if config.shares_inputs and source_vocab_size != target_vocab_size:
        sizes = f"{source_vocab_size} and {target_vocab_size}"
        raise ValueError(f"{config.embeddings} embeddings need one vocabulary; sizes: {sizes}")
    return Transformer(config, source_vocab_size, target_vocab_size)


def count_parameters(model: Transformer) -> Mapping[str, int]:
    """Count parameters of ``embeddings`` (with the output projection), ``encoder``, ``decoder``."""
    counts = {"embeddings": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        # The first word of names such as `encoder.0.norm.weight` and `encoder_norm.weight`.
        part, _, _ = name.replace(".", "_").partition("_")
        if part not in counts:
            part = "embeddings"
        counts[part] += parameter.numel()
    return counts


def fused_rows(model: nn.Module) -> Mapping[str, list[int]]:
    """Return the number of rows of each matrix in each fused weight, by name of the weight.

    Fused matrices are queries, keys and values; keys and values; gates and values.
    """
    rows = {}
    for name, module in model.named_modules():
        if isinstance(module, SelfAttention | CrossAttention):
            layer = "query_key_value" if isinstance(module, SelfAttention) else "key_value"
            rows[f"{name}.{layer}.weight"] = [size * module.head_dim for size in module.sizes]
        elif isinstance(module, FeedForward):
            # One block, or two of equal size if the layer has gates.
            num_blocks = module.inner.out_features // module.outer.in_features
            rows[f"{name}.inner.weight"] = [module.outer.in_features] * num_blocks
    return rows


def _final_norm(config: ModelConfig, dim: int) -> nn.Module:
    """Return the norm after a stack of pre-norm layers; the identity for post-norm layers."""
    if config.norm_position == "post":
        return nn.Identity()
    return make_norm(config, dim)


def _vectors(vocab_size: int, dim: int) -> nn.Parameter:
    """Return random embeddings of expected norm 1. Scaled by sqrt(D) they have variance 1."""
    return nn.Parameter(torch.randn(vocab_size, dim) * dim**-0.5)
