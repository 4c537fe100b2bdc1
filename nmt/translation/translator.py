"""Lines -> translations: tokenize, sort, batch, search, detokenize, restore the order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

from nmt.config.decoding import DecodingConfig
from nmt.config.keys import find_problems
from nmt.errors import ConfigError
from nmt.runtime.engine import (
    Engine,
    EngineChoice,
    EngineOptions,
    Ensemble,
    Request,
    parse_dtype,
)
from nmt.runtime.loading import load_engine
from nmt.search.hypothesis import NONE, Constraints, Hypothesis
from nmt.text.tokenizer import Tokenizers
from nmt.translation.constraints import Phrases, check_outputs, constrain, encode_constraints
from nmt.translation.guard import Alarm, Guard, GuardOutcome, SourceCoverage, read_thresholds
from nmt.translation.result import (
    Alternative,
    TranslationResult,
    align_words,
    join_alignments,
    score_tokens,
    subwords,
)
from nmt.translation.segment import (
    Segment,
    batch_by_length,
    group_by_line,
    joiner_for,
    make_task,
    max_batch_rows,
    segment_lines,
    truncate,
)

if TYPE_CHECKING:  # its metrics take time to load
    from nmt.translation.mbr import Mbr

_LINE_BREAKS = re.compile(r"[\r\n]+")
_LINES_AT_ONCE = 2000

_Value = TypeVar("_Value")
_Ids = Sequence[Sequence[int]]


class Translator:
    """Translates text with one model.

    Args:
        engine: The model, and how it is searched.
        tokenizers: Of both languages.
        options: How to search.
        max_length: Most source subwords at once; longer lines are cut, translated and joined.
        joiner: What joins the parts.
        check: Called between batches; may raise to interrupt.
        guard: Retries outputs that look wrong. All are taken as they are when None.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: Tokenizers,
        options: DecodingConfig,
        *,
        max_length: int = 256,
        joiner: str = " ",
        check: Callable[[], None] = lambda: None,
        guard: Guard | None = None,
    ) -> None:
        self.options = options
        self._engine, self._tokenizers = engine, tokenizers
        self._max_length, self._joiner = max_length, joiner
        self._check, self._guard = check, guard
        self._mbr: Mbr | None = None

    @classmethod
    def load(  # noqa: PLR0913 - the choices that a user has
        cls,
        folder: Path | str,
        *,
        engine: EngineChoice = "auto",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        checkpoint: str = "best",
        threads: int | None = None,
        ensemble: Ensemble | None = None,
        guard: bool = True,
        dtype: str = "auto",
        prepare: bool = True,
    ) -> Translator:
        """Load a run or model folder.

        Args:
            folder: What `nmt train`, `nmt average` or `nmt export` wrote.
            engine: What computes: ``torch``, ``ctranslate2``, or ``auto``: CTranslate2 on a CPU
                where it is installed and has all that is asked for, otherwise torch.
            device: Where to compute.
            checkpoint: ``best``, ``last``, ``step-N`` or ``average``.
            threads: CPU threads; the engine's choice when None.
            ensemble: Models that translate together with the one in ``folder``.
            guard: Retry translations that look wrong.
            dtype: What the weights are kept and multiplied in: ``float32``, ``float16`` on GPUs,
                ``bfloat16``, or ``int8``, which needs CTranslate2; ``auto`` is float32. An exported
                model has the one of its export.
            prepare: Load the weights now, into the engine that the model's own decoding options
                need; otherwise with the first request.

        Raises:
            ConfigError: The engine or the device does not go with it.
            CheckpointError: A part is missing or damaged, or the models do not go together.
        """
        folder = Path(folder)
        options = EngineOptions(
            engine=engine, device=device, dtype=parse_dtype(dtype), checkpoint=checkpoint,
            threads=threads, ensemble=ensemble,
        )  # fmt: skip
        loaded = load_engine(folder, options)
        config, guardian = loaded.config, None
        if guard:
            guardian = Guard(
                read_thresholds(folder),
                loaded.tokenizers,
                lambda: SourceCoverage.load(loaded.shortlist),
            )
        translator = cls(
            loaded.engine,
            loaded.tokenizers,
            config.decoding,
            max_length=config.filters.max_length,
            joiner=joiner_for(config.target_language),
            guard=guardian,
        )
        if prepare:
            translator.prepare()
        return translator

    def prepare(self, outputs: Iterable[str] = ()) -> None:
        """Load the engine for such requests now, so that faults are found before the first.

        Args:
            outputs: Of ``alignments``, ``attention`` and ``token_scores`` those to be asked for.
        """
        self._engine.serving(Request(self._search_options, outputs=frozenset(outputs)))

    @property
    def engine(self) -> Engine:
        """What translates with the translator's options."""
        return self._engine.serving(Request(self._search_options))

    def with_options(self, **changes: Any) -> Translator:
        """Return a translator of the same model with other decoding options.

        Raises:
            ConfigError: An option is unknown or out of bounds. Lists every problem.
        """
        changed = copy(self)
        changed.options = change_options(self.options, changes)
        return changed

    def with_mbr(self, mbr: Mbr) -> Translator:
        """Return a translator by minimum Bayes risk: the candidate most like all others.

        Of several translations of a line the best comes first: by the candidates, not by score.
        """
        changed = copy(self)
        changed._mbr = mbr
        return changed

    def translate_stream(
        self, lines: Iterable[str], lines_at_once: int = _LINES_AT_ONCE, **options: Any
    ) -> Iterator[TranslationResult]:
        """Translate any number of lines in order, a chunk at a time.

        Args:
            lines: One sentence each.
            lines_at_once: Lines of a chunk: more are faster; 1 answers each before it reads on.
            options: As of `translate`, for all lines alike.
        """
        first_line = options.pop("first_line", 1)
        chunk: list[str] = []
        for line in lines:
            chunk.append(line)
            if len(chunk) >= lines_at_once:
                yield from self.translate(chunk, first_line=first_line, **options)
                first_line += len(chunk)
                chunk = []
        yield from self.translate(chunk, first_line=first_line, **options)

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Sequence[str] | None = None,
        required: Phrases | None = None,
        forbidden: Phrases | None = None,
        alignments: bool = False,
        attention: bool = False,
        token_scores: bool = False,
        first_line: int = 1,
        **changes: Any,
    ) -> list[TranslationResult]:
        """Translate ``lines``; results come in the same order.

        A line of more than `LONGEST_LINE` characters is translated up to there, and has the alarm
        ``truncated``. Of a line with more subwords than the model reads at once, the first segment
        gets prefix and required phrases. Phrases are compared as subwords: the same text in other
        subwords is another phrase.

        Args:
            lines: One sentence each.
            prefixes: What each translation begins with; with ``prefix_bias_beta``, is biased to.
            required: Phrases that each translation contains.
            forbidden: Phrases that it does not contain.
            alignments: Add word alignments.
            attention: Add the attention of each target word to each source word.
            token_scores: Add the model's probability of each token, before any rule of the search.
            first_line: The number of the first line in messages.
            changes: Decoding options that differ from the translator's, for example beam_size=1.

        Raises:
            ConfigError: An option is unknown or out of bounds, or the engine lacks it.
            DataError: A line's constraints cannot be met.
            CheckpointError: The model's weights are broken.
            TypeError: The lines are a single text, or no texts.
        """
        texts = list(lines)
        if isinstance(lines, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError("lines are a list of str, one sentence each")
        translator = self.with_options(**changes) if changes else self
        constraints = None
        if any((prefixes, required, forbidden)):
            constraints = list(
                encode_constraints(
                    self._tokenizers.target, len(texts), prefixes, required, forbidden
                )
            )
        details = {"alignments": alignments, "attention": attention, "token_scores": token_scores}
        wanted = frozenset(name for name, is_wanted in details.items() if is_wanted)
        is_constrained = any(own != NONE for own in constraints or ())
        request = Request(translator._search_options, constraints=is_constrained, outputs=wanted)
        served = copy(translator)
        served._engine = self._engine.serving(request)
        return served._translate(texts, constraints, wanted, first_line)

    def _translate(
        self,
        texts: Sequence[str],
        constraints: Iterable[Constraints] | None,
        wanted: frozenset[str],
        first_line: int,
    ) -> list[TranslationResult]:
        shortened, longer = truncate(texts, first_line)
        segments = segment_lines(shortened, self._tokenizers.source, self._max_length, first_line)
        if constraints is not None:
            segments = constrain(
                segments,
                constraints,
                self.options,
                longest_output=self._longest_output,
                first_line=first_line,
            )
        found = self._search(segments)
        check_outputs(segments, found, first_line)
        outcomes = self._retry(segments, found)
        by_line = group_by_line(segments, zip(found, outcomes, strict=True), len(texts))
        results = [
            self._result(text, outputs, is_truncated=line in longer)
            for line, (text, outputs) in enumerate(zip(texts, by_line, strict=True))
        ]
        best = [outputs[0].ids for outputs in found]
        return self._add_details(results, wanted, segments, best) if wanted else results

    def _add_details(
        self,
        results: Sequence[TranslationResult],
        wanted: frozenset[str],
        segments: Sequence[Segment],
        ids: _Ids,
    ) -> list[TranslationResult]:
        """Return the results of all lines with what is wanted of the best output of each segment.

        Raises:
            ConfigError: The engine cannot compute that.
        """
        detailed = list(results)
        pieces = subwords(self._tokenizers.target)
        if wanted & {"alignments", "attention"}:
            of_source = subwords(self._tokenizers.source)
            attention = self._read_outputs(self._engine.attention, segments, ids)
            aligned = [
                align_words(weights, [of_source[i] for i in segment.ids], [pieces[i] for i in own])
                for weights, segment, own in zip(attention, segments, ids, strict=True)
            ]
            for line, parts in enumerate(group_by_line(segments, aligned, len(results))):
                links, matrix = join_alignments(parts)
                detailed[line] = replace(
                    detailed[line],
                    alignment=links if "alignments" in wanted else None,
                    attention=matrix if "attention" in wanted else None,
                )
        if "token_scores" in wanted:
            log_probs = self._read_outputs(self._engine.token_log_probs, segments, ids)
            tokens = [score_tokens(pieces, *pair) for pair in zip(ids, log_probs, strict=True)]
            for line, scored in enumerate(group_by_line(segments, tokens, len(results))):
                detailed[line] = replace(detailed[line], tokens=tuple(chain(*scored)))
        return detailed

    def _read_outputs(
        self, read: Callable[[_Ids, _Ids], Sequence[_Value]], segments: Sequence[Segment], ids: _Ids
    ) -> list[_Value]:
        """Return what the engine's ``read`` says of the source and target ids of each segment."""
        found: dict[int, _Value] = {}
        for rows in self._batches(segments):
            sources, targets = [segments[row].ids for row in rows], [ids[row] for row in rows]
            found.update(zip(rows, read(sources, targets), strict=True))
        return [found[row] for row in range(len(segments))]

    def _search(self, segments: Sequence[Segment]) -> list[list[Hypothesis]]:
        """Find the n best of each segment; none where there is no output."""
        found: list[list[Hypothesis]] = [[] for _ in segments]
        options, mbr = self._search_options, self._mbr
        # The longest first: the last to be done is then a short one.
        batches = list(self._batches(segments))[::-1]
        tasks = [make_task([segments[row] for row in rows]) for rows in batches]
        # Closed at once when interrupted: no worker may go on with a model that trains again.
        with closing(self._engine.search_all(tasks, options)) as results:
            for rows, hypotheses in zip(batches, results, strict=True):
                self._check()
                for row, best in zip(rows, hypotheses, strict=True):
                    found[row] = mbr.choose(best, self._text, self.options.n_best) if mbr else best
        return found

    @property
    def _longest_output(self) -> int:
        """Most tokens of any output without constraints."""
        options = self.options
        return int(options.max_length_factor * self._max_length + options.max_length_offset)

    @property
    def _search_options(self) -> DecodingConfig:
        """What the engine is asked for: with MBR more than what comes out."""
        return self._mbr.search_options(self.options) if self._mbr else self.options

    def _batches(self, segments: Sequence[Segment]) -> Iterator[list[int]]:
        """Rows of like length that the engine takes at once."""
        return batch_by_length(
            [len(segment.ids) for segment in segments],
            max_tokens=self.options.batch_tokens,
            max_rows=max_batch_rows(
                self._search_options.num_hypotheses,
                self._tokenizers.target.vocab_size,
                self._engine.num_workers,
            ),
        )

    def _retry(
        self, segments: Sequence[Segment], found: list[list[Hypothesis]]
    ) -> list[GuardOutcome]:
        """Replace outputs that raise alarms where a stricter search finds better ones."""
        if self._guard is None:
            return [GuardOutcome()] * len(segments)

        def search_again(rows: Sequence[int], changes: Mapping[str, Any]) -> list[list[Hypothesis]]:
            return self.with_options(**changes)._search([segments[row] for row in rows])

        sources = [segment.ids for segment in segments]
        return self._guard.retry(sources, found, self.options, search_again)

    def _result(
        self,
        source: str,
        outputs: Sequence[tuple[Sequence[Hypothesis], GuardOutcome]],
        *,
        is_truncated: bool,
    ) -> TranslationResult:
        """Join what was found for the independent segments of a line: the best of each."""
        if not outputs:
            return TranslationResult(source, "", 0.0)
        found = [[Alternative(self._text(h.ids), h.score) for h in own] for own, _ in outputs]
        alternatives = found[0]
        if len(found) > 1:
            text = self._joiner.join(best.text for best, *_ in found)
            alternatives = [Alternative(text, sum(best.score for best, *_ in found) / len(found))]
        truncated: tuple[Alarm, ...] = ("truncated",) if is_truncated else ()
        return TranslationResult(
            source,
            alternatives[0].text,
            alternatives[0].score,
            tuple(alternatives) if self.options.n_best > 1 else (),
            # Every alarm once, in the order of the first ones.
            alarms=(*truncated, *dict.fromkeys(chain(*(own.alarms for _, own in outputs)))),
            retried=tuple(dict.fromkeys(chain(*(own.retried for _, own in outputs)))),
        )

    def _text(self, ids: Sequence[int]) -> str:
        """Decode; byte pieces may spell line breaks, which would break the line count."""
        return _LINE_BREAKS.sub(" ", self._tokenizers.target.decode(ids)).strip()


def change_options(options: DecodingConfig, changes: Mapping[str, Any]) -> DecodingConfig:
    """Return ``options`` with ``changes``.

    Raises:
        ConfigError: An option is unknown or out of bounds. Lists every problem.
    """
    try:
        return DecodingConfig.model_validate({**options.model_dump(), **changes})
    except ValidationError as error:
        problems = "\n  ".join(text for _, text in find_problems(error))
        raise ConfigError(
            f"Decoding options: {problems}.",
            fix="Correct them; section decoding of `nmt config schema` describes each.",
        ) from error
