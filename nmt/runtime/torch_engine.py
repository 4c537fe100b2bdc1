"""Our own model and search as an `Engine`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from typing_extensions import override

from nmt.checkpoint.model_folder import SHORTLIST
from nmt.config.decoding import DecodingConfig
from nmt.errors import ConfigError
from nmt.model.transformer import Transformer, evaluating
from nmt.packed import Packed
from nmt.runtime.cuda_graphs import GraphedDecodeToken
from nmt.runtime.engine import Engine, Task
from nmt.runtime.shortlist import BatchVocabulary, Shortlist
from nmt.runtime.stepper import EnsembleStepper, Mixture, ModelStepper
from nmt.runtime.teacher_forcing import forced_log_probs
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.search.loop import Stepper, search
from nmt.text import BOS_ID, EOS_ID


class TorchEngine(Engine):
    """Searches with one model, or with several at once.

    Args:
        models: The model, on its device. It may go on training between two calls. Of several, the
            predictions are averaged.
        mixture: How; left out for one model.
        is_final: Whether no model trains any more: their steps are then prepared to run faster.
        load_shortlist: Called when ``decoding.shortlist`` is first asked for. Without one it is
            refused, or while the model trains all tokens are scored.
    """

    def __init__(
        self,
        *models: Transformer,
        mixture: Mixture | None = None,
        is_final: bool = False,
        load_shortlist: Callable[[], Shortlist | None] = lambda: None,
    ) -> None:
        self._models, self._mixture = models, mixture or Mixture()
        self._load_shortlist, self._is_final = load_shortlist, is_final
        if is_final:
            for model in models:
                model.eval()
        use_graphs = is_final and self._device.type == "cuda"
        self._runs = [GraphedDecodeToken(model) if use_graphs else None for model in models]

    @property
    @override
    def name(self) -> str:
        return "torch"

    @property
    @override
    def dtype(self) -> str:
        return str(self._models[0].output_weight.dtype).removeprefix("torch.")

    @override
    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
    ) -> list[list[Hypothesis]]:
        self._check(options)
        with evaluating(*self._models):
            return self._search(Task(sources, constraints), options)

    @property
    @override
    def num_workers(self) -> int:
        """One for each CPU thread: the steps of a search are too short to be shared by threads."""
        return torch.get_num_threads() if self._device.type == "cpu" else 1

    @override
    def search_all(
        self, tasks: Sequence[Task], options: DecodingConfig
    ) -> Generator[list[list[Hypothesis]], None, None]:
        self._check(options)
        count = min(self.num_workers, len(tasks))
        with evaluating(*self._models):
            if count < 2:
                for task in tasks:
                    yield self._search(task, options)
                return
            # The number of threads is a setting of each thread.
            with ThreadPoolExecutor(
                count, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                # What takes longest comes first: so no thread is left alone with it at the end.
                order = sorted(range(len(tasks)), key=lambda place: -_work(tasks[place]))
                waiting = {
                    place: pool.submit(self._search, tasks[place], options) for place in order
                }
                try:
                    for place in range(len(tasks)):
                        yield waiting[place].result()
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)
                    # What a worker sets, threads that start later begin with.
                    torch.set_num_threads(torch.get_num_threads())

    def _check(self, options: DecodingConfig) -> None:
        if options.shortlist and self._shortlist is None and self._is_final:
            raise ConfigError(
                f"decoding.shortlist is on, but the folder of the model has no {SHORTLIST}.",
                fix="Start `nmt train CONFIG` again: a finished run only writes it. Or add "
                "--no-shortlist.",
            )

    @cached_property
    def _shortlist(self) -> Shortlist | None:
        found = self._load_shortlist()
        return found and found.to(self._device)

    @property
    def _device(self) -> torch.device:
        return self._models[0].output_weight.device

    def _search(self, task: Task, options: DecodingConfig) -> list[list[Hypothesis]]:
        source = Packed.from_rows([[*ids, EOS_ID] for ids in task.sources], self._device)
        with_coverage = options.coverage_penalty > 0
        if not options.shortlist or self._shortlist is None:
            stepper = self._stepper(with_coverage=with_coverage)
            return search(stepper, source, options, task.constraints)
        vocabulary = self._shortlist.pick(source, task.constraints)
        stepper = self._stepper(with_coverage=with_coverage, vocabulary=vocabulary)
        constraints = task.constraints and vocabulary.inside(task.constraints)
        return vocabulary.outside(search(stepper, source, options, constraints))

    @override
    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[list[float]]]:
        source = Packed.from_rows([[*ids, EOS_ID] for ids in sources], self._device)
        target = Packed.from_rows([[BOS_ID, *ids] for ids in targets], self._device)
        found = [model.align(source, target) for model in self._models]
        weights = torch.stack(found).mean(0).cpu()
        return [
            weights[i, : len(target_ids), : len(source_ids)].tolist()
            for i, (source_ids, target_ids) in enumerate(zip(sources, targets, strict=True))
        ]

    @override
    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        with evaluating(*self._models):
            pairs = list(zip(sources, targets, strict=True))
            return forced_log_probs(self._models, self._mixture, pairs)

    def _stepper(
        self, *, with_coverage: bool, vocabulary: BatchVocabulary | None = None
    ) -> Stepper[Any]:
        steppers = [
            ModelStepper(model, run, with_coverage=with_coverage, vocabulary=vocabulary)
            for model, run in zip(self._models, self._runs, strict=True)
        ]
        return steppers[0] if len(steppers) == 1 else EnsembleStepper(steppers, self._mixture)


def _work(task: Task) -> int:
    """About how long a task takes: steps times sentences."""
    return len(task.sources) * max(map(len, task.sources), default=0)
