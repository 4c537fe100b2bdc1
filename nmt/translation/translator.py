"""Lines -> translations: tokenize, sort, batch, search, detokenize, restore the order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from nmt.config.decoding import DecodingConfig
from nmt.config.problems import find_problems
from nmt.errors import CheckpointError, ConfigError
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from nmt.translation.engine import Engine
from nmt.translation.splitting import split_text

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
    """The n best, the translation itself first; empty unless asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "source": self.source,
            "translation": self.text,
            "score": self.score,
            "alternatives": [asdict(alternative) for alternative in self.alternatives],
        }


@dataclass(frozen=True, slots=True)
class _Piece:
    """A line, or a part of one that is too long."""

    line: int
    ids: list[int]


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
    ) -> None:
        self.options = options
        self._engine, self._tokenizers = engine, tokenizers
        self._max_length, self._joiner, self._note = max_length, joiner, note
        self._check = check

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        checkpoint: str = "best",
        threads: int | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> Translator:
        """Load a run or model folder.

        Args:
            folder: What `nmt train` wrote.
            device: Where to compute.
            checkpoint: ``best``, ``last``, ``step-N`` or ``average``.
            threads: CPU threads; torch's choice when None.
            note: Told about lines that had to be cut and damaged checkpoints passed over.

        Raises:
            CheckpointError: A part is missing or damaged.
        """
        # Loads torch, which other engines do without.
        from nmt.translation.loading import load_torch_engine  # noqa: PLC0415

        loaded = load_torch_engine(
            Path(folder), device=device, checkpoint=checkpoint, threads=threads, note=note
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
        )

    def with_options(self, **changes: Any) -> Translator:
        """Return a translator of the same model with other decoding options.

        Raises:
            ConfigError: An option is unknown or out of bounds. Lists every problem.
        """
        try:
            options = DecodingConfig.model_validate({**self.options.model_dump(), **changes})
        except ValidationError as error:
            problems = "\n  ".join(problem.text for problem in find_problems(error))
            raise ConfigError(
                f"Decoding options: {problems}.",
                fix="Correct them; section decoding of `nmt config schema` describes each.",
            ) from error
        return Translator(
            self._engine,
            self._tokenizers,
            options,
            max_length=self._max_length,
            joiner=self._joiner,
            note=self._note,
            check=self._check,
        )

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

    def translate(self, lines: Iterable[str], **changes: Any) -> list[TranslationResult]:
        """Translate ``lines``; results come in the same order.

        Args:
            lines: One sentence each.
            changes: Decoding options that differ from the translator's, for example beam_size=1.

        Raises:
            ConfigError: An option is unknown or out of bounds.
            CheckpointError: The model's weights are broken.
        """
        if changes:
            return self.with_options(**changes).translate(lines)
        texts = list(lines)
        pieces = self._pieces(texts)
        found: list[list[Hypothesis]] = [[] for _ in pieces]
        for rows in self._batches(pieces):
            self._check()
            hypotheses = self._engine.search([pieces[row].ids for row in rows], self.options)
            for row, best in zip(rows, hypotheses, strict=True):
                found[row] = best
        if not all(found):
            raise CheckpointError(
                "The model's probabilities are not numbers: its weights are broken.",
                fix="Use another checkpoint, or train again.",
            )
        by_line: dict[int, list[list[Hypothesis]]] = {}
        for piece, best in zip(pieces, found, strict=True):
            by_line.setdefault(piece.line, []).append(best)
        return [self._result(text, by_line.get(i, [])) for i, text in enumerate(texts)]

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
        of_row = self.options.beam_size * self._tokenizers.target.vocab_size
        most_rows = max(1, _MOST_PROBABILITIES // of_row)
        batch: list[int] = []
        for row in order:
            tokens = (len(batch) + 1) * (len(pieces[row].ids) + 1)  # and EOS
            if batch and (tokens > self.options.batch_tokens or len(batch) == most_rows):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _result(self, source: str, pieces: Sequence[Sequence[Hypothesis]]) -> TranslationResult:
        if not pieces:
            return TranslationResult(source, "", 0.0)
        ranked = [
            [Alternative(self._text(h.ids), h.score) for h in hypotheses] for hypotheses in pieces
        ]
        if len(ranked) == 1:
            alternatives = tuple(ranked[0])
        else:  # the parts of a cut line are independent: only the best of each are joined
            texts = self._joiner.join(best[0].text for best in ranked)
            score = sum(best[0].score for best in ranked) / len(ranked)
            alternatives = (Alternative(texts, score),)
        best = alternatives[0]
        shown = alternatives if self.options.n_best > 1 else ()
        return TranslationResult(source, best.text, best.score, shown)

    def _text(self, ids: Sequence[int]) -> str:
        """Decode; byte pieces may spell line breaks, which would break the line count."""
        return _LINE_BREAKS.sub(" ", self._tokenizers.target.decode(ids)).strip()
