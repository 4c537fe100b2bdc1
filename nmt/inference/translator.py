"""Translates lines in four steps: segment, search, check, join.

Read `Translator.finish` first. Each step is a function that processes a list: `segment` is in
`nmt.inference.segment`, `check` is in `nmt.inference.guard`, `search` and `join` are below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nmt.checkpoint.model_folder import load_folder_config
from nmt.config.data import Direction
from nmt.config.loader import change_options
from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError, DataError
from nmt.inference import engine as engines
from nmt.inference.confidence import ConfidenceModel, read_confidence
from nmt.inference.direction import LanguageOptions, Languages, MissingLanguageError, Tags
from nmt.inference.guard import GuardLimits, Output, check
from nmt.inference.request import (
    AlignedSegment,
    Alternative,
    Request,
    Result,
    TokenScore,
    align_words,
    join_alignments,
    score_tokens,
    subwords,
)
from nmt.inference.segment import LONGEST_LINE, Segment, SegmentedLines, joiner_for, segment
from nmt.search.hypothesis import NONE, Hypothesis
from nmt.text.tokenizer import Tokenizers

if TYPE_CHECKING:  # slow to import
    from nmt.inference.mbr import Mbr

_MOST_CHOICES = 256  # Languages and tags of requests in a cache.
_LINE_BREAKS = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationOptions:
    """Options of a translator. They apply to all lines."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    outputs: frozenset[engines.OutputName] = frozenset()
    # Whether requests may have constraints. Not every engine supports them.
    constraints: bool = False
    # Maximum source subwords of a segment. Longer lines are split, translated and joined again.
    # None does not split lines.
    max_length: int | None = 256
    languages: Languages = field(default_factory=Languages)  # Languages of the model.
    # Languages of requests without their own. None: the only languages of the model.
    source_language: str | None = None
    target_language: str | None = None
    tag: str | None = None  # Tag of a domain, or of the target language.
    guard: bool = True  # Whether to check translations: see `nmt.inference.guard`.
    retry: bool = True  # Whether the guard searches again, or only sets `alarms`.
    limits: GuardLimits = field(default_factory=GuardLimits)  # Limits of the guard's alarms.
    confidence: ConfidenceModel | None = None  # Predicts the quality of each translation.
    mbr: Mbr | None = None  # Minimum Bayes risk decoding; None for plain search.
    # Called after each batch with the number of completed lines. It may raise to interrupt.
    progress: Callable[[int], object] = lambda _: None

    @property
    def search(self) -> DecodingConfig:
        """Decoding options of the engine. With MBR they request all candidates."""
        return self.mbr.search_options(self.decoding) if self.mbr else self.decoding

    @property
    def language(self) -> LanguageOptions:
        """Languages and tag of requests without their own."""
        return LanguageOptions(self.source_language, self.target_language, self.tag)

    @property
    def needs(self) -> engines.Needs:
        """Features that the engine must support."""
        return engines.Needs(
            decoding=self.search,
            outputs=self.outputs,
            constraints=self.constraints,
            longest=self.max_length,
        )


_OF_ENGINE = {each.name for each in fields(engines.EngineOptions)}
_OWN = {each.name for each in fields(TranslationOptions)} - {"decoding"}


class Details(NamedTuple):
    """Optional outputs for the best hypothesis of a segment."""

    aligned: AlignedSegment | None = None
    tokens: tuple[TokenScore, ...] = ()


class Translator:
    """Translates text with one model. Immutable: `with_options` returns a changed copy.

    Args:
        engine: A loaded model.
        tokenizers: Source and target tokenizer.
        options: Options for all lines.

    Raises:
        EngineLacksError: The engine does not support an option.
        ConfigError: The model does not have the tag or a language.
    """

    def __init__(
        self, engine: engines.Engine, tokenizers: Tokenizers, options: TranslationOptions
    ) -> None:
        if lacking := engine.lacks(options.needs):
            raise engines.EngineLacksError.of(engine.name, lacking)
        with suppress(MissingLanguageError):  # each request may choose its own
            options.languages.choose(tokenizers, options.language)
        self.engine, self.tokenizers, self.options = engine, tokenizers, options
        self._choose = lru_cache(_MOST_CHOICES)(self._chosen)

    @property
    def direction(self) -> Direction:
        """Languages of requests without their own.

        Raises:
            MissingLanguageError: The model has several languages, and the options choose none.
        """
        return self.options.languages.choose(self.tokenizers, self.options.language).direction

    @classmethod
    def load(cls, folder: Path | str, *, split: bool = True, **options: Any) -> Translator:
        """Load a run or model folder into an engine that supports the options.

        Args:
            folder: A folder that `nmt train`, `nmt average`, `nmt export` or `nmt import` wrote.
            split: Whether to split lines that are longer than the sentences in training. Long lines
                that are not split are often translated badly, and learned positions cannot read
                them.
            options: Fields of `EngineOptions` and `TranslationOptions`, and decoding options:
                ``engine="torch"``, ``outputs={"alignments"}``, ``beam_size=1``.

        Raises:
            ConfigError: An option is unknown or out of bounds, the engine or the device cannot be
                used, or ``split`` is off and the model has a limited number of positions.
            CheckpointError: A file is missing or damaged, or the models of an ensemble do not
                match.
        """
        folder = Path(folder)
        config = load_folder_config(folder)
        engine = engines.EngineOptions(**{x: options.pop(x) for x in _OF_ENGINE & options.keys()})
        wanted = TranslationOptions(
            decoding=config.decoding,
            max_length=config.max_length if split else None,
            languages=Languages.of(config),
            confidence=read_confidence(folder),
        )
        wanted = _changed(wanted, options)
        loaded = engines.choose_engine(folder, engine, wanted.needs)
        if split:  # another model of an ensemble may have a lower limit than the first
            wanted = replace(wanted, max_length=options.get("max_length", loaded.max_length))
        elif (most := loaded.engine.max_positions) is not None:
            fix = "Remove `no_split` (split=False) to cut lines into segments of at most "
            problem = f"{folder} cannot read long lines: the model has {most:,} positions."
            raise ConfigError(problem, fix=f"{fix}{loaded.max_length:,} tokens.")
        return cls(loaded.engine, loaded.tokenizers, wanted)

    def with_options(self, **changes: Any) -> Translator:
        """Return a translator with the same engine and changed options, named as in `load`.

        Raises:
            ConfigError: Options are unknown or out of bounds. The message lists all problems.
            EngineLacksError: The engine does not support an option. Pass the option to `load`,
                which chooses another engine.
        """
        return Translator(self.engine, self.tokenizers, _changed(self.options, changes))

    def translate(self, lines: Iterable[Request | str], first_line: int = 1) -> list[Result]:
        """Translate ``lines``. Results are in the same order.

        Only the first `LONGEST_LINE` characters of a line are translated; a longer line gets the
        alarm ``truncated``. If a line is split into segments, the prefix and the required phrases
        apply to the first segment.

        Args:
            lines: Texts or requests, one sentence each.
            first_line: Number of the first line, for messages.

        Raises:
            DataError: The constraints of a line cannot be met, or its tag is unknown.
            EngineLacksError: The engine does not support constraints. Pass ``constraints=True`` to
                `load`.
            CheckpointError: The model's weights are damaged.
            TypeError: ``lines`` is a string, or contains values of other types than text and
                `Request`.
        """
        results = []
        for number, result in enumerate(self.try_translate(lines, first_line), first_line):
            if isinstance(result, DataError):
                raise DataError(f"Line {number:,}: {result.problem}", fix=result.fix)
            results.append(result)
        return results

    def try_translate(
        self, lines: Iterable[Request | str | DataError], first_line: int = 1
    ) -> list[Result | DataError]:
        """Translate lines as `translate` does, but return errors instead of raising them.

        A line that could not be read may be passed as its `DataError`, which is then returned.
        """
        return self.finish(self.segment(lines, first_line))

    def segment(
        self, lines: Iterable[Request | str | DataError], first_line: int = 1
    ) -> SegmentedLines:
        """Split and encode lines for `finish`. Does not use the model: see `try_translate`."""
        given, kinds = list(lines), (str, Request, DataError)
        if isinstance(lines, str) or not all(isinstance(x, kinds) for x in given):
            raise TypeError("lines must be a list of str, one sentence each")
        unread = {row: x for row, x in enumerate(given) if isinstance(x, DataError)}
        requests = [
            x if isinstance(x, Request) else Request(x if isinstance(x, str) else "") for x in given
        ]
        options = self.options
        if not options.constraints and any(x.is_constrained for x in requests):
            needs = replace(options.needs, constraints=True)
            if lacking := self.engine.lacks(needs):
                raise engines.EngineLacksError.of(self.engine.name, lacking)

        def tags_of(request: Request, has_tag: bool) -> Tags:
            asked = request.source_language, request.target_language, request.tag
            return self._choose(LanguageOptions(*asked), has_tag)

        decoding, longest = options.decoding, options.max_length
        found = segment(requests, self.tokenizers, decoding, longest, tags_of, first_line)
        return replace(found, failures={**found.failures, **unread})

    def _chosen(self, asked: LanguageOptions, has_tag: bool) -> Tags:
        """Return the languages and tags of a request; see `Languages.choose`."""
        options = self.options
        default = LanguageOptions(options.source_language) if has_tag else options.language
        both = zip(asked, default, strict=True)
        chosen = LanguageOptions(*(x if y is None else y for y, x in both))
        return options.languages.choose(self.tokenizers, chosen, has_tag=has_tag)

    def finish(self, lines: SegmentedLines) -> list[Result | DataError]:
        """Translate lines that `segment` returned."""
        options, segments = self.options, lines.segments
        count = _line_counter(lines, options.progress)
        found = self._search(segments, options.decoding, count)
        limits = options.limits if options.guard else None
        again = self._search_again if options.retry else None
        outputs = check(segments, found, self.tokenizers, options.decoding, limits, again)
        count(())
        return join(lines, outputs, self._details(segments, outputs), self._text, options)

    def _search(
        self,
        segments: Sequence[Segment],
        decoding: DecodingConfig,
        finish: Callable[[Sequence[Segment]], object],
    ) -> list[list[Hypothesis]]:
        mbr, vocab_size = self.options.mbr, self.tokenizers.target.vocab_size
        asked = mbr.search_options(decoding) if mbr else decoding
        found = search(self.engine, segments, asked, vocab_size, finish)
        if mbr is None:
            return found
        # The engine returns all candidates: choose the ones of highest expected utility.
        texts = [self.tokenizers.source.decode(segment.ids) for segment in segments]
        pairs, most = zip(found, texts, strict=True), decoding.n_best
        return [mbr.choose(candidates, self._text, most, text) for candidates, text in pairs]

    def _search_again(
        self, segments: Sequence[Segment], changes: Mapping[str, Any]
    ) -> list[list[Hypothesis]]:
        decoding = self.options.decoding.model_copy(update=dict(changes))
        # `progress` is called to allow an interruption. The lines were already counted.
        return self._search(segments, decoding, lambda _: self.options.progress(0))

    def _details(self, segments: Sequence[Segment], outputs: Sequence[Output]) -> list[Details]:
        """Compute the requested optional outputs for the best hypothesis of each segment."""
        wanted, engine = self.options.outputs, self.engine
        details = [Details()] * len(segments)
        if not wanted:
            return details
        source, target = map(subwords, self.tokenizers)
        rows = [row for row, output in enumerate(outputs) if output.hypotheses]
        lengths = [len(segments[row].ids) for row in rows]
        for batch in engine.batches(lengths, self.options.search, len(target)):
            own = [rows[index] for index in batch]
            best = [outputs[row].hypotheses[0].ids for row in own]
            starts = [segments[row].start_ids for row in own]
            targets = [[*start, *ids] for start, ids in zip(starts, best, strict=True)]
            pairs = [segments[row].read_ids for row in own], targets
            if wanted & {"alignments", "attention"}:
                for row, ids, weights in zip(own, best, engine.attention(*pairs), strict=True):
                    words = [source[i] for i in segments[row].ids], [target[i] for i in ids]
                    weights = weights[len(segments[row].start_ids) :]
                    weights = [each[len(segments[row].tag) :] for each in weights]
                    details[row] = Details(align_words(weights, *words))
            if "token_scores" in wanted:
                for row, ids, scores in zip(own, best, engine.token_log_probs(*pairs), strict=True):
                    scores = scores[len(segments[row].start_ids) :]
                    details[row] = details[row]._replace(tokens=score_tokens(target, ids, scores))
        return details

    def _text(self, ids: Sequence[int]) -> str:
        """Decode ids. Line breaks, which byte subwords may spell, become spaces."""
        return _LINE_BREAKS.sub(" ", self.tokenizers.target.decode(ids)).strip()


def _changed(options: TranslationOptions, changes: Mapping[str, Any]) -> TranslationOptions:
    """Set options by name; a name may also be a decoding option."""
    own = {name: changes[name] for name in changes.keys() & _OWN}
    if "outputs" in own:
        own["outputs"] = frozenset(own["outputs"])
    if others := {name: value for name, value in changes.items() if name not in _OWN}:
        own["decoding"] = change_options(options.decoding, others)
    return replace(options, **own)


def _line_counter(
    lines: SegmentedLines, progress: Callable[[int], object]
) -> Callable[[Sequence[Segment]], object]:
    """Return a function that takes finished segments and reports the completed lines."""
    left = Counter(segment.line for segment in lines.segments)
    done = len(lines.requests) - len(left)  # blank and failed lines

    def count(batch: Sequence[Segment]) -> None:
        nonlocal done
        progress(done)
        left.subtract(segment.line for segment in batch)
        # Reported with the next batch; the last lines are reported after the guard has finished.
        done = sum(not left[line] for line in {segment.line for segment in batch})

    return count


def search(
    engine: engines.Engine,
    segments: Sequence[Segment],
    decoding: DecodingConfig,
    vocab_size: int,
    finish: Callable[[Sequence[Segment]], object],
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each segment, best first; an empty list if no output is possible.

    Args:
        engine: A loaded model.
        segments: Segments in any order. They are searched in batches of similar length.
        decoding: Options of the search.
        vocab_size: Size of the target vocabulary.
        finish: Called with the segments of each finished batch. It may raise to interrupt.
    """
    # Longest first, so that workers do not wait for a long batch at the end.
    batches = engine.batches([len(segment.ids) for segment in segments], decoding, vocab_size)[::-1]
    tasks = []
    for batch in batches:
        constraints = [segments[row].constraints for row in batch]
        is_free = all(own == NONE for own in constraints)
        sources = [segments[row].read_ids for row in batch]
        tasks.append(engines.Task(sources, None if is_free else constraints))
    found: list[list[Hypothesis]] = [[] for _ in segments]
    # Close on interruption: workers must not use a model whose training continues.
    with closing(engine.search_all(tasks, decoding)) as results:
        for batch, hypotheses in zip(batches, results, strict=True):
            for row, own in zip(batch, hypotheses, strict=True):
                found[row] = own
            finish([segments[row] for row in batch])
    return found


def join(
    lines: SegmentedLines,
    outputs: Sequence[Output],
    details: Sequence[Details],
    text_of: Callable[[Sequence[int]], str],
    options: TranslationOptions,
) -> list[Result | DataError]:
    """Join the outputs of segments to one result for each line.

    Args:
        lines: Lines with their segments.
        outputs: Hypotheses of each segment.
        details: Optional outputs of each segment.
        text_of: Decodes token ids to text.
        options: Options of the translator.
    """
    rows: list[list[int]] = [[] for _ in lines.requests]
    for row, part in enumerate(lines.segments):
        rows[part.line].append(row)
    results: list[Result | DataError] = []
    for line, (request, own) in enumerate(zip(lines.requests, rows, strict=True)):
        parts = [outputs[row] for row in own]
        if line in lines.failures:
            results.append(lines.failures[line])
        elif not all(part.hypotheses for part in parts):
            problem = "no translation satisfies the prefix, required and forbidden phrases."
            fix = "Remove one or more constraints, or set no_repeat_ngram_size to 0."
            results.append(DataError(problem, fix=fix))
        else:
            found = [details[row] for row in own]
            # Blank lines have no segment, and need no space between segments.
            language = lines.segments[own[0]].target_language if own else ""
            results.append(_result(request.text, parts, found, text_of, language, options))
    return results


def _result(
    source: str,
    parts: Sequence[Output],
    details: Sequence[Details],
    text_of: Callable[[Sequence[int]], str],
    language: str,
    options: TranslationOptions,
) -> Result:
    if len(parts) == 1:
        found = [Alternative(text_of(h.ids), h.score, h.log_prob) for h in parts[0].hypotheses]
    else:  # segments are independent: join the best hypothesis of each
        best = [part.hypotheses[0] for part in parts]
        text = joiner_for(language).join(text_of(each.ids) for each in best)
        score = sum(hypothesis.score for hypothesis in best) / max(1, len(best))
        found = [Alternative(text, score, sum((hypothesis.log_prob for hypothesis in best), 0.0))]
    wanted, is_truncated = options.outputs, bool(parts) and len(source) > LONGEST_LINE
    links, attention = join_alignments([own.aligned for own in details if own.aligned])
    result = Result(
        source,
        found[0].text,
        found[0].score,
        tuple(found) if parts else (),
        # Each alarm once, in order of first occurrence.
        alarms=(
            *(("truncated",) if is_truncated else ()),
            *dict.fromkeys(chain(*(part.alarms for part in parts))),
        ),
        retried=tuple(dict.fromkeys(chain(*(part.retried for part in parts)))),
        alignment=links if "alignments" in wanted else None,
        attention=attention if "attention" in wanted else None,
        log_prob=found[0].log_prob,
        tokens=tuple(chain(*(own.tokens for own in details))) if "token_scores" in wanted else None,
        num_tokens=sum(len(part.hypotheses[0].ids) + 1 for part in parts),
        retry_seconds=sum(part.retry_seconds for part in parts),
    )
    model = options.confidence
    return result if model is None else replace(result, confidence=model.estimate(result))
