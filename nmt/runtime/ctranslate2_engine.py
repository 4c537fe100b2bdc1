"""A CTranslate2 model as an `Engine`. Loads no torch, so that one sentence is translated at once.

The search is CTranslate2's, asked so that it returns what ours would:

- All beams are returned, with EOS, so that a score is our score: CTranslate2 divides by the length
  of what it returns.
- Lengths are limited for a whole batch there and for every sentence here. A sentence with a
  hypothesis at its own limit or beyond is searched again, alone or with others of that limit.
- A hypothesis that reaches its limit is cut off there; here it ends, and pays for EOS.

With short lists, all sentences of a batch may use what one of them may: there the text can depend
on the batch.

What remains: it shares out the probability of padding, BOS and unknown among the others, which in
a trained model is next to nothing; and of more than K hypotheses that finish together it returns K.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from typing_extensions import override

from nmt.config.decoding import DecodingConfig
from nmt.engine import local_rank, own_cores
from nmt.errors import CheckpointError, ConfigError, DeviceError
from nmt.exchange.ctranslate2 import (
    RECORD,
    VOCABULARY_MAP,
    import_ctranslate2,
    not_followed,
)
from nmt.files.json_file import field, read_json
from nmt.runtime.engine import Engine, Request, Task
from nmt.search.hypothesis import (
    Constraints,
    Hypothesis,
    Limits,
    length_penalty,
    limits_of,
    max_finished,
)
from nmt.text import BOS_ID, EOS_ID, PAD_ID

_OUTPUTS = frozenset({"token_scores"})
"""What CTranslate2 tells besides texts and scores. Its attention is of a single head."""
_NO_PENALTY = 1e-30  # 0 would also mean another end of the search
_TOKENS_SCORED = 512  # at once: each takes memory for a whole vocabulary
_IMPOSSIBLE = -1e9  # CTranslate2 has no minus infinity


def lacking(request: Request) -> list[str]:
    """Return what is asked and not on the list of what CTranslate2 has.

    >>> lacking(Request(DecodingConfig(sampling=True), outputs=frozenset({"attention"})))
    ['decoding.sampling true', 'attention']
    """
    found = not_followed(request.options)
    found += ["a prefix or phrases for single lines"] if request.constraints else []
    return found + sorted(request.outputs - _OUTPUTS)


class _Output(NamedTuple):
    """A hypothesis as CTranslate2 returns it; without EOS it was cut off at its limit."""

    row: int
    tokens: list[str]
    log_prob: float


class CTranslate2Engine(Engine):
    """Searches with a converted model.

    Args:
        folder: Where it is, with `RECORD`.
        device: Where to compute.
        threads: CPU threads; CTranslate2's choice when None.

    Raises:
        ConfigError: CTranslate2 is not installed.
        CheckpointError: The model cannot be read.
        DeviceError: There is no such device.
    """

    name = "ctranslate2"

    def __init__(
        self,
        folder: Path,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        threads: int | None = None,
    ) -> None:
        package = import_ctranslate2()
        has_gpu = package.get_cuda_device_count() > 0
        if device == "cuda" and not has_gpu:
            raise DeviceError(
                "CTranslate2 finds no CUDA device.", fix="Use --device cpu, or --device auto."
            )
        place = "cuda" if has_gpu and device != "cpu" else "cpu"
        try:
            record = read_json(folder / RECORD)
            self.dtype = record["quantization"]
            self.max_positions = record["num_positions"]
            self._threads = threads or own_cores()
            # A batch for each thread: its steps are too short to be shared by threads.
            self._model: Any = package.Translator(
                str(folder),
                device=place,
                device_index=local_rank() if place == "cuda" else 0,
                inter_threads=self._threads,
                intra_threads=1,
            )
            self._source_tokens = _vocabulary(folder, "source")
            self._target_tokens = _vocabulary(folder, "target")
        except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
            raise CheckpointError(
                f"{folder} cannot be loaded by CTranslate2: {error}.",
                fix="Export it again: `nmt export RUN --to ctranslate2 -o FOLDER`.",
            ) from error
        self._has_map = (folder / VOCABULARY_MAP).is_file()
        self._ids = {token: index for index, token in enumerate(self._target_tokens)}
        self._never = [[self._target_tokens[index]] for index in (PAD_ID, BOS_ID)]

    @override
    def serving(self, request: Request) -> Engine:
        if refused := lacking(request):
            raise ConfigError(
                f"The CTranslate2 engine does not have {', '.join(refused)}.",
                fix="Leave that out, or translate with the run: --engine torch.",
            )
        if request.options.shortlist and not self._has_map:
            raise ConfigError(
                "decoding.shortlist is on, but the model was converted without short lists.",
                fix="Export it again from a run that has them, or add --no-shortlist.",
            )
        return self

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
        self.serving(Request(options, constraints is not None))
        limits = [limits_of(len(ids), options, self.max_positions) for ids in sources]
        found: list[list[Hypothesis]] = [[] for _ in sources]

        def run(rows: Sequence[int], *, to_the_limit: bool) -> None:
            batch = [sources[row] for row in rows]
            longest = max(limits[row].longest for row in rows)
            together = Limits(limits[rows[0]].shortest, longest)
            outputs = self._run(batch, together, options, to_the_limit=to_the_limit)
            for row, hypotheses in zip(rows, outputs, strict=True):
                found[row] = hypotheses

        for rows in _grouped((limit.shortest, row) for row, limit in enumerate(limits)):
            run(rows, to_the_limit=False)
        at_limit = [
            (limit, row)
            for row, limit in enumerate(limits)
            if any(len(hypothesis.ids) >= limit.longest - 1 for hypothesis in found[row])
        ]
        for rows in _grouped(at_limit):
            run(rows, to_the_limit=True)
        return [hypotheses[: options.n_best] for hypotheses in found]

    def _run(
        self,
        sources: Sequence[Sequence[int]],
        limits: Limits,
        options: DecodingConfig,
        *,
        to_the_limit: bool,
    ) -> list[list[Hypothesis]]:
        """Search a batch with the same limits: all finished hypotheses, best first.

        Args:
            sources: Source ids of each sentence.
            limits: Of all of them.
            options: How to search.
            to_the_limit: They are known to reach their limit. There a whole beam is cut off, which
                crowds out what finished before: so all is returned. It changes no step before.
        """
        texts = self._texts(sources)
        enough = max_finished(options, options.beam_size)
        wanted = min(options.beam_size, enough)
        if to_the_limit and options.beam_size > 1:  # greedy search has one hypothesis
            wanted = enough = enough + options.beam_size
        results = self._model.translate_batch(
            texts,
            beam_size=options.beam_size,
            num_hypotheses=wanted,
            patience=enough / options.beam_size,
            length_penalty=options.length_penalty or _NO_PENALTY,
            min_decoding_length=limits.shortest - 1,
            max_decoding_length=limits.longest - 1,
            max_input_length=0,
            disable_unk=True,
            suppress_sequences=self._never,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            return_end_token=True,
            return_scores=True,
            use_vmap=options.shortlist,
        )
        outputs = [
            _Output(row, tokens, score * len(tokens) ** options.length_penalty)
            for row, result in enumerate(results)
            for tokens, score in zip(result.hypotheses, result.scores, strict=True)
        ]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for output in self._ended(outputs, texts) if to_the_limit else outputs:
            if output.log_prob > _IMPOSSIBLE:  # nor not a number
                found[output.row].append(self._hypothesis(output, options))
        return [sorted(each, key=lambda hypothesis: -hypothesis.score) for each in found]

    def _ended(self, outputs: Iterable[_Output], texts: Sequence[list[str]]) -> Iterator[_Output]:
        """Let outputs that were cut off at their limit pay for their end."""
        cut = []
        for output in outputs:
            if output.tokens[-1] == self._target_tokens[EOS_ID]:
                yield output
            else:
                cut.append(output)
        scores = self._score([texts[each.row] for each in cut], [each.tokens for each in cut])
        for each, (*_, of_eos) in zip(cut, scores, strict=True):
            yield each._replace(log_prob=each.log_prob + of_eos)

    @override
    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        texts = [[self._target_tokens[index] for index in ids] for ids in targets]
        return self._score(self._texts(sources), texts)

    def _texts(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self._source_tokens[index] for index in ids] for ids in sources]

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

    def _hypothesis(self, output: _Output, options: DecodingConfig) -> Hypothesis:
        ids = tuple(self._ids[token] for token in output.tokens)
        ids = ids[:-1] if ids[-1] == EOS_ID else ids
        score = output.log_prob / length_penalty(options)(len(ids) + 1)
        return Hypothesis(ids, output.log_prob, score)


def _vocabulary(folder: Path, side: Literal["source", "target"]) -> list[str]:
    shared = folder / "shared_vocabulary.json"
    path = shared if shared.is_file() else folder / f"{side}_vocabulary.json"
    tokens: list[str] = field(read_json(path), kind=list)
    return tokens


def _grouped(keys: Iterable[tuple[Any, int]]) -> list[list[int]]:
    """Rows of equal keys, in lists of their own."""
    groups: dict[Any, list[int]] = {}
    for key, row in keys:
        groups.setdefault(key, []).append(row)
    return list(groups.values())
