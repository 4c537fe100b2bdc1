"""FLOPs by hand and by torch's own count; and recipes that cannot work are noticed in time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from nmt.config.data import BatchConfig
from nmt.config.filling import MODEL_PRESETS, SCALES, scale_of, usual_vocab_size
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.config.training import ScheduleConfig, TrainingConfig
from nmt.data.prepare_report import PrepareReport, SideReport
from nmt.extras.planning.plan import (
    LengthSums,
    MatmulParameters,
    Plan,
    advise,
    matmul_parameters,
    training_flops,
)
from nmt.model.transformer import build_model
from nmt.packed import Packed
from nmt.training.schedule import SCHEDULES, build_schedule

BASE = ModelConfig.model_validate({"preset": "transformer-base"})
SMALL = {"model_dim": 16, "ff_dim": 40, "num_heads": 4, "encoder_layers": 3, "decoder_layers": 2}
SHAPES: list[dict[str, Any]] = [
    {},
    {"norm_position": "pre", "output_bias": True, "positions": "learned"},
    {"activation": "swiglu", "bias": False, "norm": "rms"},
    {"positions": "rotary", "qk_norm": True, "num_kv_heads": 2},
    {"embeddings": "separate", "decoder_model_dim": 24, "decoder_ff_dim": 56, "num_kv_heads": 1},
]


def test_the_base_model_has_the_matrices_of_the_paper() -> None:
    # A square is 512 x 512 = 262,144; the feed-forward's matrices are 2 x 512 x 2,048 = 2,097,152.
    # Encoder layer: queries, keys, values, output (4 squares) and feed-forward: 3,145,728.
    # Decoder layer: 8 squares and feed-forward: 4,194,304, of which 2 squares read the encoder.
    assert matmul_parameters(BASE, 37_000) == MatmulParameters(
        encoder=6 * 3_145_728,
        memory=6 * 2 * 262_144,
        decoder=6 * (4_194_304 - 2 * 262_144),
        output=37_000 * 512,
    )


def test_the_flops_of_the_base_model_by_hand() -> None:
    pairs = LengthSums.of_pairs(np.array([20, 30]), np.array([25, 35]))
    flops = training_flops(BASE, 37_000, pairs)
    assert pairs == LengthSums(
        source_tokens=50,
        target_tokens=60,
        source_squares=400 + 900,
        target_squares=625 + 1_225,
        products=500 + 1_050,
    )
    # Matrices of encoder and memory are 22,020,096 numbers; of the rest, 40,964,096.
    assert flops.matmul == 6 * (22_020_096 * 50 + 40_964_096 * 60)
    # 6 layers of width 512 with the scores of encoder, decoder and cross-attention.
    assert flops.attention == 12 * 6 * 512 * (1_300 + 1_850 + 1_550)
    assert flops.matmul + flops.attention == flops.total == 21_526_364_160
    lengths = np.full(100_000, 60_000, dtype=np.int32)  # which do not overflow
    assert LengthSums.of_pairs(lengths, lengths).products == 100_000 * 60_000**2


@pytest.mark.parametrize("preset", MODEL_PRESETS)
def test_the_matrices_of_every_preset_are_those_of_its_layers(preset: str) -> None:
    config = ModelConfig.model_validate({"preset": preset})
    with torch.device("meta"):
        model = build_model(config, 1000, 1000)
    sizes = matmul_parameters(config, 1000)
    matrices = {name: p.numel() for name, p in model.named_parameters() if p.ndim == 2}
    memory = {name for name in matrices if name.endswith("cross_attention.key_value.weight")}
    assert sizes.memory == sum(matrices[name] for name in memory)
    assert sizes.encoder == sum(n for name, n in matrices.items() if name.startswith("encoder."))
    decoder = sum(n for name, n in matrices.items() if name.startswith("decoder."))
    assert sizes.decoder == decoder - sizes.memory


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_counts_the_same_flops_exactly(shape: dict[str, Any]) -> None:
    """Without padding, on the CPU, where attention is made of plain products: no tolerance."""
    config = ModelConfig.model_validate({**SMALL, **shape})
    model = build_model(config, 50, 50)
    pairs, source_length, target_length = 3, 7, 5
    source, target = (
        Packed.from_rows(torch.randint(4, 50, (pairs, n)).tolist())
        for n in (source_length, target_length)
    )
    with FlopCounterMode(display=False) as counted:
        F.cross_entropy(model.logits(model(source, target)), target.ids).backward()
    sums = LengthSums.of_pairs(np.full(pairs, source_length), np.full(pairs, target_length))
    assert training_flops(config, 50, sums).total == counted.get_total_flops()


def config(**training: Any) -> RunConfig:
    return RunConfig.model_validate({
        "name": "x", "source_language": "de", "target_language": "en",
        "data": {"train": [{"demo": "train", "name": "a"}], "valid": {"demo": "valid"}},
        "tokenizer": {"vocab_size": training.pop("vocab_size", 4000)},
        "batch": {"max_tokens": 2000},
        "training": {"max_steps": 1000, **training},
    })  # fmt: skip


def report(num_pairs: int, mean: float = 18.0, vocab_size: int = 4000) -> PrepareReport:
    side = SideReport(
        language="de", vocab_size=vocab_size, tokens=round(num_pairs * mean), mean_length=mean,
        median_length=1, p99_length=1, max_length=1, fallback_rate=0.0,
    )  # fmt: skip
    counts = {"a": {"read": num_pairs, "kept": num_pairs}, "valid": {"read": 9, "kept": 9}}
    return PrepareReport(folder="p", up_to_date=True, counts=counts, sides=[side, side])


def found(config: RunConfig, plan: Plan) -> str:
    return " / ".join(advise(config, plan))


def warmed(shape: str, warmup: int, total: int) -> str:
    schedule = {"shape": shape, "warmup_steps": warmup}
    plan = Plan(total_steps=total, updates_per_epoch=None, report=None)
    return found(config(schedule=schedule), plan)


@pytest.mark.parametrize("shape", SCHEDULES.names())
def test_a_training_that_ends_during_or_soon_after_warm_up_is_a_warning(shape: str) -> None:
    half = "warm-up ("
    is_cut = shape in ("linear", "cosine", "wsd")  # to half of the training
    inside = "training ends during warm-up, after 413 of 500 warm-up updates"
    assert warmed(shape, 500, 413).startswith(half if is_cut else inside)
    assert warmed(shape, 300, 413).startswith(half)
    assert warmed(shape, 200, 413) == ""


@pytest.mark.parametrize("shape", SCHEDULES.names())
def test_a_share_of_the_run_is_the_warm_up_of_as_many_updates(shape: str) -> None:
    options = {"shape": shape, "peak_lr": 1.0}
    share, steps = (
        build_schedule(ScheduleConfig.model_validate(options | each), model_dim=8, total_steps=500)
        for each in ({"warmup_ratio": 0.06}, {"warmup_steps": 30})
    )
    rates = [share(step) for step in range(1, 501)]
    assert rates == [steps(step) for step in range(1, 501)]
    if shape != "constant":
        assert rates.index(max(rates)) == 29


def test_an_epoch_has_the_updates_of_the_pairs_that_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """18 subwords and EOS on both sides: 20,000 pairs fill 380 batches. Replay adds a fifth."""
    monkeypatch.setattr(PrepareReport, "read", lambda _: report(20_000))
    for options, updates in (
        ({"max_tokens": 2000}, 380),
        ({"max_tokens": 2000, "gradient_accumulation": 4}, 95),
        ({"max_tokens": 2000, "max_sentences": 40}, 500),  # 1,520 tokens
        ({"max_tokens": 2000, "max_sentences": 80}, 380),  # 3,040 tokens
        ({"max_tokens": None, "max_sentences": 80}, 250),
        ({"max_tokens": "auto", "tokens_per_update": 7600}, 100),
    ):
        batch = BatchConfig.model_validate(options)
        changed = config().model_copy(update={"batch": batch})
        assert Plan.estimate(changed).updates_per_epoch == updates, options
    both = replace(report(20_000), counts={"a": {"kept": 8000}, "general": {"kept": 12_000}})
    monkeypatch.setattr(PrepareReport, "read", lambda _: both)
    values = config().model_dump(exclude_unset=True)
    values["data"]["replay"] = {"share": 0.2, "train": [{"demo": "train", "name": "general"}]}
    mixed = RunConfig.model_validate(values)
    assert Plan.estimate(mixed).updates_per_epoch == 190  # 8,000 pairs and 2,000 of 12,000


def test_an_epoch_that_is_never_finished_is_a_warning() -> None:
    plan = Plan(total_steps=5000, updates_per_epoch=20_000, report=None)
    text = "training ends at update 5,000, but an epoch has 20,000 updates: 75% of the pairs"
    assert text in found(config(), plan)
    assert found(config(), plan).endswith("`set` training.max_steps=20000")
    # 7 minutes hold a quarter of an epoch.
    timed = config(max_steps=None, max_minutes=7)
    assert found(timed, plan).endswith("training.max_minutes=null `set` training.max_epochs=1")
    both = config(max_steps=10_000, max_minutes=7)
    assert found(both, plan).endswith("training.max_epochs=1 `set` training.max_steps=null")
    assert found(config(), Plan(total_steps=20_000, updates_per_epoch=20_000, report=None)) == ""


@pytest.mark.parametrize(
    ("size", "pairs", "text"),
    [
        (400, 5800, "a vocabulary of 400 subwords is small for 5,800 pairs (90 subwords per line): "
         "about 2,000 are usual"),
        (37_000, 5800, "a vocabulary of 37,000 subwords is large for 5,800 pairs"),
        (8000, 29_000, ""), (1000, 40_000, ""), (37_000, 4_500_000, ""), (32_000, 200, ""),
    ],
)  # fmt: skip
def test_a_vocabulary_far_from_the_usual_is_a_warning(size: int, pairs: int, text: str) -> None:
    plan = Plan(total_steps=None, updates_per_epoch=None, report=report(pairs, 90.0, 400))
    advice = found(config(vocab_size=size), plan)
    assert advice.startswith(text)
    assert bool(advice) == bool(text)
    kept = found(config(vocab_size=size, init_from="m"), plan)
    assert kept == ""  # the vocabulary of another model


def vocabulary_advice(num_pairs: int = 5800, **tokenizer: Any) -> str:
    """The advice about a corpus whose sides have 400 and 9,000 subwords, for each line 90 and 5."""
    one = report(num_pairs, 90.0, 400)
    sides = [*one.sides[:1], *report(num_pairs, 5.0, 9000).sides[1:]]
    plan = Plan(total_steps=None, updates_per_epoch=None, report=replace(one, sides=sides))
    values = config().model_dump(exclude_unset=True) | {"tokenizer": tokenizer}
    values["model"] = {"embeddings": "separate"}
    return found(RunConfig.model_validate(values), plan)


def test_each_vocabulary_is_compared_with_the_usual_for_the_pairs() -> None:
    """About 2,000 subwords are usual for 5,800 pairs: a quarter and four times as many, too."""
    small, large, *more = vocabulary_advice(
        vocab_size={"source": 400, "target": 9000}, joint=False
    ).split(" / ")
    assert more == []
    assert "400 subwords is small for 5,800 pairs (90 subwords per line)" in small
    assert "9,000 subwords is large for 5,800 pairs (5 subwords per line)" in large
    for size, word in ((499, "small"), (500, ""), (8000, ""), (8001, "large")):
        advice = vocabulary_advice(vocab_size=size)
        assert (f"is {word} for" in advice) if word else advice == ""
        assert "per line" not in advice  # no side of this size was measured
    assert vocabulary_advice(vocab_size=400, kind="unigram").count("is small for") == 1
    for kind in ("word", "char"):  # whose sizes follow from the text
        assert vocabulary_advice(vocab_size=400, kind=kind) == ""
    assert vocabulary_advice(999, vocab_size=40_000) == ""  # a toy
    assert vocabulary_advice(1000, vocab_size=40_000) != ""


def test_few_updates_in_an_epoch_are_a_warning_with_the_factor() -> None:
    for updates, factor in ((25.0, None), (24.9, "1.1"), (22.0, "1.2"), (10.0, "2.5"), (2.5, "10")):
        plan = Plan(total_steps=None, updates_per_epoch=updates, report=report(2000))
        advice = found(config(), plan)
        assert re.findall(r"max_tokens at least ([\d.]+) times", advice) == (
            [factor] if factor else []
        )
    toy = Plan(total_steps=None, updates_per_epoch=2.5, report=report(999))
    assert found(config(), toy) == ""


def test_a_batch_that_is_a_large_part_of_the_corpus_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unprepared = config().model_copy(update={"prepared_dir": tmp_path})
    assert Plan.estimate(unprepared) == Plan(total_steps=1000, updates_per_epoch=None, report=None)
    # 1,000 pairs of (18 + 1) x 2 tokens are 38,000: 19 batches of 2,000.
    monkeypatch.setattr(PrepareReport, "read", lambda _: report(1000))
    plan = Plan.estimate(config(max_epochs=3))
    assert (plan.updates_per_epoch, plan.total_steps) == (19.0, 57)
    assert "an epoch of 1,000 pairs has only 19 updates" in found(config(max_epochs=3), plan)
    monkeypatch.setattr(PrepareReport, "read", lambda _: report(2000))
    small = config(schedule={"warmup_ratio": 0.1})
    assert found(small, Plan.estimate(small)) == ""


@pytest.mark.parametrize("num_pairs", [5000, 50_000, 160_000, 4_500_000])
def test_the_values_for_a_corpus_size_cause_no_warning(num_pairs: int) -> None:
    scale = scale_of(72 * num_pairs)  # as long as those of Tatoeba
    sections = scale.sections
    assert usual_vocab_size(num_pairs) == sections["tokenizer"]["vocab_size"]
    training = sections["training"]
    assert TrainingConfig.model_validate(training).max_minutes == training["max_minutes"]
    assert tuple(sorted(SCALES, key=lambda each: each.max_characters)) == SCALES
