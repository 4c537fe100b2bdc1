"""Lines -> translations: tokenize, sort, batch, search, detokenize, restore the order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError, ConfigError, DataError, NmtError
from nmt.search.constraints import NONE, Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from nmt.translation.alignment import Links, Part, as_pharaoh, joined
from nmt.translation.engine import Dtype, Engine, LoadedEngine, Task, choose_engine
from nmt.translation.ensemble import Ensemble
from nmt.translation.guard import Alarm, GuardThresholds, read_thresholds
from nmt.translation.mending import Guard, Verdict
from nmt.translation.options import change_options
from nmt.translation.splitting import split_text
from nmt.translation.wishes import Phrases, encode_wishes

if TYPE_CHECKING:  # its metrics take time to load
    from nmt.translation.mbr import Mbr

_LINE_BREAKS = re.compile(r"[\r\n]+")
_UNSPACED = ("zh", "ja", "th", "lo", "km", "my")
_LINES_AT_ONCE = 2000
_CHARACTERS_OF_SUBWORD = 20  # SentencePiece makes none longer than 16
_MOST_PROBABILITIES = 1 << 26  # held at once for the next tokens of all beams: 256 MiB


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of several translations."""

    text: str
    score: float
    """Length-normalised natural-log probability; higher is better."""


@dataclass(frozen=True, slots=True)
class TranslationResult:
    """The translation of one line."""

    source: str
    """The line."""
    text: str
    """Its translation; empty for a blank line. Never holds a line break."""
    score: float
    """Length-normalised natural-log probability; 0 for a blank line."""
    alternatives: tuple[Alternative, ...] = ()
    """The n best, best first, or samples or alternatives in their order; the first is the
    translation itself. Empty unless asked for."""
    alarms: tuple[Alarm, ...] = ()
    """Signs that it is no translation, also after a stricter search: see
    `nmt.translation.guard`. Empty without the guard."""
    mended: tuple[Alarm, ...] = ()
    """Signs that a stricter search took away. Read such a line with care: the model was lost."""
    alignment: Links | None = None
    """Words of the source and of the translation, between spaces, that belong together; None
    unless asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with both lists of alarms always there."""
        return {
            "source": self.source,
            "translation": self.text,
            "score": self.score,
            "alternatives": [asdict(alternative) for alternative in self.alternatives],
            "alarms": list(self.alarms),
            "mended": list(self.mended),
            **({} if self.alignment is None else {"alignment": as_pharaoh(self.alignment)}),
        }


@dataclass(frozen=True, slots=True)
class _Piece:
    """A line, or a part of one that is too long."""

    line: int
    ids: list[int]
    constraints: Constraints = NONE


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
        guard: What is normal: other outputs are searched anew. All are taken as they are when None.
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
        guard: GuardThresholds | None = None,
    ) -> None:
        self.options = options
        self._engine, self._tokenizers = engine, tokenizers
        self._max_length, self._joiner, self._note = max_length, joiner, note
        self._check = check
        self._guard = None if guard is None else Guard(guard, tokenizers)
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
            note: Told about lines that had to be cut and damaged checkpoints passed over.
            ensemble: Models that translate together with the one in ``folder``.
            guard: Search anew what does not look like a translation.
            dtype: What the weights are multiplied in: ``int8`` is for CPUs, ``bf16`` for hardware
                that computes in it. CTranslate2's models have chosen at their export.

        Raises:
            ConfigError: The engine or the device does not go with it.
            CheckpointError: A part is missing or damaged, or the models do not go together.
        """
        loaded: LoadedEngine
        if choose_engine(Path(folder), engine) == "ctranslate2":
            if dtype != "float32":
                raise ConfigError(
                    f"{folder} is for CTranslate2, which chose its dtype at the export.",
                    fix=f"Leave --dtype out, or export again with --quantization {dtype}.",
                )
            from nmt.translation.ctranslate2_engine import load_ctranslate2_engine  # noqa: PLC0415

            loaded = load_ctranslate2_engine(
                Path(folder), device=device, threads=threads, ensemble=ensemble
            )
        else:  # loads torch, which the other engine does without
            from nmt.translation.loading import load_torch_engine  # noqa: PLC0415

            loaded = load_torch_engine(
                Path(folder),
                device=device,
                checkpoint=checkpoint,
                threads=threads,
                note=note,
                ensemble=ensemble,
                dtype=dtype,
            )
        config = loaded.config
        language = re.split("[-_]", config.target_language)[0].lower()
        return cls(
            loaded.engine,
            loaded.tokenizers,
            config.decoding,
            max_length=config.filters.max_length,
            joiner="" if language in _UNSPACED else " ",
            note=note,
            guard=read_thresholds(Path(folder)) if guard else None,
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

    def translate_stream(
        self, lines: Iterable[str], lines_at_once: int = _LINES_AT_ONCE
    ) -> Iterator[TranslationResult]:
        """Translate any number of lines in order, a chunk at a time."""
        chunk: list[str] = []
        for line in lines:
            chunk.append(line)
            if len(chunk) >= lines_at_once:
                yield from self.translate(chunk)
                chunk = []
        yield from self.translate(chunk)

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Sequence[str] | None = None,
        required: Phrases | None = None,
        forbidden: Phrases | None = None,
        alignments: bool = False,
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
            first_line: What messages count the lines from.
            changes: Decoding options that differ from the translator's, for example beam_size=1.

        Raises:
            ConfigError: An option is unknown or out of bounds.
            DataError: A line's wishes cannot be met.
            CheckpointError: The model's weights are broken.
        """
        if changes:
            return self.with_options(**changes).translate(
                lines,
                prefixes=prefixes,
                required=required,
                forbidden=forbidden,
                alignments=alignments,
                first_line=first_line,
            )
        texts = list(lines)
        pieces = self._pieces(texts)
        if any((prefixes, required, forbidden)):
            wishes = encode_wishes(
                self._tokenizers.target, len(texts), prefixes, required, forbidden
            )
            pieces = self._constrained(pieces, list(wishes), first_line)
        found = self._search(pieces)
        for piece, best in zip(pieces, found, strict=True):
            if not best:
                raise _without_output(piece, first_line)
        verdicts = self._mend(pieces, found)
        by_line: dict[int, list[tuple[list[Hypothesis], Verdict]]] = {}
        for piece, best, verdict in zip(pieces, found, verdicts, strict=True):
            by_line.setdefault(piece.line, []).append((best, verdict))
        results = [self._result(text, by_line.get(i, [])) for i, text in enumerate(texts)]
        return self._aligned(results, pieces, found) if alignments else results

    def _aligned(
        self,
        results: Sequence[TranslationResult],
        pieces: Sequence[_Piece],
        found: Sequence[Sequence[Hypothesis]],
    ) -> list[TranslationResult]:
        """Add the alignments of the best translations."""
        of_source, of_target = (
            [piece for piece, _, _ in side.pieces()]
            for side in (self._tokenizers.source, self._tokenizers.target)
        )
        parts: dict[int, Part] = {}
        for rows in self._batches(pieces):
            sources = [pieces[row].ids for row in rows]
            targets = [found[row][0].ids for row in rows]
            weights = self._engine.attention(sources, targets)
            for row, source, target, own in zip(rows, sources, targets, weights, strict=True):
                parts[row] = Part.of(
                    own, [of_source[i] for i in source], [of_target[i] for i in target]
                )
        by_line: dict[int, list[Part]] = {}
        for row, piece in enumerate(pieces):
            by_line.setdefault(piece.line, []).append(parts[row])
        return [
            replace(result, alignment=joined(by_line.get(line, [])))
            for line, result in enumerate(results)
        ]

    def _search(self, pieces: Sequence[_Piece]) -> list[list[Hypothesis]]:
        """Find the n best of each piece; none where there is no output."""
        found: list[list[Hypothesis]] = [[] for _ in pieces]
        options, mbr = self._search_options, self._mbr
        # The longest first: the last to be done is then a short one.
        batches = list(self._batches(pieces))[::-1]
        tasks = [self._task([pieces[row] for row in rows]) for rows in batches]
        # Closed at once when interrupted: no worker may go on with a model that trains again.
        with closing(self._engine.search_all(tasks, options)) as results:
            for rows, hypotheses in zip(batches, results, strict=True):
                self._check()
                for row, best in zip(rows, hypotheses, strict=True):
                    found[row] = mbr.choose(best, self._text, self.options.n_best) if mbr else best
        return found

    @staticmethod
    def _task(pieces: Sequence[_Piece]) -> Task:
        wishes = [piece.constraints for piece in pieces]
        is_free = all(own == NONE for own in wishes)
        return Task([piece.ids for piece in pieces], None if is_free else wishes)

    @property
    def _search_options(self) -> DecodingConfig:
        """What the engine is asked for: with MBR more than what comes out."""
        return self._mbr.search_options(self.options) if self._mbr else self.options

    def _mend(self, pieces: Sequence[_Piece], found: list[list[Hypothesis]]) -> list[Verdict]:
        """Replace outputs that raise alarms where a stricter search finds better ones."""
        guard = self._guard
        if guard is None:
            return [Verdict()] * len(pieces)
        strict = self.with_options(**guard.stricter(self.options))
        sources = [piece.ids for piece in pieces]
        return guard.mend(
            sources, found, lambda rows: strict._search([pieces[row] for row in rows])
        )

    def _pieces(self, texts: Sequence[str]) -> list[_Piece]:
        """Token ids of every line that is not blank, over-long ones in several pieces."""
        encoder = self._tokenizers.source
        pieces = []
        full = [i for i, text in enumerate(texts) if text.strip()]
        short = [i for i in full if not self._is_far_too_long(texts[i])]
        encoded = dict(zip(short, encoder.encode_batch([texts[i] for i in short]), strict=True))
        for i in full:
            ids = encoded.get(i)
            if ids is not None and len(ids) <= self._max_length:
                if ids:  # a text of characters that normalisation drops is blank, too
                    pieces.append(_Piece(i, ids))
                continue
            parts = [
                part
                for ids in encoder.encode_batch(split_text(texts[i], self._size, self._max_length))
                for part in self._windows(ids)
            ]
            if len(parts) > 1:
                self._note(
                    f"line of {len(texts[i]):,} characters cut into {len(parts):,} parts: the "
                    f"model reads {self._max_length} subwords at once"
                )
            pieces += [_Piece(i, part) for part in parts]
        return pieces

    def _constrained(
        self, pieces: Sequence[_Piece], wishes: Sequence[Constraints], first_line: int
    ) -> list[_Piece]:
        """Give the pieces what is wished for their lines."""
        first = {piece.line: row for row, piece in reversed(list(enumerate(pieces)))}
        constrained = []
        for row, piece in enumerate(pieces):
            own = wishes[piece.line]
            problem = own.contradiction(self.options.no_repeat_ngram_size)
            if problem:
                raise DataError(
                    f"Line {piece.line + first_line:,}: {problem}.",
                    fix="Take one of the wishes back.",
                )
            if row != first[piece.line]:
                own = Constraints(forbidden=own.forbidden)
            constrained.append(replace(piece, constraints=own))
        return constrained

    def _is_far_too_long(self, text: str) -> bool:
        """Whether a text need not be encoded to know that it does not fit."""
        return len(text) > _CHARACTERS_OF_SUBWORD * self._max_length

    def _size(self, text: str) -> int:
        """Subwords of ``text``; more than fit if it is far too long."""
        if self._is_far_too_long(text):
            return self._max_length + 1
        return len(self._tokenizers.source.encode(text))

    def _windows(self, ids: list[int]) -> list[list[int]]:
        """Cut what is too long still: a character of many bytes, or parts that joined badly.

        Nothing comes of no ids.
        """
        return [ids[i : i + self._max_length] for i in range(0, len(ids), self._max_length)]

    def _batches(self, pieces: Sequence[_Piece]) -> Iterator[list[int]]:
        """Rows of like length under the budget of padded source tokens.

        Short lines and a wide beam meet another limit first: the memory of the probabilities.
        """
        order = sorted(range(len(pieces)), key=lambda row: len(pieces[row].ids))
        of_row = self._search_options.num_hypotheses * self._tokenizers.target.vocab_size
        most_rows = max(1, _MOST_PROBABILITIES // self._engine.num_workers // of_row)
        batch: list[int] = []
        for row in order:
            tokens = (len(batch) + 1) * (len(pieces[row].ids) + 1)  # and EOS
            if batch and (tokens > self.options.batch_tokens or len(batch) == most_rows):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _result(
        self, source: str, pieces: Sequence[tuple[Sequence[Hypothesis], Verdict]]
    ) -> TranslationResult:
        if not pieces:
            return TranslationResult(source, "", 0.0)
        ranked = [[Alternative(self._text(h.ids), h.score) for h in found] for found, _ in pieces]
        alarms = tuple(dict.fromkeys(name for _, verdict in pieces for name in verdict.alarms))
        mended = tuple(dict.fromkeys(name for _, verdict in pieces for name in verdict.mended))
        if len(ranked) == 1:
            alternatives = tuple(ranked[0])
        else:  # the parts of a cut line are independent: only the best of each are joined
            texts = self._joiner.join(best[0].text for best in ranked)
            score = sum(best[0].score for best in ranked) / len(ranked)
            alternatives = (Alternative(texts, score),)
        best = alternatives[0]
        shown = alternatives if self.options.n_best > 1 else ()
        return TranslationResult(source, best.text, best.score, shown, alarms, mended)

    def _text(self, ids: Sequence[int]) -> str:
        """Decode; byte pieces may spell line breaks, which would break the line count."""
        return _LINE_BREAKS.sub(" ", self._tokenizers.target.decode(ids)).strip()


def _without_output(piece: _Piece, first_line: int) -> NmtError:
    """Say why a search found nothing."""
    if piece.constraints != NONE:
        return DataError(
            f"Line {piece.line + first_line:,}: no output has its prefix and its required phrases "
            "and none of the forbidden ones.",
            fix="Take some of the wishes back, or the rule of repeated n-grams.",
        )
    return CheckpointError(
        "The model's probabilities are not numbers: its weights are broken.",
        fix="Use another checkpoint, or train again.",
    )
