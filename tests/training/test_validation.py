"""Scores of a validation, files written at the end, and training with compiled layers."""

from __future__ import annotations

import copy
import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nmt.checkpoint.files import AVERAGE, checkpoint_dir, list_checkpoints, load_checkpoint
from nmt.checkpoint.model_folder import SHORTLIST, load_model
from nmt.commands.train import fit
from nmt.commands.train_setup import choosing_lines
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.device.distributed import Processes
from nmt.inference.torch_engine import TorchEngine
from nmt.model.decoder_state import DecoderState
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.text.tokenizer import load_tokenizers
from nmt.training.processes import StoppedBySignal
from nmt.training.timing import TrainingSetup
from nmt.training.validation import fixed_batches
from tests.compiling import Backend
from tests.training.toy import CONFIG, make_config, setup_of, write_corpus

# torch's compiler makes an object of an autograd function, which torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _corpus(tmp_path: Path) -> None:
    write_corpus(tmp_path)


def trained(**training: Any) -> tuple[RunConfig, TrainingSetup]:
    """A finished run, and what it would train with once more."""
    config = make_config(**training)
    fit(config)
    return config, setup_of(config)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_validation_reports_plain_cross_entropy_and_the_training_loss(
    label_smoothing: float,
) -> None:
    """Both per token, without dropout, of all pairs of the set."""
    config, setup = trained(label_smoothing=label_smoothing)
    weights = load_checkpoint(list_checkpoints(config.run_dir)[-1][1]).model
    setup.updater.optimizer.load_weights(weights)
    scores, model = setup.validator(), setup.updater.model.eval()
    loader = replace(setup.loader, store=PreparedData.open(config.prepared_dir).valid)
    batches = fixed_batches(loader, Processes(), np.arange(len(loader.store)))
    sums, tokens = torch.zeros(2, dtype=torch.float64), 0
    for batch in batches:
        logits = model.logits(model(batch.source, batch.target)).double()
        for number, smoothing in enumerate((0.0, label_smoothing)):
            sums[number] += F.cross_entropy(
                logits, batch.gold, label_smoothing=smoothing, reduction="sum"
            ).detach()
        tokens += len(batch.gold)
    assert sum(len(batch.rows) for batch in batches) == len(loader.store) == 12
    assert scores.loss == pytest.approx(float(sums[0]) / tokens, rel=1e-5)
    assert scores.objective == pytest.approx(float(sums[1]) / tokens, rel=1e-5)
    assert (scores.loss == scores.objective) == (label_smoothing == 0)
    line = json.loads((config.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["loss"] == pytest.approx(scores.loss, rel=1e-6)


AVERAGES = [{}, pytest.param({"ema_decay": 0.5}, marks=pytest.mark.long)]


@pytest.mark.parametrize("options", AVERAGES, ids=str)
def test_the_validated_average_has_the_written_weights(options: dict[str, Any]) -> None:
    """By the weights that are in its folder, loaded by somebody else."""
    validation = {"metric": "loss", "max_sentences": 8}
    average: dict[str, Any] = {"average_last": 2, "save_every": 5, "keep_last": 2}
    config, setup = trained(validation=validation, **average, **options)
    record = json.loads((config.run_dir / AVERAGE / "average.json").read_text())
    setup.updater.optimizer.load_weights(load_model(config.run_dir, AVERAGE).model.state_dict())
    of_mean = setup.validator().value("loss")
    newest = load_checkpoint(list_checkpoints(config.run_dir)[-1][1])
    setup.updater.optimizer.load_weights(newest.model)
    assert record["score"] == of_mean
    assert record["score"] != setup.validator().value("loss")


def test_each_set_has_the_scores_that_it_has_alone_and_they_choose_by_mean_or_minimum() -> None:
    """And the same updates are made. A set of `data.replay` is reported only."""
    for side, step in (("de", 1), ("en", -1)):
        text = Path("train.de").read_text().splitlines()
        Path(f"other.{side}").write_text("".join(f"{line[::step]}\n" for line in text[:9]))
    files, names = ("valid", "other"), ["of valid", "of other", "old"]
    a, b = ({"name": f"of {x}", "source": f"{x}.de", "target": f"{x}.en"} for x in files)
    pairs = {"source": "train.en", "target": "train.de"}
    old = {"train": [pairs], "valid": {"name": "old", **pairs, "max_pairs": 10}}

    def lines(run_dir: str, *valid: dict[str, Any], **validation: str) -> list[dict[str, Any]]:
        config = make_config(run_dir, validation={"metric": "chrf", **validation})
        values = config.model_dump() | {"prepared_dir": run_dir + "-prepared"}
        values["data"] |= {"valid": valid, "replay": old}
        fit(RunConfig.model_validate(values))
        found = [*map(json.loads, (config.run_dir / "metrics.jsonl").read_text().splitlines())]
        state = load_checkpoint(checkpoint_dir(config.run_dir, 10)).state
        history = [line["chrf"] for line in found if line["kind"] == "validation"]
        assert [score for _, score, *_ in state["progress"]["history"]] == history
        return found

    def without_times(found: list[dict[str, Any]]) -> list[Any]:
        return [{k: x for k, x in line.items() if "second" not in k} for line in found]

    of_two, of_b = lines("two", a, b), lines("b", b, choose_by="minimum")
    least = lines("least", a, b, choose_by="minimum")
    for two, one, minimum in zip(*map(without_times, (of_two, of_b, least)), strict=True):
        if two["kind"] == "update":
            assert two == one == minimum
            continue
        assert list(two["sets"]) == names
        assert two["sets"] == minimum["sets"]
        assert one["sets"] == {name: two["sets"][name] for name in names[1:]}
        assert {key: one[key] for key in two["sets"]["of other"]} == two["sets"]["of other"]
        for key in ("loss", "bleu", "chrf"):
            values = [two["sets"][name][key] for name in names[:2]]
            worst = max(values) if key == "loss" else min(values)
            assert (two[key], minimum[key]) == (pytest.approx(sum(values) / 2), worst)
    start, end = map(json.loads, Path("two/starts.jsonl").read_text().splitlines())
    assert (end["kind"], end["reason"]) == ("end", "budget")
    assert start["combination"] == "mean"
    assert start["sets"]["old"] == {"direction": "de-en", "pairs": 10, "is_choosing": False}


@pytest.mark.parametrize("tags", ["source", "target", "both", None])
@pytest.mark.long
def test_a_set_is_translated_and_scored_in_its_direction_with_the_tags_of_its_pairs(
    tags: str | None,
) -> None:
    """A domain tag comes after the tag of a language. Chinese has another tokenizer of BLEU."""
    values = make_config().model_dump()
    values["data"] |= {"train": [], "valid": [], "language_tags": tags}
    for part, (code, tag) in itertools.product(("train", "valid"), (("en", None), ("zh", "<x>"))):
        corpus = {"source": f"{part}.de", "target": f"{part}.en", "target_language": code}
        values["data"][part].append({**corpus, "name": f"{part}-{code}", "tag": tag})
    config = RunConfig.model_validate(values)
    fit(config)
    setup, data = setup_of(config), PreparedData.open(config.prepared_dir)
    for number, held_out in enumerate(setup.validator.sets):
        assert held_out.text is not None
        rows = np.flatnonzero(data.valid.corpus == number)[:8]
        sources, targets = (
            stored.rows() for stored in (data.valid.source.ids(rows), data.valid.target.ids(rows))
        )
        translator = held_out.text.translator(TorchEngine(setup.updater.model), lambda _: None)
        segments = translator.segment(held_out.text.sources).segments
        assert [each.read_ids for each in segments] == sources
        starts = [ids[: tags in ("target", "both")] for ids in targets]
        assert [[*each.start_ids] for each in segments] == starts
    line = json.loads((config.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    found = {name: scores["bleu_tokenizer"] for name, scores in line["sets"].items()}
    assert found == {"valid-en": "13a", "valid-zh": "zh"}
    assert line["bleu_tokenizer"] is None
    requests, references = choosing_lines(config, data)  # for the confidence of translations
    assert [request.tag for request in requests] == [None] * 12 + ["<x>"] * 12
    assert references == [data.valid_target]


def test_a_domain_tag_needs_no_language_tags() -> None:
    """A set is translated with the tag that its pairs have in the prepared data."""
    values = make_config().model_dump()
    (corpus,) = values["data"]["train"]
    corpus["tag"] = "<x>"
    (plain,) = values["data"]["valid"]
    values["data"]["valid"] = [{**plain, "name": "plain"}, {**plain, "name": "x", "tag": "<x>"}]
    config = RunConfig.model_validate(values)
    assert config.language_tags is None
    fit(config)
    data = PreparedData.open(config.prepared_dir)
    setup = setup_of(config)
    first_ids = []
    for number, held_out in enumerate(setup.validator.sets):
        assert held_out.text is not None
        rows = np.flatnonzero(data.valid.corpus == number)[:8]
        translator = held_out.text.translator(TorchEngine(setup.updater.model), lambda _: None)
        segments = translator.segment(held_out.text.sources).segments
        assert [each.read_ids for each in segments] == data.valid.source.ids(rows).rows()
        first_ids.append({each.read_ids[0] for each in segments})
    tag_id = load_tokenizers(data.tokenizer_dir).source.tag_id("<x>")
    assert first_ids[1] == {tag_id}
    assert tag_id not in first_ids[0]


@pytest.mark.long
def test_the_scale_of_a_float16_loss_survives_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT 18: it has grown, and half of the way to the next growth is gone."""
    monkeypatch.setattr("nmt.device.precision._GROWTH_INTERVAL", 3)
    states = []
    for name, stops in (("whole", (10,)), ("resumed", (5, 10))):
        for steps in stops:
            fit(make_config(name, precision="float16", max_steps=steps, save_every=5))
        states.append([load_checkpoint(path) for _, path in list_checkpoints(Path(name))])
    whole, resumed = (checkpoints[-1] for checkpoints in states)
    assert whole.state["counters"] == {"loss_scale": 2.0**18, "good_in_a_row": 1}
    assert states[1][0].state["counters"] == {"loss_scale": 2.0**16, "good_in_a_row": 2}
    assert resumed.state["counters"] == whole.state["counters"]
    for tensors in ("model", "optimizer"):
        found, expected = (getattr(each, tensors) for each in (resumed, whole))
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_the_seed_of_the_run_reaches_bpe_dropout() -> None:
    """Other subwords of the same pairs with another seed; the same ones with the same."""

    def subwords(seed: int) -> list[int]:
        config = make_config(seed=seed)
        batch = config.batch.model_copy(update={"bpe_dropout": 0.5})
        setup = setup_of(config.model_copy(update={"batch": batch}))
        return setup.loader.batch(np.arange(20)).source.ids.tolist()

    fit(make_config(max_steps=1))  # prepares the data
    one, again, two = (subwords(seed) for seed in (1, 1, 2))
    assert one == again
    assert one != two


@pytest.mark.usefixtures("stopped_once")
@pytest.mark.long
def test_a_run_contains_the_shortlist_of_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever an earlier run, a stop or an accident has left of them."""
    caplog.set_level(logging.INFO, "nmt")
    write_corpus(tmp_path)
    config = make_config()
    place = config.run_dir / SHORTLIST
    place.parent.mkdir()
    place.write_bytes(b"of other data")
    with pytest.raises(StoppedBySignal):
        fit(config)
    made = (config.prepared_dir / SHORTLIST).read_bytes()
    assert place.read_bytes() == made
    fit(config)
    assert place.read_bytes() == made
    manifest = checkpoint_dir(config.run_dir, 10) / "manifest.json"
    before = manifest.read_bytes()
    place.unlink()
    fit(config)  # nothing is left to train
    longer = "to continue, raise training.max_steps"
    assert f"training is complete at step 10; {longer}" in caplog.messages
    assert place.read_bytes() == made
    place.write_bytes(b"damaged")
    fit(config)
    assert place.read_bytes() == made
    assert manifest.read_bytes() == before


def config_of(run_dir: str = "run", **training: Any) -> RunConfig:
    values = copy.deepcopy(CONFIG) | {"run_dir": run_dir}
    values["model"]["dropout"] = 0.0
    rare = dict.fromkeys(("max_steps", "save_every", "validate_every"), 3)
    values["training"] |= {**rare, "log_every": 1, **training}
    return RunConfig.model_validate(values)


def outcome_of(config: RunConfig) -> tuple[list[float], torch.Tensor, str]:
    """Losses of the updates, random numbers after them, and the log."""
    write_corpus(Path())
    fit(config)
    lines = map(json.loads, (config.run_dir / "metrics.jsonl").read_text().splitlines())
    random = load_checkpoint(checkpoint_dir(config.run_dir, 3)).optimizer["random/cpu"]
    log = (config.run_dir / "log.txt").read_text()
    return [line["loss"] for line in lines if line["kind"] == "update"], random, log


@pytest.mark.long
def test_compiled_layers_make_the_same_updates_and_are_recorded(counting: Backend) -> None:
    planned: dict[str, Any] = {"schedule": {"shape": "linear", "peak_lr": 0.003, "warmup_steps": 1}}
    losses, random, log = outcome_of(config_of(compile=True, **planned))
    assert counting.num_graphs == 4
    expected, same_random, other_log = outcome_of(config_of("plain", **planned))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert torch.equal(random, same_random)
    assert ", layers compiled in " in log
    assert "compiled" not in other_log
    assert counting.num_graphs == 4  # on a CPU nothing is compiled unasked
    state = json.loads((checkpoint_dir(Path("run"), 3) / "state.json").read_text())
    assert state["machine"]["compiled"] is True
    longer = outcome_of(config_of(max_steps=4, **planned))[2]
    assert "not bit-exact: compiled: was true, is false" in longer
    for change in ("training.max_steps: was 3, is 4", "training.compile: was true, is auto"):
        assert longer.count(change) == 1  # as a warning or as a note


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_16_bit_training_on_a_cpu_has_few_batch_sizes(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation translates in float32, and updates in 16 bits have sizes rounded up."""
    sizes: list[int] = []
    dtypes: list[torch.dtype] = []
    forward, start = Transformer.forward, Transformer.start

    def counted(model: Transformer, source: Packed, target: Packed) -> torch.Tensor:
        sizes.extend((source.num_tokens % 32, target.num_tokens % 32))
        return forward(model, source, target)

    def started(model: Transformer, *args: Any, **options: Any) -> DecoderState:
        dtypes.append(model.output_weight.dtype)
        return start(model, *args, **options)

    monkeypatch.setattr(Transformer, "forward", counted)
    monkeypatch.setattr(Transformer, "start", started)
    outcome_of(config_of(precision=precision))
    assert any(sizes) == (precision == "float32")
    assert set(dtypes) == {torch.float32}
