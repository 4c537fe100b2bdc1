"""A CTranslate2 model as an `Engine`. Loads no torch, so that one sentence is translated at once.

The search is CTranslate2's, asked so that it returns what ours would:

- All beams are returned, with EOS, so that a score is our score: CTranslate2 divides by the length
  of what it returns.
- Lengths are limited for a whole batch there and for every sentence here. A sentence with a
  hypothesis beyond its own limit is searched again, alone or with others of that limit.
- A hypothesis that reaches its limit is cut off there; here it ends, and pays for EOS.

What remains: it shares out the probability of tokens that may not come among the others, and of
more than K finished hypotheses it returns K. In a trained model both are next to nothing, unless
likely tokens are forbidden (``min_length_factor``, ``no_repeat_ngram_size``).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from typing_extensions import override

from nmt.checkpoint.model_folder import load_folder_config, load_folder_tokenizers
from nmt.config.decoding import DecodingConfig
from nmt.engine import local_rank, own_cores
from nmt.errors import CheckpointError, ConfigError, DeviceError
from nmt.exchange.ctranslate2_package import import_ctranslate2
from nmt.files.manifest import Manifest
from nmt.runtime.engine import CTRANSLATE2_RECORD, Engine, LoadedEngine, Task
from nmt.runtime.ensemble import Ensemble
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis, Limits, length_penalty, limits_of, max_finished
from nmt.text import BOS_ID, EOS_ID, PAD_ID

_KNOWN = {
    "beam_size", "n_best", "length_penalty", "length_penalty_form", "max_length_factor",
    "max_length_offset", "min_length_factor", "batch_tokens", "patience", "no_repeat_ngram_size",
    "seed", "diverse_beam_strength", "prefix_bias_beta",
}  # fmt: skip
"""Decoding options that this engine follows, or that mean nothing without one that it refuses; the
others must have their defaults. One of them is ``coverage_penalty``: CTranslate2's counts what a
single head of the last layer reads, ours the mean of many."""
_NO_PENALTY = 1e-30  # 0 would also mean another end of the search
_TOKENS_SCORED = 512  # at once: each takes memory for a whole vocabulary
_IMPOSSIBLE = -1e9  # CTranslate2 has no minus infinity


class _Cut(NamedTuple):
    """A hypothesis that has reached its limit without EOS."""

    row: int
    tokens: list[str]
    log_prob: float


class CTranslate2Engine(Engine):
    """Searches with an exported model.

    Args:
        folder: Where it is.
        num_positions: Positions it knows; any number when None. The longest output ends there.
        device: Where to compute.
        threads: CPU threads; CTranslate2's choice when None.

    Raises:
        ConfigError: CTranslate2 is not installed.
        CheckpointError: The model cannot be read.
        DeviceError: There is no such device.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_positions: int | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        threads: int | None = None,
    ) -> None:
        package = import_ctranslate2()
        has_gpu = package.get_cuda_device_count() > 0
        if device == "cuda" and not has_gpu:
            raise DeviceError(
                "CTranslate2 finds no CUDA device.", fix="Use --device cpu, or --device auto."
            )
        try:
            self._threads = threads or own_cores()
            # A batch for each thread: its steps are too short to be shared by threads.
            self._model: Any = package.Translator(
                str(folder),
                device=device,
                device_index=local_rank() if has_gpu and device != "cpu" else 0,
                inter_threads=self._threads,
                intra_threads=1,
            )
            self._source_tokens = _vocabulary(folder, "source")
            self._target_tokens = _vocabulary(folder, "target")
        except (RuntimeError, ValueError, OSError) as error:
            raise CheckpointError(
                f"{folder} cannot be loaded by CTranslate2: {error}.",
                fix="Export it again: `nmt export RUN --to ctranslate2 -o FOLDER`.",
            ) from error
        self._ids = {token: index for index, token in enumerate(self._target_tokens)}
        self._never = [[self._target_tokens[index]] for index in (PAD_ID, BOS_ID)]
        self._num_positions = num_positions

    @property
    @override
    def num_workers(self) -> int:
        return self._threads if self._model.device == "cpu" else 1

    @override
    def search_all(
        self, tasks: Sequence[Task], options: DecodingConfig
    ) -> Generator[list[list[Hypothesis]], None, None]:
        with ThreadPoolExecutor(max(1, min(self.num_workers, len(tasks)))) as pool:
            waiting = [
                pool.submit(self.search, task.sources, options, task.constraints) for task in tasks
            ]
            try:
                for future in waiting:
                    yield future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    @override
    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
    ) -> list[list[Hypothesis]]:
        _check_options(options, constraints)
        limits = [self._limits(len(ids), options) for ids in sources]
        found: list[list[Hypothesis]] = [[] for _ in sources]

        def run(rows: Sequence[int]) -> None:
            batch = [sources[row] for row in rows]
            longest = max(limits[row].longest for row in rows)
            together = Limits(limits[rows[0]].shortest, longest)
            for row, hypotheses in zip(rows, self._run(batch, together, options), strict=True):
                found[row] = hypotheses

        for rows in _grouped((limit.shortest, row) for row, limit in enumerate(limits)):
            run(rows)
        over = [
            (limit, row)
            for row, limit in enumerate(limits)
            if any(len(hypothesis.ids) >= limit.longest for hypothesis in found[row])
        ]
        for rows in _grouped(over):
            run(rows)
        return [hypotheses[: options.n_best] for hypotheses in found]

    def _limits(self, num_tokens: int, options: DecodingConfig) -> Limits:
        """Return the limits of an output, which ends with the table of positions if not before."""
        shortest, longest = limits_of(num_tokens, options)
        if self._num_positions is not None:
            longest = min(longest, self._num_positions)
        return Limits(min(shortest, longest), longest)

    def _run(
        self, sources: Sequence[Sequence[int]], limits: Limits, options: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """Search a batch with the same limits: all finished hypotheses, best first."""
        texts = [[self._source_tokens[index] for index in ids] for ids in sources]
        until = max_finished(options, options.beam_size)
        results = self._model.translate_batch(
            texts,
            beam_size=options.beam_size,
            num_hypotheses=min(options.beam_size, until),
            patience=until / options.beam_size,
            length_penalty=options.length_penalty or _NO_PENALTY,
            min_decoding_length=limits.shortest - 1,
            max_decoding_length=limits.longest - 1,
            max_input_length=0,
            disable_unk=True,
            suppress_sequences=self._never,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            return_end_token=True,
            return_scores=True,
        )
        eos = self._target_tokens[EOS_ID]
        cut: list[_Cut] = []
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for row, result in enumerate(results):
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                log_prob = score * len(tokens) ** options.length_penalty
                if not log_prob > _IMPOSSIBLE:  # nor a number
                    continue
                if tokens[-1] == eos:
                    found[row].append(self._hypothesis(tokens[:-1], log_prob, options))
                else:
                    cut.append(_Cut(row, tokens, log_prob))
        scores = self._score([texts[each.row] for each in cut], [each.tokens for each in cut])
        for each, (*_, of_eos) in zip(cut, scores, strict=True):
            ended = self._hypothesis(each.tokens, each.log_prob + of_eos, options)
            found[each.row].append(ended)
        return [sorted(each, key=lambda hypothesis: -hypothesis.score) for each in found]

    @override
    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        return self._score(
            [[self._source_tokens[index] for index in ids] for ids in sources],
            [[self._target_tokens[index] for index in ids] for ids in targets],
        )

    def _score(
        self, sources: Sequence[list[str]], targets: Sequence[list[str]]
    ) -> list[list[float]]:
        """Log probability of every token of each target, and of EOS."""
        if not sources:
            return []
        results = self._model.score_batch(
            sources,
            targets,
            max_input_length=0,
            max_batch_size=_TOKENS_SCORED,
            batch_type="tokens",
        )
        return [list(result.log_probs) for result in results]

    def _hypothesis(
        self, tokens: Sequence[str], log_prob: float, options: DecodingConfig
    ) -> Hypothesis:
        ids = tuple(self._ids[token] for token in tokens)
        return Hypothesis(ids, log_prob, log_prob / length_penalty(options)(len(ids) + 1))


def load_ctranslate2_engine(
    folder: Path,
    *,
    device: Literal["auto", "cpu", "cuda"],
    threads: int | None,
    ensemble: Ensemble | None = None,
) -> LoadedEngine:
    """Load what `nmt export --to ctranslate2` wrote.

    Raises:
        CheckpointError: A part is missing or damaged.
        ConfigError: CTranslate2 is not installed, or other models shall join.
        DeviceError: There is no such device.
    """
    if ensemble is not None and ensemble.others:
        raise ConfigError(
            f"{folder} is exported to CTranslate2 and cannot translate together with others.",
            fix="Use the run it was exported from.",
        )
    Manifest.read(folder).verify(folder)
    record = json.loads((folder / CTRANSLATE2_RECORD).read_text(encoding="utf-8"))
    engine = CTranslate2Engine(
        folder, num_positions=record["num_positions"], device=device, threads=threads
    )
    tokenizers = load_folder_tokenizers(folder)
    shortlist = ShortlistFile(folder, tokenizers.vocab_sizes)
    return LoadedEngine(engine, load_folder_config(folder), tokenizers, shortlist)


def _vocabulary(folder: Path, side: Literal["source", "target"]) -> list[str]:
    shared = folder / "shared_vocabulary.json"
    path = shared if shared.is_file() else folder / f"{side}_vocabulary.json"
    tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return tokens


def not_followed(options: DecodingConfig) -> list[str]:
    """Return name and value of the options that CTranslate2 has no counterpart for."""
    return [
        f"{name} {json.dumps(getattr(options, name))}"
        for name, field in type(options).model_fields.items()
        if name not in _KNOWN and getattr(options, name) != field.default
    ]


def followed(options: DecodingConfig) -> DecodingConfig:
    """Return ``options`` without those of `not_followed`."""
    single = options.sampling or options.return_alternatives  # n_best may then be any number
    kept = _KNOWN - {"n_best"} if single else _KNOWN
    return DecodingConfig(**options.model_dump(include=kept))


def _check_options(options: DecodingConfig, constraints: Sequence[Constraints] | None) -> None:
    refused = not_followed(options)
    if constraints is not None:
        refused.append("a prefix or phrases for single lines")
    if refused:
        raise ConfigError(
            f"A model exported to CTranslate2 cannot be searched with {', '.join(refused)}.",
            fix="Leave that out, or use the run it was exported from.",
        )


def _grouped(keys: Iterable[tuple[Any, int]]) -> list[list[int]]:
    """Rows of equal keys, in lists of their own."""
    groups: dict[Any, list[int]] = {}
    for key, row in keys:
        groups.setdefault(key, []).append(row)
    return list(groups.values())
