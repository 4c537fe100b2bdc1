"""A search among a few tokens: what they are, and that it is the same search."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nmt.checkpoint.model_folder import SHORTLIST as NAME
from nmt.config.model import DecodingConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.inference.engine import EngineLacksError, read_shortlist
from nmt.inference.stepper import BatchVocabulary, Mixture, ModelStepper, Shortlist
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.search.hypothesis import NONE, Constraints, Hypothesis, contains
from nmt.search.loop import search
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import Tokenizers, tokenizer_hash
from tests.inference.conftest import OPTIONS, sentences, translator_of
from tests.inference.models import shortlist_bytes, small_model

CPU = torch.device("cpu")
SPECIAL = {PAD_ID, UNK_ID, BOS_ID, EOS_ID}
FIRST_PIECE = 4 + 256  # those before are special tokens and bytes
LINES = sentences(6, seed=5, longest=6)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 4, "n_best": 3},
    "sampling": {"sampling": True, "n_best": 3, "top_p": 0.9, "beam_size": 3},
    "top k": {"sampling": True, "n_best": 2, "top_k": 5, "temperature": 1.5},
    "alternatives": {"return_alternatives": True, "n_best": 3},
    "no repetition": {"beam_size": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    "diverse": {"beam_size": 4, "n_best": 2, "diverse_beam_groups": 2},
    "coverage": {"beam_size": 3, "coverage_penalty": 0.3},
    "shortest": {"beam_size": 3, "min_length_factor": 0.8},
}


def options(way: str, **changes: Any) -> DecodingConfig:
    values = OPTIONS.model_dump(exclude={"beam_size"})
    return DecodingConfig.model_validate({**values, "shortlist": True, **WAYS[way], **changes})


def table(*candidates: Sequence[int]) -> Tensor:
    width = max(map(len, candidates))
    rows = [[*own, *[-1] * (width - len(own))] for own in candidates]
    return torch.tensor(rows, dtype=torch.int32)


@functools.cache
def random_shortlist(vocab_size: int) -> Shortlist:
    """Other tokens for every source token, and a few for all; none is special or a byte."""
    draw = torch.Generator().manual_seed(0)
    common = torch.randint(FIRST_PIECE, vocab_size, (5,), generator=draw)
    found = torch.randint(FIRST_PIECE - 1, vocab_size, (vocab_size, 3), generator=draw)
    found[found < FIRST_PIECE] = -1
    return Shortlist(common, found.int(), vocab_size)


def random_constraints(tokenizers: Tokenizers) -> list[Constraints]:
    word = functools.partial(random.Random(2).randrange, 4, tokenizers.target.vocab_size)
    kinds = [
        lambda: NONE,
        lambda: Constraints(prefix=(word(), word())),
        lambda: Constraints(required=((word(),), (word(), word()))),
        lambda: Constraints(forbidden=((word(),), (word(), word()))),
        lambda: Constraints(prefix=(word(),), required=((word(),),), forbidden=((word(),),)),
    ]
    return [kinds[i % 5]() for i in range(len(LINES))]


PARTS = torch.tensor([8]), table([], [], [], [], [9, 7], [5], [11])
"""Common tokens, and candidates of seven source tokens."""


def test_a_sentence_only_uses_its_shortlist() -> None:
    shortlist = Shortlist(*PARTS, 12)
    alone = shortlist.pick(Packed.from_rows([[4, EOS_ID]]))
    assert alone.tokens.tolist() == [*sorted(SPECIAL), 7, 8, 9]
    assert alone.allowed is None  # all are its own
    source = Packed.from_rows([[4, EOS_ID], [5, 6, EOS_ID]])
    picked = shortlist.pick(source, [NONE, Constraints(required=((10, 6),), prefix=(4, UNK_ID))])
    assert picked.tokens.tolist() == list(range(12))
    assert own_tokens(picked, 0) == SPECIAL | {7, 8, 9}
    assert own_tokens(picked, 1) == SPECIAL | {4, 5, 6, 8, 10, 11}


def own_tokens(picked: BatchVocabulary, row: int) -> set[int]:
    assert picked.allowed is not None
    assert set(picked.allowed.flatten().tolist()) <= {0.0, -torch.inf}
    return set(picked.tokens[picked.allowed[row, 0] == 0].tolist())


def test_a_written_shortlist_is_read(tmp_path: Path) -> None:
    assert read_shortlist(tmp_path, (7, 12)) is None
    (tmp_path / NAME).write_bytes(shortlist_bytes(*PARTS))
    found = Shortlist.load(tmp_path, (7, 12), CPU)
    source = Packed.from_rows([[4, EOS_ID], [5, EOS_ID]])
    expected = Shortlist(*PARTS, 12).pick(source)
    assert torch.equal(found.pick(source).tokens, expected.tokens)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"some text",
        shortlist_bytes(*PARTS)[:-3],
        shortlist_bytes(*PARTS).replace(b"common", b"others"),
        shortlist_bytes(torch.tensor([12]), PARTS[1]),  # beyond the vocabulary
        shortlist_bytes(PARTS[0], torch.full((7, 2), 12)),
        shortlist_bytes(PARTS[0], PARTS[1][:6]),
        shortlist_bytes(PARTS[0], PARTS[1][:, :0].clone()),
        shortlist_bytes(PARTS[0], PARTS[1] - 1),  # -2 is no token
        shortlist_bytes(PARTS[0], PARTS[1].float()),
        shortlist_bytes(PARTS[0], PARTS[1][0]),
        shortlist_bytes(torch.tensor(5), PARTS[1]),
        shortlist_bytes(torch.tensor([-1]), PARTS[1]),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{NAME} is damaged.*\n.*fix: Delete it, then run"):
        Shortlist.load(tmp_path, (7, 12), CPU)


def test_a_shortlist_of_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path) -> None:
    """Its tokens would be those of other words."""
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "joint.model").write_bytes(b"one")
    metadata = {"vocab_hash": tokenizer_hash(tokenizer)}
    names = ("common", "candidates")
    parts = [part.int() for part in PARTS]
    save_file(dict(zip(names, parts, strict=True)), tmp_path / NAME, metadata)
    assert read_shortlist(tmp_path, (7, 12)) is not None
    (tokenizer / "joint.model").write_bytes(b"two")
    with pytest.raises(CheckpointError, match="made for a different vocabulary"):
        read_shortlist(tmp_path, (7, 12))


@functools.cache
def _model(vocabulary: Tokenizers, shape: str, seed: int) -> Transformer:
    return small_model(vocabulary, shape, seed)


@functools.cache
def engine(
    tokenizers: Tokenizers, shortlist: Shortlist, shapes: tuple[str, ...] = ("plain",)
) -> TorchEngine:
    models = [_model(tokenizers, x, 3 + i) for i, x in enumerate(shapes)]
    mixture = Mixture((1 / len(models),) * len(models))
    return TorchEngine(*models, mixture=mixture, is_final=True, shortlist=shortlist)


def masked_search(
    models: Sequence[Transformer],
    shortlist: Shortlist,
    sources: Sequence[Sequence[int]],
    config: DecodingConfig,
    constraints: Sequence[Constraints],
) -> list[list[Hypothesis]]:
    """One sentence after the other, with all tokens, of which those that it may not use are
    impossible: their bias is minus infinity, before probabilities are normalised."""
    found, mixture = [], Mixture((1 / len(models),) * len(models))
    for ids, own in zip(sources, constraints, strict=True):
        source, masked = Packed.from_rows([[*ids, EOS_ID]]), copy.deepcopy(models)
        allowed = shortlist.pick(source, [own]).tokens
        for model in masked:
            bias = torch.full((len(model.output_weight),), -torch.inf)
            bias[allowed] = 0.0 if model.output_bias is None else model.output_bias.data[allowed]
            model.output_bias = nn.Parameter(bias)
        with_coverage = config.coverage_penalty > 0
        stepper = ModelStepper(*masked, mixture=mixture, with_coverage=with_coverage)
        found += search(stepper, source, config, [own])
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shapes", [("modern",), ("learned",), ("plain", "learned", "wide")])
@pytest.mark.long
def test_a_shortlist_equals_the_full_vocabulary_if_other_tokens_are_impossible(
    tokenizers: Tokenizers, way: str, shapes: tuple[str, ...]
) -> None:
    sources, constraints = tokenizers.source.encode_batch(LINES), random_constraints(tokenizers)
    if "beam_size" not in WAYS[way] or way in ("sampling", "diverse"):
        constraints = [Constraints(own.prefix, (), own.forbidden) for own in constraints]
    if shapes == ("modern",):  # every sentence another start token, outside its shortlist
        constraints = [replace(own, start=70 + i) for i, own in enumerate(constraints)]
    shortlist = random_shortlist(tokenizers.target.vocab_size)
    models = [_model(tokenizers, shape, 3 + i) for i, shape in enumerate(shapes)]
    found = engine(tokenizers, shortlist, shapes).search(sources, options(way), constraints)
    expected = masked_search(models, shortlist, sources, options(way), constraints)
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.ids for h in ours] == [h.ids for h in theirs]
        for name in ("log_prob", "score"):
            values = [[getattr(h, name) for h in own] for own in (ours, theirs)]
            assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-4)
    for hypotheses, ids, own in zip(found, sources, constraints, strict=True):
        allowed = shortlist.pick(Packed.from_rows([[*ids, EOS_ID]]), [own]).tokens.tolist()
        for hypothesis in hypotheses:
            assert {*hypothesis.ids} <= {*allowed}
            assert hypothesis.ids[: len(own.prefix)] == own.prefix
            assert all(contains(hypothesis.ids, phrase) for phrase in own.required)
            after = hypothesis.ids[len(own.prefix) :]
            assert not any(contains(after, phrase) for phrase in own.forbidden)


def test_a_missing_shortlist_is_reported_with_a_fix(tokenizers: Tokenizers, tmp_path: Path) -> None:
    message = rf"{NAME} does not exist\.\n.*fix: Run `nmt train CONFIG`, which"
    with pytest.raises(ConfigError, match=message):
        Shortlist.load(tmp_path, tokenizers.vocab_sizes, CPU)
    plain = translator_of(TorchEngine(_model(tokenizers, "plain", 3), is_final=True), tokenizers)
    with pytest.raises(EngineLacksError, match=r"loaded without it"):
        plain.with_options(shortlist=True)


def test_a_model_in_training_scores_all_tokens(tokenizers: Tokenizers) -> None:
    training = TorchEngine(_model(tokenizers, "plain", 3))
    sources = tokenizers.source.encode_batch(LINES)
    found = training.search(sources, options("beam"))
    assert found == training.search(sources, options("beam", shortlist=False))
