"""Models that are evaluated: how they are loaded, and their translations of a test set."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nmt.checkpoint.files import checkpoints_dir
from nmt.checkpoint.model_folder import load_folder_config
from nmt.checkpoint.run import trained_on
from nmt.config.loader import load_config, refuse_idle
from nmt.config.run import RunConfig
from nmt.data.hubs import published_names
from nmt.data.prepared import PreparedData
from nmt.data.word_counts import LineCounts, count_in_training, sum_counts
from nmt.errors import ConfigError
from nmt.extras.analysis.contrastive import ContrastivePair, contrastive_accuracy
from nmt.extras.cleaning.leakage import find_leakage
from nmt.files.atomic import check_place
from nmt.files.lines import is_standard
from nmt.files.progress import progress_bar
from nmt.inference.alignment import Links
from nmt.inference.guard import GuardCounts
from nmt.inference.mbr import Mbr
from nmt.inference.segment import joiner_for
from nmt.metrics.result import ContrastiveAccuracy, System
from nmt.metrics.test_set import EvaluationSet
from nmt.text.tokenizer import load_tokenizers
from nmt.training.html_report import learning_curves, record_evaluation

if TYPE_CHECKING:
    from nmt.inference.scorer import Scorer
    from nmt.inference.translator import Translator

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 10_000
_READ = ("decoding", "data", "source_language", "target_language")
"""Sections of a model's configuration that an evaluation reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """A model, and how it is loaded and searched."""

    folder: Path
    """Run folder or model folder."""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Translator.load`, for example ``checkpoint``."""
    mbr: Mbr | None = None
    """Minimum Bayes risk decoding."""
    overrides: Sequence[str] = ()
    """``key=value`` changes of the model's configuration."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the decoding section to change, for example ``beam_size``."""
    save_hypotheses: Path | None = None
    """Write the translations to this file."""
    tag: str | None = None
    """What sources begin with; that of the test set when None."""

    @property
    def name(self) -> str:
        """The model, with those that translate together with it, in reports."""
        ensemble = self.loading.get("ensemble")
        return " + ".join(map(str, (self.folder, *(ensemble.others if ensemble else ()))))


class EvaluatedModel:
    """A model and its configuration; its weights are loaded with the first translation.

    Args:
        use: Which model, and how.

    Raises:
        ConfigError: A flag or override is wrong.
        CheckpointError: The folder is no model.
    """

    def __init__(self, use: ModelUse) -> None:
        self.use, self.config = use, _load_config(use)
        self._translator: Translator | None = None

    def translate(self, name: str, lines: Sequence[str], tag: str | None = None) -> System:
        """Translate lines.

        Args:
            name: What they are, for messages.
            lines: One sentence each.
            tag: What they begin with, unless the use has a tag.
        """
        translator = self._loaded()
        logger.info("translating %s lines of %s with %s", f"{len(lines):,}", name, self.use.name)
        with progress_bar("translating", unit="lines", total=len(lines)) as bar:
            begin = time.perf_counter()
            own = translator.with_options(progress=bar.update, tag=self.use.tag or tag)
            results = own.translate(lines)
        seconds = time.perf_counter() - begin
        if found := GuardCounts.of(dict(enumerate(results, 1))).message(seconds):
            logger.info("%s", found)
        texts, curves = [result.text for result in results], learning_curves(self.use.folder)
        settings = self._settings(translator)
        return System(self.use.name, texts, settings, results=results, curves=curves)

    def _settings(self, translator: Translator) -> dict[str, str | int | float]:
        """Return how it translates, for reports."""
        found: dict[str, str | int | float] = {
            "engine": translator.engine.name,
            "dtype": translator.engine.dtype,
        }
        if checkpoints_dir(self.use.folder).is_dir():
            found["checkpoint"] = self.use.loading.get("checkpoint", "best")
        decoding, mbr = self.config.decoding, self.use.mbr
        if mbr is not None:
            return found | {"mbr": mbr.utility, "mbr_candidates": mbr.num_candidates}
        return found | {
            "beam_size": decoding.beam_size,
            "length_penalty": decoding.length_penalty,
        }

    def compare(self, pairs: Sequence[ContrastivePair]) -> list[ContrastiveAccuracy]:
        """Score right and wrong translations, with the length normalisation of the search."""
        scorer = self._scorer()
        return list(
            contrastive_accuracy(
                self.use.name, pairs, lambda texts: [x.score for x in scorer.score(texts)]
            )
        )

    def align(self, pairs: Sequence[tuple[str, str]], tag: str | None = None) -> list[Links]:
        """Return links of source and target words of given translations."""
        return self._scorer().align(pairs, tag=self.use.tag or tag)

    def _scorer(self) -> Scorer:
        from nmt.inference.scorer import Scorer  # noqa: PLC0415 - loads torch

        names = ("device", "checkpoint", "threads", "ensemble")
        loading = {name: value for name, value in self.use.loading.items() if name in names}
        return Scorer.load(self.use.folder, **loading)

    @property
    def joiners(self) -> tuple[str, ...]:
        """What stands between two sentences of a line: of the source, of the target."""
        return tuple(map(joiner_for, self.config.languages.values()))

    def training_text(self) -> TrainingText | None:
        """Return what it was trained on, and so the models that it began with, one after another.

        What is gone, or other by now, is left out with a note; None if that is all.
        """
        found: dict[Path, PreparedData | str] = {}
        folder: Path | None = self.use.folder
        while folder is not None and folder not in found:
            found[folder], folder = _trained_on(folder)
        for place, data in found.items():
            if isinstance(data, str):
                text = "the test set is not searched for in the training text of %s: %s"
                logger.info(text, place, data)
        known = [data for data in found.values() if isinstance(data, PreparedData)]
        return TrainingText(known) if known else None

    def release(self) -> None:
        """Let the weights go."""
        self._translator = None

    def _loaded(self) -> Translator:
        if self._translator is None:
            from nmt.inference.translator import Translator  # noqa: PLC0415 - files need no torch

            mbr = self.use.mbr
            if mbr is not None:
                mbr = mbr.of_language(self.config.target_language)
            options = {**self.use.loading} | self.config.decoding.model_dump()
            self._translator = Translator.load(self.use.folder, mbr=mbr, **options)
        return self._translator

    def check_place(self, inputs: Iterable[Path]) -> None:
        """Refuse to save translations where they cannot be, or over something that is read."""
        place, ensemble = self.use.save_hypotheses, self.use.loading.get("ensemble")
        if place is None:
            return
        if is_standard(place):
            raise ConfigError(
                "--save-hypotheses - is standard output, which gets the scores.", fix="Name a file."
            )
        others = ensemble.others if ensemble else ()
        check_place(place, [self.use.folder, *others, *inputs])

    def record(self, chosen: EvaluationSet, system: System) -> None:
        """Have the page of a run show its scores."""
        if self.use.loading.get("ensemble"):
            return
        scores = {score.metric: score.value for score in system.scores}
        checkpoint = self.use.loading.get("checkpoint", "best")
        line = {"test": chosen.name, "checkpoint": checkpoint, "scores": scores}
        record_evaluation(self.use.folder, self.config.name, line | {"sentences": len(chosen)})


class TrainingText:
    """The source side of what a model was trained on.

    Args:
        data: Prepared data of some runs with one vocabulary.
    """

    def __init__(self, data: Sequence[PreparedData]) -> None:
        self._stores = [each.train for each in data]
        self._tokenizer = load_tokenizers(data[0].tokenizer_dir).source

    def __len__(self) -> int:
        return sum(map(len, self._stores))

    def counts(self, source: Sequence[str]) -> list[LineCounts]:
        """Count the words of source lines."""
        found = [count_in_training(store, self._tokenizer, source) for store in self._stores]
        return [sum_counts(line) for line in zip(*found, strict=True)]

    def leaks(self, source: Sequence[str]) -> dict[int, str]:
        """Return which source lines it has, and whether as they are (``exact``) or ``near``."""
        found: dict[int, str] = {}
        with progress_bar("looking for leaks", unit="lines", total=len(self)) as bar:
            for leak in find_leakage(source, self._blocks(bar.update)):
                if found.get(leak.held_out) != "exact":
                    found[leak.held_out] = leak.kind
        return found

    def _blocks(self, progress: Callable[[int], object]) -> Iterator[list[str]]:
        for store in self._stores:
            for start in range(0, len(store), _ROWS_AT_ONCE):
                rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(store)))
                ids, offsets = store.source_ids(rows)
                yield [self._tokenizer.decode(x.tolist()) for x in np.split(ids, offsets[1:-1])]
                progress(len(rows))


def _trained_on(folder: Path) -> tuple[PreparedData | str, Path | None]:
    """Return the prepared data of a model, or why there are none, and what it began with."""
    path = folder / "config.yaml"
    if not path.is_file():
        return "the folder is gone", None
    config = load_config(path)
    data: PreparedData | str
    if trained_on(folder, config):
        data = PreparedData.open(config.prepared_dir)
    elif checkpoints_dir(folder).is_dir():
        data = f"{config.prepared_dir} does not hold that text; nmt prepare {path} makes it again"
    else:
        data = "only a run folder says what that was"
    return data, config.training.start_from


def list_tests(folders: Iterable[Path]) -> list[str]:
    """Return names of test sets: those of the models' configurations, then sacrebleu's."""
    configs = (load_config(folder / "config.yaml") for folder in folders)
    own = dict.fromkeys(name for config in configs for name in (*config.data.test, "valid"))
    return [*own, *published_names()]


def _load_config(model: ModelUse) -> RunConfig:
    """Read the configuration of the model, before anything slow is loaded.

    Decoding flags are overrides of its decoding section, so that they are checked as such.
    """
    load_folder_config(model.folder)  # says what is no model
    flags = [f"decoding.{name}={value}" for name, value in model.decoding.items()]
    # One translation is scored; a beam smaller than the model's n_best is no contradiction here.
    overrides = [*model.overrides, *flags, "decoding.n_best=1"]
    config = load_config(model.folder / "config.yaml", overrides)
    refuse_idle(model.overrides, _READ)
    return config
