"""Lines -> translations: tokenize, sort, batch, search, detokenize, restore the order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError
from nmt.runtime.engine import Dtype, Engine
from nmt.runtime.ensemble import Ensemble
from nmt.runtime.loading import load_engine
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from nmt.translation.batching import batch_by_length, most_rows
from nmt.translation.coverage import SourceCoverage
from nmt.translation.details import Details, Outputs, add_details
from nmt.translation.guard import read_thresholds
from nmt.translation.mending import Guard, Verdict
from nmt.translation.options import change_options
from nmt.translation.result import Alternative, TranslationResult, join_segments, joiner_for
from nmt.translation.segment import (
    Segment,
    check_outputs,
    constrain,
    cut_lines,
    group_by_line,
    make_task,
)
from nmt.translation.wishes import Phrases, encode_wishes

if TYPE_CHECKING:  # its metrics take time to load
    from nmt.translation.mbr import Mbr

_LINE_BREAKS = re.compile(r"[\r\n]+")
_LINES_AT_ONCE = 2000


class Translator:
    """Translates text with one model.

    Args:
        engine: The model, and how it is searched.
        tokenizers: Of both languages.
        options: How to search.
        max_length: Most source subwords at once; longer lines are cut, translated and joined.
        joiner: What joins the parts.
        note: Told about lines that had to be cut.
        check: Called between batches; may raise to interrupt.
        guard: Has outputs that look broken searched anew. All are taken as they are when None.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: Tokenizers,
        options: DecodingConfig,
        *,
        max_length: int = 256,
        joiner: str = " ",
        note: Callable[[str], None] = lambda _: None,
        check: Callable[[], None] = lambda: None,
        guard: Guard | None = None,
    ) -> None:
        self.options = options
        self._engine, self._tokenizers = engine, tokenizers
        self._max_length, self._joiner, self._note = max_length, joiner, note
        self._check = check
        self._guard = guard
        self._mbr: Mbr | None = None

    @classmethod
    def load(  # noqa: PLR0913 - the choices that a user has
        cls,
        folder: Path | str,
        *,
        engine: Literal["auto", "torch", "ctranslate2"] = "auto",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        checkpoint: str = "best",
        threads: int | None = None,
        note: Callable[[str], None] = lambda _: None,
        ensemble: Ensemble | None = None,
        guard: bool = True,
        dtype: Dtype = "float32",
    ) -> Translator:
        """Load a run or model folder.

        Args:
            folder: What `nmt train`, `nmt average` or `nmt export` wrote.
            engine: What computes: ``auto`` sees what the folder is for.
            device: Where to compute.
            checkpoint: ``best``, ``last``, ``step-N`` or ``average``.
            threads: CPU threads; torch's choice when None.
            note: Told about lines that had to be cut, and about damaged checkpoints and short lists
                that are passed over.
            ensemble: Models that translate together with the one in ``folder``.
            guard: Search anew what does not look like a translation.
            dtype: What weights are kept and multiplied in. ``float16`` is for GPUs, ``bf16`` for
                hardware that computes in it, ``int8`` for CTranslate2.
                CTranslate2's models have chosen at their export.

        Raises:
            ConfigError: The engine or the device does not go with it.
            CheckpointError: A part is missing or damaged, or the models do not go together.
        """
        folder = Path(folder)
        loaded = load_engine(
            folder,
            engine=engine,
            device=device,
            checkpoint=checkpoint,
            threads=threads,
            note=note,
            ensemble=ensemble,
            dtype=dtype,
        )
        config, guardian = loaded.config, None
        if guard:
            guardian = Guard(
                read_thresholds(folder),
                loaded.tokenizers,
                lambda: _coverage(loaded.shortlist, note),
            )
        return cls(
            loaded.engine,
            loaded.tokenizers,
            config.decoding,
            max_length=config.filters.max_length,
            joiner=joiner_for(config.target_language),
            note=note,
            guard=guardian,
        )

    def with_options(self, **changes: Any) -> Translator:
        """Return a translator of the same model with other decoding options.

        Raises:
            ConfigError: An option is unknown or out of bounds. Lists every problem.
        """
        changed = copy(self)
        changed.options = change_options(self.options, changes)
        return changed

    def with_mbr(self, mbr: Mbr) -> Translator:
        """Return a translator that takes, of many candidates, the one most like all the others.

        Of several translations of a line the best comes first: by the candidates, not by score.
        """
        changed = copy(self)
        changed._mbr = mbr
        return changed

    def without_notes(self) -> Translator:
        """Return a translator that says nothing of the lines it is given."""
        changed = copy(self)
        changed._note = lambda _: None
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

        Of a line that is cut, the first part gets prefix and required phrases. Phrases are compared
        as subwords: the same text in other subwords is another phrase.

        Args:
            lines: One sentence each.
            prefixes: What each translation begins with, or with ``prefix_bias_beta`` is drawn to.
            required: Phrases that each translation contains.
            forbidden: Phrases that it does not contain.
            alignments: Whether to say which words belong together.
            attention: Whether to say how much of each source word each word goes back to.
            token_scores: Whether to say how probable each token is, whatever the rules of the
                search.
            first_line: What messages count the lines from.
            changes: Decoding options that differ from the translator's, for example beam_size=1.

        Raises:
            ConfigError: An option is unknown or out of bounds, or the engine cannot follow it.
            DataError: A line's wishes cannot be met.
            CheckpointError: The model's weights are broken.
            TypeError: The lines are a single text, or no texts.
        """
        texts = list(lines)
        if isinstance(lines, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError("lines are a list of str, one sentence each")
        translator = self.with_options(**changes) if changes else self
        target, wishes = self._tokenizers.target, None
        if any((prefixes, required, forbidden)):
            wishes = encode_wishes(target, len(texts), prefixes, required, forbidden)
        wanted = Details(alignments=alignments, attention=attention, token_scores=token_scores)
        return translator._translate(texts, wishes, wanted, first_line)

    def _translate(
        self,
        texts: Sequence[str],
        wishes: Iterable[Constraints] | None,
        wanted: Details,
        first_line: int,
    ) -> list[TranslationResult]:
        segments = cut_lines(
            texts, self._tokenizers.source, self._max_length, self._note, first_line
        )
        if wishes is not None:
            segments = constrain(
                segments,
                wishes,
                no_repeat_ngram_size=self.options.no_repeat_ngram_size,
                most_tokens=self._longest_output,
                first_line=first_line,
            )
        found = self._search(segments)
        check_outputs(segments, found, first_line)
        verdicts = self._mend(segments, found)
        by_line = group_by_line(segments, zip(found, verdicts, strict=True), len(texts))
        results = [self._result(*line) for line in zip(texts, by_line, strict=True)]
        if wanted == Details():
            return results
        best = Outputs(
            segments, [outputs[0].ids for outputs in found], list(self._batches(segments))
        )
        return add_details(results, wanted, best, self._engine, self._tokenizers)

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
        """The most tokens that any output may have without a wish."""
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
            max_rows=most_rows(
                self._search_options.num_hypotheses,
                self._tokenizers.target.vocab_size,
                self._engine.num_workers,
            ),
        )

    def _mend(self, segments: Sequence[Segment], found: list[list[Hypothesis]]) -> list[Verdict]:
        """Replace outputs that raise alarms where a stricter search finds better ones."""
        guard = self._guard
        if guard is None:
            return [Verdict()] * len(segments)
        strict = self.with_options(**guard.stricter(self.options))
        sources = [segment.ids for segment in segments]
        return guard.mend(
            sources, found, lambda rows: strict._search([segments[row] for row in rows])
        )

    def _result(
        self, source: str, outputs: Sequence[tuple[Sequence[Hypothesis], Verdict]]
    ) -> TranslationResult:
        """Put together what was found for the segments of a line."""
        return join_segments(
            source,
            [[Alternative(self._text(h.ids), h.score) for h in found] for found, _ in outputs],
            [verdict for _, verdict in outputs],
            joiner=self._joiner,
            with_alternatives=self.options.n_best > 1,
        )

    def _text(self, ids: Sequence[int]) -> str:
        """Decode; byte pieces may spell line breaks, which would break the line count."""
        return _LINE_BREAKS.sub(" ", self._tokenizers.target.decode(ids)).strip()


def _coverage(file: ShortlistFile, note: Callable[[str], None]) -> SourceCoverage | None:
    """Load what the guard compares with; it works without, too."""
    try:
        return SourceCoverage.load(file)
    except CheckpointError as error:
        note(f"the guard leaves coverage out: {error.problem} {error.fix}")
        return None
