"""Lines -> translations: tokenize, sort, batch, search, detokenize, restore the order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from nmt.config.decoding import DecodingConfig
from nmt.config.keys import find_problems
from nmt.errors import ConfigError
from nmt.runtime.engine import (
    Engine,
    EngineChoice,
    EngineOptions,
    Ensemble,
    LoadedEngine,
    Request,
    Task,
    parse_dtype,
)
from nmt.runtime.loading import load_engine
from nmt.search.hypothesis import NONE, Hypothesis
from nmt.text.tokenizer import Tokenizers
from nmt.translation.confidence import ConfidenceModel, read_confidence
from nmt.translation.guard import Guard, read_thresholds
from nmt.translation.result import (
    Alarm,
    Alternative,
    TranslationResult,
    align_words,
    join_alignments,
    score_tokens,
    subwords,
)
from nmt.translation.segment import (
    LONGEST_LINE,
    Phrases,
    SearchResults,
    Segment,
    batch_by_length,
    check_outputs,
    constrain,
    encode_constraints,
    joiner_for,
    make_task,
    segment_lines,
    stands_past_end,
    tag_ids,
)
from nmt.translation.turns import Turns

if TYPE_CHECKING:  # its metrics take time to load
    from nmt.translation.mbr import Mbr

R = TypeVar("R")

_LINE_BREAKS = re.compile(r"[\r\n]+")
_LINES_AT_ONCE = 2000


def _check_unlimited(loaded: LoadedEngine, folder: Path | str) -> None:
    """Refuse to translate lines of any length with positions for a certain number of tokens."""
    if (most := loaded.engine.max_positions) is not None:
        is_learned = loaded.engine.name != "ctranslate2"
        is_learned |= loaded.config.model.positions == "learned"
        numbered = f"{most:,} positions"
        reason = f"its {numbered} are learned" if is_learned else f"it was exported with {numbered}"
        raise ConfigError(
            f"{folder} cannot read lines of any length: {reason}.",
            fix="Leave --no-split (split=False) out: lines are then cut into segments of "
            f"{loaded.config.filters.max_length:,} tokens or less.",
        )


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
            _check_unlimited(loaded, folder)
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
        self._progress(len(texts) - len(left))  # blank ones

        def count(batch: Sequence[Segment]) -> None:
            left.subtract(segment.line for segment in batch)
            self._progress(sum(not left[line] for line in {segment.line for segment in batch}))

        for segment, hypotheses in self._search(segments, count):
            segment.hypotheses = hypotheses
        check_outputs(segments, first_line)
        if self._guard is not None:
            self._guard.retry(
                segments,
                self.options,
                lambda some, changes: self.with_options(**changes)._search(some, again=True),
            )
        for segment in segments:
            if self._is_misplaced(segment):
                segment.alarms = (*segment.alarms, "constraint")
        if wanted:
            self._turns.search(lambda: self._add_details(segments, wanted))
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
        # The longest first: the last to be done is then a short one.
        batches = list(self._batches(segments))[::-1]
        tasks = [make_task(batch) for batch in batches]
        find = partial(self._find, batches, tasks, done)
        if again and self._guard is not None:
            find = partial(self._guard.timed, find)
        return self._turns.search(find)

    def _find(
        self,
        batches: Sequence[Sequence[Segment]],
        tasks: Sequence[Task],
        done: Callable[[Sequence[Segment]], object],
    ) -> SearchResults:
        mbr, n_best = self._mbr, self.options.n_best
        found: list[tuple[Segment, list[Hypothesis]]] = []
        # Closed at once when interrupted: no worker may go on with a model that trains again.
        with closing(self._engine.search_all(tasks, self._search_options)) as results:
            for batch, hypotheses in zip(batches, results, strict=True):
                self._check()
                for segment, own in zip(batch, hypotheses, strict=True):
                    found.append((segment, mbr.choose(own, self._text, n_best) if mbr else own))
                done(batch)
        return found

    def _add_details(self, segments: Iterable[Segment], wanted: frozenset[str]) -> None:
        """Give each segment what is wanted of its best output."""
        source, target = subwords(self._tokenizers.source), subwords(self._tokenizers.target)
        for batch in self._batches(segments):
            best = [segment.hypotheses[0].ids for segment in batch]
            pairs = [segment.read_ids for segment in batch], best
            if wanted & {"alignments", "attention"}:
                attention = self._engine.attention(*pairs)
                for segment, ids, weights in zip(batch, best, attention, strict=True):
                    words = [source[i] for i in segment.ids], [target[i] for i in ids]
                    weights = [row[len(segment.tag) :] for row in weights]
                    segment.aligned = align_words(weights, *words)
            if "token_scores" in wanted:
                log_probs = self._engine.token_log_probs(*pairs)
                for segment, ids, own in zip(batch, best, log_probs, strict=True):
                    segment.tokens = score_tokens(target, ids, own)

    @property
    def retry_seconds(self) -> float:
        """Time that second searches of the guard took so far."""
        return self._guard.seconds if self._guard else 0.0

    @property
    def _search_options(self) -> DecodingConfig:
        """What the engine is asked for: with MBR more than what comes out."""
        return self._mbr.search_options(self.options) if self._mbr else self.options

    def _batches(self, segments: Iterable[Segment]) -> Iterator[list[Segment]]:
        """Segments of like length that the engine takes at once."""
        room, width = self._engine.room, self._search_options.num_hypotheses
        row = width * self._tokenizers.target.vocab_size
        most = room.probabilities // self._engine.num_workers // row
        max_rows = max(1, min(most, room.hypotheses // width))
        wanted = self.options.batch_tokens
        max_tokens = room.tokens if wanted == "auto" else wanted
        return batch_by_length(segments, max_tokens=max_tokens, max_rows=max_rows)

    def _result(
        self, source: str, segments: Sequence[Segment], wanted: frozenset[str]
    ) -> TranslationResult:
        """Join what was found for the independent segments of a line: the best of each."""
        links, attention = join_alignments([own.aligned for own in segments if own.aligned])
        if len(segments) == 1:
            found = [
                Alternative(self._text(h.ids), h.score, h.log_prob) for h in segments[0].hypotheses
            ]
        else:
            best = [segment.hypotheses[0] for segment in segments]
            text = self._joiner.join(self._text(hypothesis.ids) for hypothesis in best)
            score = sum(hypothesis.score for hypothesis in best) / max(1, len(best))
            log_prob = sum(hypothesis.log_prob for hypothesis in best)
            found = [Alternative(text, score, log_prob)]
        is_truncated = bool(segments) and len(source) > LONGEST_LINE
        truncated: tuple[Alarm, ...] = ("truncated",) if is_truncated else ()
        tokens = tuple(chain(*(segment.tokens for segment in segments)))
        result = TranslationResult(
            source,
            found[0].text,
            found[0].score,
            tuple(found) if segments else (),
            # Every alarm once, in the order of the first ones.
            alarms=(*truncated, *dict.fromkeys(chain(*(own.alarms for own in segments)))),
            retried=tuple(dict.fromkeys(chain(*(own.retried for own in segments)))),
            alignment=links if "alignments" in wanted else None,
            attention=attention if "attention" in wanted else None,
            log_prob=found[0].log_prob,
            tokens=tokens if "token_scores" in wanted else None,
            num_tokens=sum(len(segment.hypotheses[0].ids) + 1 for segment in segments),
        )
        if self._confidence is None:
            return result
        return replace(result, confidence=self._confidence.estimate(result))

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
