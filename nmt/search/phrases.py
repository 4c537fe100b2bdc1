"""How far an output has come with the phrases that it must contain. Pure, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nmt.search.constraints import Ids, contains

Progress = tuple[int, ...]
"""Of each phrase, the length of its longest beginning that the output ends in; its whole length,
once it has been there."""


class RequiredPhrases:
    """The phrases of one sentence, each an automaton (Knuth, Morris and Pratt 1977).

    Args:
        phrases: Token ids. One that is part of another is met with it.
    """

    def __init__(self, phrases: Sequence[Ids]) -> None:
        unique = tuple(dict.fromkeys(phrases))
        self._phrases = tuple(
            phrase
            for phrase in unique
            if not any(contains(other, phrase) for other in unique if other != phrase)
        )
        self._borders = tuple(_borders(phrase) for phrase in self._phrases)
        self.num_tokens = sum(len(phrase) for phrase in self._phrases)
        """Tokens of all phrases."""
        self.start: Progress = (0,) * len(self._phrases)
        """Of an empty output."""

    def advance(self, progress: Progress, token: int) -> Progress:
        """Return the progress after one more token."""
        return tuple(
            matched if matched == len(phrase) else _next(phrase, borders, matched, token)
            for phrase, borders, matched in zip(self._phrases, self._borders, progress, strict=True)
        )

    def wanted(self, progress: Progress) -> set[int]:
        """Tokens that bring a phrase further."""
        return {phrase[matched] for phrase, matched in self._open(progress)}

    def num_met(self, progress: Progress) -> int:
        """Return how many tokens are met: of finished phrases and of the one that is furthest.

        Every wanted token that belongs to that one adds one or more.
        """
        begun = max((matched for _, matched in self._open(progress)), default=0)
        missing = sum(len(phrase) for phrase, _ in self._open(progress))
        return self.num_tokens - missing + begun

    def is_met(self, progress: Progress) -> bool:
        """Whether the output contains all phrases."""
        return not any(True for _ in self._open(progress))

    def _open(self, progress: Progress) -> Iterator[tuple[Ids, int]]:
        for phrase, matched in zip(self._phrases, progress, strict=True):
            if matched < len(phrase):
                yield phrase, matched


def _next(phrase: Ids, borders: Sequence[int], matched: int, token: int) -> int:
    """Length of the longest beginning of ``phrase`` that ends in ``token``."""
    while matched and phrase[matched] != token:
        matched = borders[matched]
    return matched + 1 if phrase[matched] == token else 0


def _borders(phrase: Ids) -> tuple[int, ...]:
    """For each length of a beginning, the longest shorter beginning that it ends in.

    >>> _borders((4, 4, 5, 4, 4))
    (0, 0, 1, 0, 1)
    """
    borders = [0, 0]
    for token in phrase[1:-1]:
        borders.append(_next(phrase, borders, borders[-1], token))
    return tuple(borders)


def bank_sizes(counts: Sequence[int], beam_size: int) -> list[int]:
    """Divide the beam among banks of hypotheses that have met equally many tokens.

    Every bank gets the same part, the last one the remainder; what a bank cannot fill goes to the
    highest banks that can use it. Source: Post and Vilar (2018), section 3.2, who pass it on from
    bank to bank.

    Args:
        counts: Candidates in each bank, by tokens met.
        beam_size: Places to give.

    Returns:
        Places of each bank, none above its count; together ``beam_size`` or all candidates.

    >>> bank_sizes([9, 9, 1], 8)
    [2, 5, 1]
    >>> bank_sizes([9, 9, 0, 0], 3)
    [0, 3, 0, 0]
    """
    share, rest = divmod(beam_size, len(counts))
    sizes = [min(count, share) for count in counts]
    sizes[-1] = min(counts[-1], share + rest)
    left = beam_size - sum(sizes)
    for bank in reversed(range(len(counts))):
        extra = min(left, counts[bank] - sizes[bank])
        sizes[bank] += extra
        left -= extra
    return sizes
