"""The encoder-decoder Transformer (Vaswani et al. 2017) and its step-by-step decoding.

Shapes: B sentences, S source and T target positions, N and M packed target and source tokens,
V vocabulary, D model width, K beams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.model.blocks import DecoderLayer, EncoderLayer
from nmt.model.decoder_state import DecoderState
from nmt.model.embedding import Embedding
from nmt.model.layers import make_norm
from nmt.model.layout import Layout

_Forward = Callable[..., Tensor]


class Readers(NamedTuple):
    """What decoding spends its time in: `read_source`, `read_token` and `logits` of a Transformer.

    They hold nothing but tensor operations that depend on no values, so that faster forms may stand
    for them.
    """

    source: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    token: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]


class Transformer(nn.Module):
    """Encoder, decoder and output projection.

    Training calls it whole (`forward`, then the loss on `output_weight`); decoding calls `start`
    once, and for each position `step` and `DecoderState.select`.

    Args:
        config: The model section.
        source_vocab_size: Entries of the source vocabulary.
        target_vocab_size: Entries V of the target vocabulary.
    """

    def __init__(self, config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        """Keep only the inputs of each layer for the backward pass, and work the rest out again."""
        self._forwards: dict[type[nn.Module], _Forward] = {}
        self.source_vectors = _vectors(source_vocab_size, config.model_dim)
        # Tied tables are one parameter under the first name, so that nothing is stored twice.
        if config.embeddings != "tied":
            self.target_vectors = _vectors(target_vocab_size, config.decoder_dim)
        if config.embeddings == "separate":
            self.output_vectors = _vectors(target_vocab_size, config.decoder_dim)
        self.output_bias = (
            nn.Parameter(torch.zeros(target_vocab_size)) if config.output_bias else None
        )
        self.source_embedding = Embedding(config, config.model_dim)
        self.target_embedding = Embedding(config, config.decoder_dim)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        is_pre = config.norm_position == "pre"
        self.encoder_norm = (
            make_norm(config.norm, config.model_dim, bias=config.bias) if is_pre else nn.Identity()
        )
        self.decoder_norm = (
            make_norm(config.norm, config.decoder_dim, bias=config.bias)
            if is_pre
            else nn.Identity()
        )

    @property
    def _decoder(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    @property
    def aligning_layers(self) -> list[DecoderLayer]:
        """The upper half of the decoder: by what it reads of the source, words are aligned."""
        return self._decoder[len(self.decoder) // 2 :]

    @property
    def target_table(self) -> Tensor:
        """Vectors of the target tokens: (V, D)."""
        return self.source_vectors if self.config.embeddings == "tied" else self.target_vectors

    @property
    def output_weight(self) -> Tensor:
        """Output projection: (V, D)."""
        separate = self.config.embeddings == "separate"
        return self.output_vectors if separate else self.target_table

    def encode(self, source: Tensor, layout: Layout) -> Tensor:
        """Encode packed source ids (M,): (M, D)."""
        values = self.source_embedding(source, layout.positions, layout.width, self.source_vectors)
        for layer in self.encoder:
            values = self._run(layer, values, layout)
        return self.encoder_norm(values)

    def compile_layers(self, compiled: Callable[[_Forward], _Forward] | None) -> None:
        """Run the layers by what ``compiled`` makes of their `forward`; None undoes it.

        That is once for each kind of layer, however many there are. Decoding does not use it, and
        parameters keep their names.
        """
        kinds = (EncoderLayer, DecoderLayer) if compiled else ()
        self._forwards = {kind: compiled(kind.forward) for kind in kinds if compiled}

    def _run(self, layer: nn.Module, *inputs: Tensor | Layout) -> Tensor:
        forward = self._forwards.get(type(layer))
        run = layer if forward is None else partial(forward, layer)
        if self.recompute and self.training:
            return checkpoint(run, *inputs, use_reentrant=False)
        return run(*inputs)

    def decode(
        self, target: Tensor, memory: Tensor, target_layout: Layout, source_layout: Layout
    ) -> Tensor:
        """Read packed target inputs (N,) and the encoder's output (M, D): hidden states (N, D)."""
        values = self.target_embedding(
            target, target_layout.positions, target_layout.width, self.target_table
        )
        for layer in self.decoder:
            values = self._run(layer, values, memory, target_layout, source_layout)
        return self.decoder_norm(values)

    @override
    def forward(
        self, source: Tensor, source_index: Tensor, target_input: Tensor, target_index: Tensor
    ) -> Tensor:
        """Return the decoder's hidden state before each real target token.

        Args:
            source: Source ids, padded. (B, S), int64.
            source_index: Positions of real tokens in the flattened ``source``. (M,), int64.
            target_input: BOS and target ids, padded. (B, T), int64.
            target_index: Positions of real tokens in the flattened ``target_input``. (N,), int64.

        Returns:
            (N, D). `logits` or a loss on `output_weight` goes on from there.
        """
        source_layout = Layout(source_index, *source.shape)
        target_layout = Layout(target_index, *target_input.shape)
        if self._forwards:
            for layout in (source_layout, target_layout):
                layout.cells()  # here: no layer is to make what the next one finds
        memory = self.encode(source_layout.pack(source), source_layout)
        return self.decode(target_layout.pack(target_input), memory, target_layout, source_layout)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V), not normalised."""
        return F.linear(hidden, self.output_weight, self.output_bias)

    def narrow_output(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what gives the logits of some ``tokens`` (V',) alone: (..., D) -> (..., V')."""
        weight = self.output_weight.index_select(0, tokens)
        bias = None if self.output_bias is None else self.output_bias.index_select(0, tokens)
        return lambda hidden: F.linear(hidden, weight, bias)

    @property
    def readers(self) -> Readers:
        """All as they are."""
        return Readers(self.read_source, self.read_token, self.logits)

    def start(
        self,
        source: Tensor,
        source_lengths: Tensor,
        readers: Readers | None = None,
        *,
        with_coverage: bool = False,
        choice: Tensor | None = None,
    ) -> DecoderState:
        """Encode a batch of sources, with one beam a sentence.

        Args:
            source: Source ids, padded, ending in EOS. (B, S), int64.
            source_lengths: Tokens of each source with EOS. (B,), int64.
            readers: Faster forms of the model's own.
            with_coverage: Whether to count from here on how much of each source token is read.
            choice: See `DecoderState.choice`.
        """
        layout = Layout.from_lengths(source_lengths, source.shape[1])
        values = self.source_embedding(
            layout.pack(source), layout.positions, layout.width, self.source_vectors
        )
        bias = values.new_zeros(source.shape).masked_fill_(~layout.mask(), -torch.inf)
        bias = bias[:, None, None, :]
        readers = readers or self.readers
        heads = self._decoder[0].self_attention
        shape = len(self._decoder), 2, len(source), heads.num_heads, 0, heads.head_dim
        return DecoderState(
            memory=readers.source(
                values, layout.positions, bias, layout.heads_to_rectangle(1, 1), layout.index
            ),
            bias=bias,
            past=values.new_empty(shape),
            num_beams=1,
            length=0,
            coverage=torch.zeros(source.shape, device=source.device) if with_coverage else None,
            choice=choice,
        )

    def read_source(
        self, values: Tensor, positions: Tensor, bias: Tensor, cells: Tensor, index: Tensor
    ) -> Tensor:
        """Encode embedded tokens (M, D), and project them for each layer of the decoder.

        Other arguments as in `SelfAttention.read`; the result is `DecoderState.memory`.
        """
        for layer in self.encoder:
            assert isinstance(layer, EncoderLayer)
            values = layer.read(values, positions, bias, cells, index)
        values = self.encoder_norm(values)
        found = [layer.cross_attention.remember(values, bias, cells) for layer in self._decoder]
        return torch.stack([part for pair in found for part in pair]).unflatten(0, (-1, 2))

    def step(
        self, state: DecoderState, tokens: Tensor, readers: Readers | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read the next token of each beam (B, K): logits (B, K, V) and the state after it.

        Where the state has a coverage, the model's own reader of tokens is used: others do not tell
        it.
        """
        readers, state, longer = readers or self.readers, state.with_room(), state.length + 1
        position = tokens.new_full((1,), state.length)
        table = self.target_embedding.places(longer, self.target_table)
        filled = state.past.narrow(4, 0, longer)
        ids, rows = tokens.flatten(), state.rows
        if rows is not None:
            ids = torch.empty_like(ids).index_copy_(0, rows, ids)
        inputs = (ids, position, table, state.bias, state.memory, filled)
        coverage = state.coverage
        if coverage is None:
            hidden = readers.token(*inputs)
        else:
            seen: list[Tensor] = []
            hidden = self.read_token(*inputs, seen)
            newly = torch.stack(seen).mean(0)
            coverage = coverage + (newly if rows is None else newly.index_select(0, rows))
        if rows is not None:
            hidden = hidden.index_select(0, rows)
        after = replace(state, length=longer, coverage=coverage)
        logits = readers.logits(hidden).view(*tokens.shape, -1)
        return logits if state.choice is None else logits.add_(state.choice), after

    def read_token(
        self,
        ids: Tensor,
        position: Tensor,
        table: Tensor,
        bias: Tensor,
        memory: Tensor,
        past: Tensor,
        seen: list[Tensor] | None = None,
        filled: Tensor | None = None,
    ) -> Tensor:
        """Send a token of each beam through the decoder. Other shapes: `DecoderState`.

        Args:
            ids: Tokens. (B * K,), int64.
            position: Where they stand. (1,), int64.
            table: From `Embedding.places`.
            bias: Of the source.
            memory: Keys and values of the source.
            past: Keys and values of the target so far, and room for these tokens, which are filled
                in. (L, 2, B * K, H, t + 1, E).
            seen: Where the `aligning_layers` append what they read of the source. (B * K, S) each.
            filled: See `SelfAttention.step`.

        Returns:
            Hidden states. (B * K, D).
        """
        values = self.target_embedding.look_up(ids, self.target_table)
        if self.target_embedding.positions is not None:
            values = values + table.index_select(0, position).to(values.dtype)
        telling = [] if seen is None else self.aligning_layers
        parts = memory.flatten(0, 1).unbind(0)
        for number, layer in enumerate(self._decoder):
            tell = seen if layer in telling else None
            read = parts[2 * number], parts[2 * number + 1]
            values = layer.step(values, past[number], read, bias, position, tell, filled)
        return self.decoder_norm(values)


def _vectors(vocab_size: int, dim: int) -> nn.Parameter:
    """Token vectors of expected length 1: times sqrt(D) they enter the model with variance 1."""
    return nn.Parameter(torch.randn(vocab_size, dim) * dim**-0.5)
