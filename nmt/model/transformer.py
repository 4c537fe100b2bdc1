"""The encoder-decoder Transformer (Vaswani et al. 2017) and its step-by-step decoding.

Shapes: B sentences, S source and T target positions, N and M packed target and source tokens,
V vocabulary, D model width, K beams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.model.blocks import DecoderLayer, EncoderLayer, KeysValues
from nmt.model.dropout import dropout
from nmt.model.layers import LearnedPositions, SinusoidalPositions, make_norm
from nmt.model.layout import Layout


@dataclass(frozen=True, slots=True)
class DecoderState:
    """What decoding remembers between two steps. Opaque to the search."""

    memory: tuple[KeysValues, ...]
    """Keys and values of the encoded source, a pair for each layer. (B, H, S, E)"""
    bias: Tensor | None
    """Minus infinity where the source is padding. (B, 1, 1, S)"""
    past: tuple[KeysValues | None, ...]
    """Keys and values of the target so far, a pair for each layer. (B * K, H, t, E)"""
    num_beams: int
    """Beams K of each sentence."""
    length: int
    """Target positions t so far."""


class Embedding(nn.Module):
    """Token and position to vector; what encoder and decoder begin with.

    Args:
        config: The model section.
        dim: Width D.
        table: Token vectors. (V, D)
    """

    def __init__(self, config: ModelConfig, dim: int) -> None:
        super().__init__()
        self._scale = dim**0.5 if config.scale_embeddings else 1.0
        self._dropout, self._word_dropout = config.dropout, config.word_dropout
        self.positions: nn.Module | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(config.max_positions, dim)
        elif config.positions in ("sinusoidal", "sinusoidal-halves"):
            self.positions = SinusoidalPositions(dim, config.positions)

    @override
    def forward(self, ids: Tensor, positions: Tensor, longest: int, table: Tensor) -> Tensor:
        """Embed ``ids`` (N,) at ``positions`` (N,), all below ``longest``: (N, D)."""
        values = F.embedding(ids, table)
        if self._scale != 1:
            values = values * self._scale
        if self.training and self._word_dropout:
            kept = torch.rand(len(ids), 1, device=ids.device) >= self._word_dropout
            values = values * kept.to(values.dtype)
        if self.positions is not None:
            values = values + self.positions(positions, longest).to(values.dtype)
        return dropout(values, self._dropout, self.training)


class Transformer(nn.Module):
    """Encoder, decoder and output projection.

    Training calls it whole (`forward`, then the loss on `output_weight`); decoding calls `start`
    once and `step` and `select` for each position.

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
        self.output_layer: nn.Module | None = None
        """Stands for the output projection when translating with weights of another form."""
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

    def _run(self, layer: nn.Module, *inputs: Tensor | Layout) -> Tensor:
        if self.recompute and self.training:
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

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
        memory = self.encode(source_layout.pack(source), source_layout)
        return self.decode(target_layout.pack(target_input), memory, target_layout, source_layout)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V), not normalised."""
        if self.output_layer is not None:
            return self.output_layer(hidden)
        return F.linear(hidden, self.output_weight, self.output_bias)

    def start(self, source: Tensor, source_lengths: Tensor) -> DecoderState:
        """Encode ``source`` (B, S), padded, of these lengths (B,), with one beam a sentence."""
        layout = Layout.from_lengths(source_lengths, source.shape[1])
        memory = self.encode(layout.pack(source), layout)
        bias = None
        if layout.has_padding:
            mask = layout.mask()[:, None, None, :]
            bias = memory.new_zeros(mask.shape).masked_fill(~mask, -torch.inf)
        return DecoderState(
            memory=tuple(
                layer.cross_attention.remember(memory, layout)
                for layer in self.decoder
                if isinstance(layer, DecoderLayer)
            ),
            bias=bias,
            past=(None,) * len(self.decoder),
            num_beams=1,
            length=0,
        )

    def step(self, state: DecoderState, tokens: Tensor) -> tuple[Tensor, DecoderState]:
        """Read the next token of each beam (B, K): logits (B, K, V) and the state after it."""
        ids = tokens.flatten()
        positions = torch.full_like(ids, state.length)
        values = self.target_embedding(ids, positions, state.length + 1, self.target_table)
        past = []
        for layer, own, memory in zip(self.decoder, state.past, state.memory, strict=True):
            assert isinstance(layer, DecoderLayer)
            values, longer = layer.step(values, own, memory, state.bias, positions)
            past.append(longer)
        logits = self.logits(self.decoder_norm(values)).view(*tokens.shape, -1)
        after = DecoderState(
            state.memory, state.bias, tuple(past), state.num_beams, state.length + 1
        )
        return logits, after

    def select(self, state: DecoderState, sentences: Tensor, beams: Tensor) -> DecoderState:
        """Keep some sentences, and in each some beams.

        Args:
            state: The state to choose from.
            sentences: Which of the B sentences stay, ascending. (B',), int64.
            beams: Which of their K beams go on; one may go on more than once. (B', K'), int64.
        """
        memory, bias = state.memory, state.bias
        if len(sentences) < len(memory[0].keys):
            memory = tuple(_rows(pair, sentences) for pair in memory)
            bias = None if bias is None else bias.index_select(0, sentences)
        rows = (sentences.unsqueeze(1) * state.num_beams + beams).flatten()
        past = tuple(pair if pair is None else _rows(pair, rows) for pair in state.past)
        return DecoderState(memory, bias, past, beams.shape[1], state.length)


def _rows(pair: KeysValues, rows: Tensor) -> KeysValues:
    return KeysValues(pair.keys.index_select(0, rows), pair.values.index_select(0, rows))


def _vectors(vocab_size: int, dim: int) -> nn.Parameter:
    """Token vectors of expected length 1: times sqrt(D) they enter the model with variance 1."""
    return nn.Parameter(torch.randn(vocab_size, dim) * dim**-0.5)
