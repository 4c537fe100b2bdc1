"""What the output of one sentence must look like. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Constraints:
    """Wishes for one sentence, as target ids. The phrases are of one token or more.

    A rule about ids is not quite one about text: a phrase may be written in other subwords.
    """

    prefix: Ids = ()
    """What the output begins with, or with ``prefix_bias_beta`` is drawn to. Any ids but PAD, BOS
    and EOS; no other rule holds for a forced prefix."""
    required: tuple[Ids, ...] = ()
    """Phrases that the output contains, in any order; they may overlap, and the prefix counts."""
    forbidden: tuple[Ids, ...] = ()
    """Phrases that the output does not contain, unless in a forced prefix."""

    def __post_init__(self) -> None:
        phrases = (*self.required, *self.forbidden)
        if not all(phrases):
            raise ValueError("a phrase has no tokens")
        if {PAD_ID, BOS_ID, EOS_ID} & {token for ids in (self.prefix, *phrases) for token in ids}:
            raise ValueError("PAD, BOS and EOS are no part of an output")

    @property
    def num_tokens(self) -> int:
        """Tokens that an output needs for its prefix and required phrases, at most."""
        return len(self.prefix) + sum(len(phrase) for phrase in self.required)

    def contradiction(self, no_repeat_ngram_size: int = 0) -> str | None:
        """Say why no output can be as wished for, if that is plain from the phrases alone.

        >>> Constraints(required=((5, 6, 7),), forbidden=((6, 7),)).contradiction()
        'a required phrase contains a forbidden one'
        """
        for phrase in self.required:
            if UNK_ID in phrase:
                return "a required phrase has characters that the model cannot write"
            if any(contains(phrase, banned) for banned in self.forbidden):
                return "a required phrase contains a forbidden one"
            size = no_repeat_ngram_size
            ngrams = [phrase[i : i + size] for i in range(len(phrase) - size + 1)]
            if size and len(set(ngrams)) < len(ngrams):
                return f"a required phrase repeats {size} tokens, against no_repeat_ngram_size"
        return None


NONE = Constraints()


def contains(ids: Ids, phrase: Ids) -> bool:
    """Whether ``phrase`` stands somewhere in ``ids``.

    >>> contains((4, 5, 6), (5, 6)), contains((4, 5, 6), (4, 6))
    (True, False)
    """
    return any(ids[i : i + len(phrase)] == phrase for i in range(len(ids) - len(phrase) + 1))
