"""Translates lines in four steps: segment, search, check, join.

Read `Translator.finish` first. Each step processes a list: segmenting is in
`nmt.inference.segment`, checking in `nmt.inference.guard`, searching and joining are below.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from nmt.checkpoint.model_folder import load_folder_config, read_profiles
from nmt.config.data import ANNOTATION, PLACEHOLDER, Direction
from nmt.config.loader import change_options
from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError, DataError
from nmt.inference.confidence import ConfidenceModel, read_confidence
from nmt.inference.direction import (
    UNSET,
    LanguageOptions,
    Languages,
    MissingLanguageError,
    Tags,
)
from nmt.inference.engine import (
    Engine,
    EngineLacksError,
    EngineOptions,
    Needs,
    OutputName,
    SearchTask,
    choose_engine,
)
from nmt.inference.glossary import Glossary, insert_terms
from nmt.inference.guard import Guard, GuardLimits, Output, text_alarms
from nmt.inference.placeholders import links_of_words
from nmt.inference.request import (
    Alternative,
    Request,
    Result,
    align_words,
    each_once,
    join_alignments,
    join_results,
    score_tokens,
    strong_links,
)
from nmt.inference.segment import (
    LONGEST_LINE,
    Segment,
    SegmentedLines,
    Sentence,
    bounded,
    segment,
)
from nmt.registry import chosen
from nmt.search.hypothesis import NONE, Ids, NBestLists, contains
from nmt.text.identification import NO_PROFILES, LanguageProfiles
from nmt.text.tokenizer import TAGS_SHOWN, Tokenizers

if TYPE_CHECKING:  # slow to import
    from nmt.inference.mbr import Mbr

logger = logging.getLogger(__name__)
_MAX_CHOICES = 256  # Languages and tags of requests in a cache.
_LINE_BREAKS = re.compile(r"[\r\n]+")
_NOT_LINES = "lines must be a list of str"


@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """Options of a translator. They apply to all lines."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    outputs: frozenset[OutputName] = frozenset()
    # Whether requests may have constraints. Not every engine supports them.
    constraints: bool = False
    # Maximum source subwords of a segment. Longer lines are split, translated and joined again.
    # None does not split lines.
    max_length: int | None = 256
    # Lines with more sentences are split into their sentences. None does not split them.
    max_sentences: int | None = None
    # Lines of several sentences that are longer are split, too, if the limit above is not None.
    max_characters: int | None = None
    languages: Languages = field(default_factory=Languages)  # Languages of the model.
    # Languages of requests without their own. None: the only languages of the model.
    source_language: str | None = None
    target_language: str | None = None
    tag: str | None = None  # Tag of a domain, or of the target language.
    # Whether a model that has learned a symbol for placeholders reads it. Off, or without a second
    # search, placeholders are taken out of the text.
    symbols: bool = True
    guard: bool = True  # Whether to check translations: see `nmt.inference.guard`.
    retry: bool = True  # Whether the guard searches again, or only sets `alarms`.
    limits: GuardLimits = field(default_factory=GuardLimits)  # Limits of the guard's alarms.
    confidence: ConfidenceModel | None = None  # Predicts the quality of each translation.
    # Whether sentences in capitals are translated in lower case and capitalized again. None: the
    # model has not been tested; they are translated as they are and get the alarm ``capitals``.
    lower_capitals: bool | None = None
    # To recognize the languages of the model without loading py3langid.
    profiles: LanguageProfiles = NO_PROFILES
    glossary: Glossary | None = None  # Terms of requests without a glossary.
    mbr: Mbr | None = None  # Minimum Bayes risk decoding; None for plain search.
    # Called after each batch with the number of completed lines. It may raise to interrupt.
    progress: Callable[[int], object] = lambda _: None

    @property
    def engine_decoding(self) -> DecodingConfig:
        """Decoding options of the engine. With MBR they request all candidates."""
        if self.mbr is None:
            return self.decoding
        return self.mbr.search_options(self.decoding)

    @property
    def needs(self) -> Needs:
        """Features that the engine must support."""
        return Needs(
            decoding=self.engine_decoding,
            outputs=self.outputs,
            constraints=self.constraints,
            longest=self.max_length,
        )


# Names of options. Decoding options are set by their own names, not by ``decoding``.
_ENGINE_OPTIONS = {option.name for option in fields(EngineOptions)}
_TRANSLATION_OPTIONS = {option.name for option in fields(TranslationOptions)} - {"decoding"}
Line = Request | str | DataError  # An error stands for a line that could not be read.
LineResults = list[Result | DataError]  # An error stands for a line without a translation.
# Takes the segments of a finished batch. It may raise to interrupt.
OnBatch = Callable[[Sequence[Segment]], object]


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

    def __new__(cls, *parts: Any, **_: Any) -> Self:
        """Create a translator; a folder alone is refused."""
        if len(parts) == 1:
            raise ConfigError(
                "nmt.Translator takes a loaded model.", fix="Call nmt.Translator.load(FOLDER)."
            )
        return super().__new__(cls)

    def __init__(self, engine: Engine, tokenizers: Tokenizers, options: TranslationOptions) -> None:
        engine.require(options.needs)
        self.engine = engine
        self.tokenizers = tokenizers
        self.options = options
        # The cache belongs to this object: a cache of the class would keep all models alive.
        self._choose_tags = lru_cache(_MAX_CHOICES)(self._tags_of)
        # Check tag and languages now. If a language is missing, each request may choose its own.
        with suppress(MissingLanguageError):
            _ = self.direction

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: each copy would load the model again, unnoticed."""
        raise ConfigError(
            "A translator cannot be copied to another process.",
            fix="Call nmt.Translator.load(FOLDER) once in each process.",
        )

    @property
    def direction(self) -> Direction:
        """Languages of requests without their own.

        Raises:
            MissingLanguageError: The model has several languages, and the options choose none.
        """
        return self._choose_tags(UNSET, False).direction

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        split: bool = True,
        sentences: Literal["auto", "split", "keep"] = "auto",
        **options: Any,
    ) -> Translator:
        """Load a run or model folder into an engine that supports the options.

        Args:
            folder: A folder that `nmt train`, `nmt average`, `nmt export` or `nmt import` wrote.
            split: Whether to split lines that are longer than the sentences in training. Long lines
                that are not split are often translated badly, and learned positions cannot read
                them.
            sentences: Whether to split lines into sentences: lines that have more than the lines of
                training or are longer (``auto``), all lines with several (``split``), or none
                (``keep``).
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
        engine_options = {name: options.pop(name) for name in _ENGINE_OPTIONS & options.keys()}
        confidence = read_confidence(folder)
        limits = {"auto": config.max_sentences, "split": 1, "keep": None}
        defaults = TranslationOptions(
            decoding=config.decoding,
            max_length=config.max_length if split else None,
            max_sentences=chosen(limits, sentences, "value of `sentences`"),
            max_characters=config.max_characters,
            languages=Languages.of(config),
            confidence=confidence,
            lower_capitals=confidence.lower_capitals if confidence else None,
            profiles=read_profiles(folder),
        )
        translation = _changed(defaults, options)
        loaded = choose_engine(folder, EngineOptions(**engine_options), translation.needs)
        max_positions = loaded.engine.max_positions
        if split:  # another model of an ensemble may have a lower limit than the first
            max_length = options.get("max_length", loaded.max_length)
            translation = replace(translation, max_length=max_length)
        elif max_positions is not None:
            fix = "Remove `no_split` (split=False) to cut lines into segments of at most "
            raise ConfigError(
                f"{folder} cannot read long lines: the model has {max_positions:,} positions.",
                fix=f"{fix}{loaded.max_length:,} tokens.",
            )
        return cls(loaded.engine, loaded.tokenizers, translation)

    def with_options(self, **changes: Any) -> Translator:
        """Return a translator with the same engine and changed options, named as in `load`.

        Raises:
            ConfigError: Options are unknown or out of bounds. The message lists all problems.
            EngineLacksError: The engine does not support an option. Pass the option to `load`,
                which chooses another engine.
        """
        return Translator(self.engine, self.tokenizers, _changed(self.options, changes))

    def translate(
        self,
        lines: Iterable[Request | str],
        first_line: int = 1,
        *,
        glossary: Glossary | Mapping[str, str] | None = None,
        **options: Any,
    ) -> list[Result]:
        """Translate ``lines``. Results are in the same order.

        Only the first `LONGEST_LINE` characters of a line are translated; a longer line gets the
        alarm ``truncated``. If a line is split into segments, the prefix and the required phrases
        apply to the first segment.

        Args:
            lines: Texts or requests.
            first_line: Number of the first line, for messages.
            glossary: Terms of requests without a glossary, perhaps as a dictionary; None for those
                of the translator.
            options: Other options of this call, named as in `load`.

        Raises:
            ConfigError: Options are unknown or out of bounds.
            DataError: The constraints of a line cannot be met, or its tag is unknown.
            EngineLacksError: The engine does not support constraints. Pass ``constraints=True`` to
                `load`.
            CheckpointError: The model's weights are damaged.
            TypeError: ``lines`` is a string or a dictionary, or contains values of other types than
                text and `Request`.
        """
        if glossary is not None:
            options["glossary"] = glossary
        if options:
            return self.with_options(**options).translate(lines, first_line)
        results = []
        for line_number, result in enumerate(self.try_translate(lines, first_line), first_line):
            if isinstance(result, DataError):
                raise DataError(f"Line {line_number:,}: {result.problem}", fix=result.fix)
            results.append(result)
        return results

    def try_translate(self, lines: Iterable[Line], first_line: int = 1) -> LineResults:
        """Translate lines as `translate` does, but return errors instead of raising them.

        A line that could not be read may be passed as its `DataError`, which is then returned.
        """
        return self.finish(self.segment(lines, first_line))

    def segment(self, lines: Iterable[Line], first_line: int = 1) -> SegmentedLines:
        """Split and encode lines for `finish`. Does not use the model: see `try_translate`."""
        if isinstance(lines, str | Mapping):
            raise TypeError(_NOT_LINES)
        requests = []
        read_errors = {}  # By line index, from 0.
        for index, line in enumerate(lines):
            if isinstance(line, Request):
                requests.append(line)
            elif isinstance(line, str):
                requests.append(Request(line))
            elif isinstance(line, DataError):
                requests.append(Request(""))  # so that all requests stay at their index
                read_errors[index] = line
            else:  # such as the NaN of a pandas column
                raise TypeError(f"{_NOT_LINES}; line {first_line + index} is {line!r}")
        options = self.options
        if not options.constraints and any(request.is_constrained for request in requests):
            self.engine.require(replace(options.needs, constraints=True))
        tags = tuple(self.tokenizers.source.tags)
        if options.languages.always_tagged and options.tag is None:
            for request in requests:
                if request.tag is None and not request.text.startswith(tags):
                    _warn_untagged(tags)
        segmented = segment(
            requests,
            self.tokenizers,
            options.decoding,
            options.max_length,
            self._choose_tags,
            first_line=first_line,
            max_sentences=options.max_sentences,
            max_characters=options.max_characters,
            reads_symbols=self._reads_symbols,
            lower_capitals=bool(options.lower_capitals),
            glossary=options.glossary,
            annotates=self._annotates,
        )
        return replace(segmented, failures=segmented.failures | read_errors)

    @property
    def _reads_symbols(self) -> bool:
        options = self.options
        is_possible = options.symbols and options.guard and options.retry
        return is_possible and PLACEHOLDER in self.tokenizers.source.symbols

    @property
    def _annotates(self) -> bool:
        return self.options.symbols and ANNOTATION[0] in self.tokenizers.source.symbols

    def _tags_of(self, languages: LanguageOptions, has_tag: bool) -> Tags:
        """Return the languages and tags of a request; see `Languages.choose`.

        A tag in the text replaces the options for target language and tag, which it may contradict.
        """
        options = self.options
        source, target, tag = languages
        if source is None:
            source = options.source_language
        if target is None and not has_tag:
            target = options.target_language
        if tag is None and not has_tag:
            tag = options.tag
        line_languages = LanguageOptions(source, target, tag)
        return options.languages.choose(self.tokenizers, line_languages, has_tag=has_tag)

    def finish(self, lines: SegmentedLines) -> LineResults:
        """Translate lines that `segment` returned."""
        options = self.options
        lines = replace(lines, segments=list(map(self._completed, lines.segments)))
        on_batch = _line_counter(lines, options.progress)
        hypotheses = self._search(lines.segments, options.decoding, on_batch)
        guard = Guard(
            self.tokenizers,
            options.decoding,
            limits=options.limits if options.guard else None,
            search_again=self._search_again if options.retry else None,
        )
        outputs = guard.check_outputs(lines.segments, hypotheses)
        on_batch(())  # report the lines of the last batch
        self._add_details(lines, outputs)
        results = self._join(lines, outputs)
        if options.retry and (self._reads_symbols or self._annotates):
            self._insert_lost(lines, results)
        return results

    def _insert_lost(self, lines: SegmentedLines, results: LineResults) -> None:
        """Translate lines whose symbols or terms were lost without symbols, in place."""
        options = self.options
        translator = self.with_options(symbols=False, progress=lambda _: options.progress(0))
        for index, result in enumerate(results):
            if isinstance(result, Result) and "lost" in result.alarms:
                number = lines.first_line + index
                request = lines.requests[index]
                (results[index],) = translator.try_translate([request], number)

    def _completed(self, segment: Segment) -> Segment:
        """Choose the most probable completion of a prefix that may end inside a word."""
        constraints = segment.constraints

        def is_allowed(ids: Ids) -> bool:
            return not any(contains(ids, phrase) for phrase in constraints.forbidden)

        candidates = list(filter(is_allowed, constraints.completions))
        if len(candidates) < 2 or self.options.decoding.prefix_bias_beta:
            return segment
        sources = [segment.read_ids] * len(candidates)
        targets = [segment.start_ids + ids for ids in candidates]
        log_probs = self.engine.token_log_probs(sources, targets)
        totals = [sum(values[:-1]) for values in log_probs]  # without EOS
        highest = max(totals)
        best = totals.index(highest)
        prefix = candidates[best]
        return replace(segment, constraints=replace(constraints, prefix=prefix))

    def _search(
        self, segments: Sequence[Segment], decoding: DecodingConfig, on_batch: OnBatch
    ) -> NBestLists:
        """Return the hypotheses of each segment, best first; none if no output is possible."""
        engine_decoding = replace(self.options, decoding=decoding).engine_decoding
        vocab_size = self.tokenizers.target.vocab_size
        batches = list[list[int]]()  # Indices of segments.
        tasks = []
        options_by_kind = {True: bounded(engine_decoding), False: engine_decoding}
        for is_junk, options in options_by_kind.items():
            kind_rows = [row for row, entry in enumerate(segments) if entry.is_junk is is_junk]
            lengths = [len(segments[row].ids) for row in kind_rows]
            # Longest first, so that workers do not wait for a long batch at the end.
            for batch in reversed(self.engine.batches(lengths, options, vocab_size)):
                rows = [kind_rows[index] for index in batch]
                task = SearchTask([segments[row].read_ids for row in rows], options)
                constraints = [segments[row].constraints for row in rows]
                if any(entry != NONE for entry in constraints):
                    task = replace(task, constraints=constraints)
                batches.append(rows)
                tasks.append(task)
        n_best: NBestLists = [[] for _ in segments]
        # Close on interruption: workers must not use a model whose training continues.
        with closing(self.engine.search_all(tasks, partial(self.options.progress, 0))) as results:
            for rows, hypotheses_of_rows in zip(batches, results, strict=True):
                for row, hypotheses in zip(rows, hypotheses_of_rows, strict=True):
                    n_best[row] = hypotheses
                on_batch([segments[row] for row in rows])
        mbr = self.options.mbr
        if mbr is not None:  # the engine has returned all candidates
            for row, candidates in enumerate(n_best):
                source = self.tokenizers.source.decode(segments[row].ids)
                n_best[row] = mbr.choose(candidates, self._text, decoding.n_best, source)
        return n_best

    def _search_again(self, segments: Sequence[Segment], changes: Mapping[str, Any]) -> NBestLists:
        decoding = self.options.decoding.model_copy(update=dict(changes))
        # `progress` is called to allow an interruption. The lines were already counted.
        return self._search(segments, decoding, lambda _: self.options.progress(0))

    def _add_details(self, lines: SegmentedLines, outputs: list[Output]) -> None:
        """Add alignments and tokens of the best hypotheses, in place.

        They are added if requested; alignments also if placeholders have to be inserted.
        """
        requested = self.options.outputs
        is_alignment_requested = bool(requested - {"token_scores"})
        source_tokenizer, target_tokenizer = self.tokenizers
        segments = lines.segments
        rows = []  # Segments without an output are left out.
        marked = set()  # Segments of sentences with placeholders.
        for row, output in enumerate(outputs):
            paragraph = lines.sentences[segments[row].sentence].paragraph
            has_placeholders = paragraph is not None and paragraph.has_marks
            if has_placeholders:
                marked.add(row)
            if output.hypotheses and (requested or has_placeholders):
                rows.append(row)
        lengths = [len(segments[row].ids) for row in rows]
        decoding = self.options.engine_decoding
        for batch in self.engine.batches(lengths, decoding, target_tokenizer.vocab_size):
            batch_rows = [rows[index] for index in batch]
            best_ids = {row: outputs[row].hypotheses[0].ids for row in batch_rows}
            # What the model reads: tags before the source, the start token before the target.
            sources = [segments[row].read_ids for row in batch_rows]
            targets = [segments[row].start_ids + best_ids[row] for row in batch_rows]
            attention = []
            if is_alignment_requested or not marked.isdisjoint(batch_rows):
                try:
                    attention = self.engine.attention(sources, targets)
                except EngineLacksError:  # then placeholders keep their relative positions
                    if is_alignment_requested:
                        raise
            for row, weights in zip(batch_rows, attention, strict=False):
                # `align_words` leaves out the weights of tags.
                source_subwords = source_tokenizer.subwords(segments[row].ids)
                target_subwords = target_tokenizer.subwords(best_ids[row])
                alignment = align_words(weights, source_subwords, target_subwords)
                outputs[row] = replace(outputs[row], alignment=alignment)
            if "token_scores" in requested:
                log_probs = self.engine.token_log_probs(sources, targets)
                for row, values in zip(batch_rows, log_probs, strict=True):
                    tokens = score_tokens(target_tokenizer, best_ids[row], values)
                    outputs[row] = replace(outputs[row], tokens=tokens)

    def _text(self, ids: Sequence[int]) -> str:
        """Decode ids. Line breaks, which byte subwords may spell, become spaces."""
        return _LINE_BREAKS.sub(" ", self.tokenizers.target.decode(ids)).strip()

    def _join(self, lines: SegmentedLines, outputs: Sequence[Output]) -> LineResults:
        """Join the outputs of segments to one result for each line."""
        outputs_of_sentences = [list[Output]() for _ in lines.sentences]
        for segment_of_line, output in zip(lines.segments, outputs, strict=True):
            outputs_of_sentences[segment_of_line.sentence].append(output)
        results_of_lines = [list[Result]() for _ in lines.requests]
        failures = dict(lines.failures)
        blank = self._result(Sentence(0, ""), ())  # the same for all blank lines
        for sentence, outputs_of_sentence in zip(
            lines.sentences, outputs_of_sentences, strict=True
        ):
            if all(output.hypotheses for output in outputs_of_sentence):
                result = blank
                if sentence.text:
                    result = self._result(sentence, outputs_of_sentence)
                results_of_lines[sentence.line].append(result)
            else:
                problem = "no translation satisfies the prefix, required and forbidden phrases."
                fix = "Remove one or more constraints, or set no_repeat_ngram_size to 0."
                failures.setdefault(sentence.line, DataError(problem, fix=fix))
        results: LineResults = []
        for line, request in enumerate(lines.requests):
            if line in failures:
                results.append(failures[line])
                continue
            result = join_results(request.text, lines.gaps[line], results_of_lines[line])
            if len(request.text) > LONGEST_LINE and result.num_tokens:
                result = replace(result, alarms=("truncated", *result.alarms))
            results.append(result)
        return results

    def _result(self, sentence: Sentence, outputs: Sequence[Output]) -> Result:
        """Return the result of a sentence.

        Args:
            sentence: The sentence.
            outputs: Outputs of its segments, in order; none if it is blank or copied.
        """
        best = [output.hypotheses[0] for output in outputs]  # of each segment
        candidates = best
        if len(outputs) == 1:
            candidates = list(outputs[0].hypotheses)
        alternatives = []
        for candidate in candidates:
            text = self._text(candidate.ids)
            if sentence.is_lowered:
                text = text.upper()
            alternatives.append(Alternative(text, candidate.score, candidate.log_prob))
        if len(outputs) > 1:  # segments are independent: join the best hypothesis of each
            text = sentence.joiner.join(segment_best.text for segment_best in alternatives)
            score = sum(segment_best.score for segment_best in alternatives) / len(outputs)
            log_prob = sum(segment_best.log_prob for segment_best in alternatives)
            alternatives = [Alternative(text, score, log_prob)]
        model_output = alternatives[0].text if alternatives else ""
        alignments = [output.alignment for output in outputs if output.alignment]
        links, attention = join_alignments(alignments)
        if sentence.paragraph is not None and alternatives:
            plain_texts = (sentence.model_text, model_output)
            # Alternatives are similar, so they have the alignment of the best one.
            known = links if alignments else None
            if known and sentence.terms:
                known = strong_links(links, attention)
            for index, alternative in enumerate(alternatives):
                text = sentence.paragraph.render([(alternative.text, known)])
                if sentence.terms:
                    text = insert_terms(text, sentence.tags.direction.target)
                alternatives[index] = replace(alternative, text=text)
            texts = (sentence.text, alternatives[0].text)
            links = links_of_words(links, plain_texts, texts)
            num_sources, num_targets = (len(text.split()) for text in texts)
            attention = ((0.0,) * num_sources,) * num_targets  # not of words with placeholders
        best_translation = Alternative(sentence.text, 0.0, 0.0)  # of a blank or copied sentence
        if alternatives:
            best_translation = alternatives[0]
        alarms = each_once(output.alarms for output in outputs)
        if self.options.guard:
            text = best_translation.text
            profiles = self.options.profiles
            alarms += tuple(text_alarms(sentence, text, model_output, profiles))
            knows_capitals = sentence.is_lowered or self.options.lower_capitals is False
            if sentence.is_capitals and not knows_capitals:
                alarms = (*alarms, "capitals")
        requested = self.options.outputs
        tokens = None
        if "token_scores" in requested:
            tokens = tuple(chain.from_iterable(output.tokens for output in outputs))
        result = Result(
            sentence.text,
            best_translation.text,
            best_translation.score,
            tuple(alternatives),
            alarms,
            retried=each_once(output.retried for output in outputs),
            alignment=links if "alignments" in requested else None,
            attention=attention if "attention" in requested else None,
            log_prob=best_translation.log_prob,
            tokens=tokens,
            num_tokens=sum(len(hypothesis.ids) + 1 for hypothesis in best),  # 1 for EOS
            num_terms=len(sentence.terms),
            retry_seconds=sum(output.retry_seconds for output in outputs),
        )
        if self.options.confidence is not None:
            result = self.options.confidence.rate(result)
        return result


@cache  # once
def _warn_untagged(tags: tuple[str, ...]) -> None:
    text = "a line has no tag, but all training text had one; set `tag` to one of: %s"
    logger.warning(text, ", ".join(tags[:TAGS_SHOWN]))


def _changed(options: TranslationOptions, changes: Mapping[str, Any]) -> TranslationOptions:
    """Return options with changes by name; a name may also be that of a decoding option."""
    decoding_changes = dict(changes)
    names = changes.keys() & _TRANSLATION_OPTIONS
    translation_changes = {name: decoding_changes.pop(name) for name in names}
    if "outputs" in translation_changes:
        translation_changes["outputs"] = frozenset(translation_changes["outputs"])
    terms = translation_changes.get("glossary")
    if isinstance(terms, Mapping):
        translation_changes["glossary"] = Glossary.parse(map("\t".join, terms.items()))
    if decoding_changes:  # all names that are left
        translation_changes["decoding"] = change_options(options.decoding, decoding_changes)
    return replace(options, **translation_changes)


def _line_counter(lines: SegmentedLines, progress: Callable[[int], object]) -> OnBatch:
    """Return a function that takes a batch of finished segments and reports completed lines.

    It reports a line one call later than the line is complete, so that the last lines are reported
    only after the guard has checked them.
    """
    # Line index -> number of segments that are not finished.
    num_unfinished = Counter(map(lines.line_of, lines.segments))
    # Completed lines to report at the next call: first the blank and the failed lines.
    num_to_report = len(lines.requests) - len(num_unfinished)

    def count(batch: Sequence[Segment]) -> None:
        nonlocal num_to_report
        progress(num_to_report)
        lines_of_batch = list(map(lines.line_of, batch))
        num_unfinished.subtract(lines_of_batch)
        num_to_report = sum(not num_unfinished[line] for line in set(lines_of_batch))

    return count
