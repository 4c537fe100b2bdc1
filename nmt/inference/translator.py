"""Lines -> translations: tokenize, sort, batch, search, detokenize, restore the order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nmt.config.decoding import DecodingConfig
from nmt.config.loader import change_options
from nmt.inference.confidence import ConfidenceModel, read_confidence
from nmt.inference.engine import (
    Engine,
    EngineChoice,
    EngineOptions,
    Ensemble,
    LoadedEngine,
    Request,
    parse_dtype,
)
from nmt.inference.guard import Guard, read_thresholds
from nmt.inference.joining import add_details, join_segments
from nmt.inference.loading import load_engine
from nmt.inference.result import TranslationResult
from nmt.inference.searching import fitting_batches, search_batches
from nmt.inference.segment import (
    Phrases,
    SearchResults,
    Segment,
    check_outputs,
    constrain,
    encode_constraints,
    joiner_for,
    segment_lines,
    stands_past_end,
    tag_ids,
)
from nmt.inference.turns import Turns
from nmt.search.hypothesis import NONE, Hypothesis
from nmt.text.tokenizer import Tokenizers

if TYPE_CHECKING:  # its metrics take time to load
    from nmt.inference.mbr import Mbr

R = TypeVar("R")

_LINE_BREAKS = re.compile(r"[\r\n]+")
_LINES_AT_ONCE = 2000


class Translator:
    """Translates text with one model.

    Args:
        engine: The model, and how it is searched.
        tokenizers: Of both languages.
        options: How to search.
        max_length: Most source subwords at once; longer lines are cut, translated and joined. None:
            none is cut.
        joiner: What joins the parts.
        check: Called between batches; may raise to interrupt.
        guard: Retries outputs that look wrong. All are taken as they are when None.
        confidence: Predicts the quality of each translation.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: Tokenizers,
        options: DecodingConfig,
        *,
        max_length: int | None = 256,
        joiner: str = " ",
        check: Callable[[], None] = lambda: None,
        guard: Guard | None = None,
        confidence: ConfidenceModel | None = None,
    ) -> None:
        self.options = options
        self._engine, self._tokenizers = engine, tokenizers
        self._max_length, self._joiner = max_length, joiner
        self._check, self._guard = check, guard
        self._confidence = confidence
        self._mbr: Mbr | None = None
        self._progress: Callable[[int], object] = lambda _: None
        self._turns = Turns()

    @classmethod
    def load(  # noqa: PLR0913 - the choices that a user has
        cls,
        folder: Path | str,
        *,
        engine: EngineChoice = "auto",
        device: str = "auto",
        checkpoint: str = "best",
        threads: int | None = None,
        ensemble: Ensemble | None = None,
        guard: bool = True,
        split: bool = True,
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
            split: Cut lines of more subwords than training saw into segments. Otherwise they go
                through whole, which only some positions allow, and are often translated worse.
            dtype: What the weights are kept and multiplied in: ``float32``, ``float16`` on GPUs,
                ``bfloat16``, or ``int8``, which needs CTranslate2; ``auto`` is float32 on a CPU
                and a 16-bit one on a GPU. An exported model has the one of its export.
            prepare: Load the weights now, into the engine that the model's own decoding options
                need; otherwise with the first request.

        Raises:
            ConfigError: The engine or the device does not go with it, or it has positions for so
                many tokens only, and lines are not to be split.
            CheckpointError: A part is missing or damaged, or the models do not go together.
        """
        options = EngineOptions(
            engine=engine, device=device, dtype=parse_dtype(dtype), checkpoint=checkpoint,
            threads=threads, ensemble=ensemble,
        )  # fmt: skip
        loaded = load_engine(Path(folder), options)
        translator = cls.of(loaded, Path(folder), guard=guard, split=split)
        if prepare:
            translator.prepare()
        return translator

    @classmethod
    def of(
        cls, loaded: LoadedEngine, folder: Path, *, guard: bool = True, split: bool = True
    ) -> Translator:
        """Return the translator of an engine and of what else lies in its folder; see `load`."""
        config, guardian = loaded.config, None
        if not split:
            loaded.check_unlimited(folder)
        if guard:
            limits = read_thresholds(folder)
            guardian = Guard(limits, loaded.tokenizers, loaded.shortlist)
        return cls(
            loaded.engine,
            loaded.tokenizers,
            config.decoding,
            max_length=config.filters.max_length if split else None,
            joiner=joiner_for(config.target_language),
            guard=guardian,
            confidence=read_confidence(folder),
        )

    def prepare(self, outputs: Iterable[str] = ()) -> None:
        """Load the engine for such requests now, so that faults are found before the first.

        Args:
            outputs: Of ``alignments``, ``attention`` and ``token_scores`` those to be asked for.
        """
        self._engine.serving(Request(self._search_options, outputs=frozenset(outputs)))

    @property
    def has_confidence(self) -> bool:
        """Whether translations get one."""
        return self._confidence is not None

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

    def with_progress(self, progress: Callable[[int], object]) -> Translator:
        """Return a translator that calls ``progress`` with the lines that each batch completes."""
        changed = copy(self)
        changed._progress = progress
        return changed

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU searches, so that text work may go on beside it."""
        return self._engine.on_gpu

    def with_turns(self, turns: Turns) -> Translator:
        """Return a translator whose searches wait for their turn."""
        changed = copy(self)
        changed._turns = turns
        return changed

    def alone(self, work: Callable[[], R]) -> R:
        """Return ``work()``, beside which no other lines are translated."""
        return self._turns.alone(work)

    def translate_stream(
        self, lines: Iterable[str], lines_at_once: int = _LINES_AT_ONCE, **options: Any
    ) -> Iterator[TranslationResult]:
        """Translate any number of lines in order, a chunk at a time.

        Args:
            lines: One sentence each.
            lines_at_once: Lines of a chunk: more are faster; 1 answers each before it reads on.
            options: As of `translate`, for all lines alike.
        """
        first_line, rest = options.pop("first_line", 1), iter(lines)
        while chunk := list(islice(rest, lines_at_once)):
            yield from self.translate(chunk, first_line=first_line, **options)
            first_line += len(chunk)

    def translate(  # noqa: PLR0913 - what a line may ask for
        self,
        lines: Iterable[str],
        *,
        prefixes: Sequence[str] | None = None,
        required: Phrases | None = None,
        forbidden: Phrases | None = None,
        tag: str | Sequence[str | None] | None = None,
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
            tag: What the sources begin with, if the model was trained with tags: a target language,
                a domain. One for all lines, or one for each. ``de`` names ``<2de>`` or ``<de>``.
            alignments: Add word alignments.
            attention: Add the attention of each target word to each source word.
            token_scores: Add the model's probability of each token, before any rule of the search.
            first_line: The number of the first line in messages.
            changes: Decoding options that differ from the translator's, for example beam_size=1.

        Raises:
            ConfigError: An option or the tag of all lines is unknown, or an option is out of bounds
                or not in the engine.
            DataError: A line's constraints cannot be met, or its own tag is unknown.
            CheckpointError: The model's weights are broken.
            TypeError: The lines are a single text, or no texts.
        """
        texts = list(lines)
        if isinstance(lines, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError("lines are a list of str, one sentence each")
        details = {"alignments": alignments, "attention": attention, "token_scores": token_scores}
        wanted = frozenset(name for name, is_wanted in details.items() if is_wanted)
        translator, target = self.with_options(**changes), self._tokenizers.target
        constraints = encode_constraints(target, len(texts), prefixes, required, forbidden)
        is_constrained = any(own != NONE for own in constraints)
        tags = tag_ids(self._tokenizers.source, tag, len(texts), first_line)
        room = self._max_length and self._max_length - any(tags)
        segments = segment_lines(texts, self._tokenizers.source, room, first_line)
        for segment in segments:
            segment.tag = tags[segment.line]
        longest = max((len(segment.read_ids) for segment in segments), default=0)
        request = Request(translator._search_options, is_constrained, wanted, longest)
        translator._engine = self._engine.serving(request)
        if is_constrained:
            options = translator.options
            most = self._max_length or longest
            most = int(options.max_length_factor * most + options.max_length_offset)
            constrain(segments, constraints, options, longest_output=most, first_line=first_line)
        return translator._translate(texts, segments, wanted, first_line)

    def _translate(
        self,
        texts: Sequence[str],
        segments: Sequence[Segment],
        wanted: frozenset[str],
        first_line: int,
    ) -> list[TranslationResult]:
        left = Counter(segment.line for segment in segments)
        done = len(texts) - len(left)  # blank ones

        def count(batch: Sequence[Segment]) -> None:
            nonlocal done
            self._progress(done)
            left.subtract(segment.line for segment in batch)
            # Told with the next batch, the last when the guard has ended: all is done only then.
            done = sum(not left[line] for line in {segment.line for segment in batch})

        for segment, hypotheses in self._search(segments, count):
            segment.hypotheses = hypotheses
        check_outputs(segments, first_line)
        if self._guard is not None:
            self._guard.retry(
                segments,
                self.options,
                lambda some, changes: self.with_options(**changes)._search(some, again=True),
            )
        self._progress(done)
        for segment in segments:
            if self._is_misplaced(segment):
                segment.alarms = (*segment.alarms, "constraint")
        if wanted:
            batches = self._batches(segments)
            add = partial(add_details, batches, self._engine, self._tokenizers, wanted)
            self._turns.search(add)
        lines: list[list[Segment]] = [[] for _ in texts]
        for segment in segments:
            lines[segment.line].append(segment)
        return [self._result(*line, wanted) for line in zip(texts, lines, strict=True)]

    def _is_misplaced(self, segment: Segment) -> bool:
        """Whether a required phrase stands behind the sentence."""
        if not (required := segment.constraints.required):
            return False
        source = self._tokenizers.source.decode(segment.ids)
        text = self._text(segment.hypotheses[0].ids)
        return stands_past_end(source, text, map(self._text, required))

    def _search(
        self,
        segments: Iterable[Segment],
        done: Callable[[Sequence[Segment]], object] = lambda _: None,
        *,
        again: bool = False,
    ) -> SearchResults:
        """Return the n best of each segment, in any order; none where there is no output.

        ``done`` is called with each batch. If ``again``, the guard counts the time.
        """
        options, mbr, n_best = self._search_options, self._mbr, self.options.n_best

        def choose(own: list[Hypothesis]) -> list[Hypothesis]:
            return mbr.choose(own, self._text, n_best) if mbr else own

        def finish(batch: Sequence[Segment]) -> None:
            self._check()
            done(batch)

        # The longest first: the last to be done is then a short one.
        batches = self._batches(segments)[::-1]
        find = partial(search_batches, self._engine, batches, options, choose, finish)
        if again and self._guard is not None:
            find = partial(self._guard.timed, find)
        return self._turns.search(find)

    @property
    def retry_seconds(self) -> float:
        """Time that second searches of the guard took so far."""
        return self._guard.seconds if self._guard else 0.0

    @property
    def _search_options(self) -> DecodingConfig:
        """What the engine is asked for: with MBR more than what is returned."""
        return self._mbr.search_options(self.options) if self._mbr else self.options

    def _batches(self, segments: Iterable[Segment]) -> list[list[Segment]]:
        size = self._tokenizers.target.vocab_size
        return fitting_batches(segments, self._engine, self._search_options, size)

    def _result(
        self, source: str, segments: Sequence[Segment], wanted: frozenset[str]
    ) -> TranslationResult:
        result = join_segments(source, segments, wanted, self._text, self._joiner)
        if self._confidence is None:
            return result
        return replace(result, confidence=self._confidence.estimate(result))

    def _text(self, ids: Sequence[int]) -> str:
        """Decode; byte pieces may spell line breaks, which would break the line count."""
        return _LINE_BREAKS.sub(" ", self._tokenizers.target.decode(ids)).strip()
