"""What a filter is."""

from __future__ import annotations

from nmt.data.findings import Finding


class Filter:
    """Says what is wrong with a pair, or None. Override one of the two methods, or both.

    Pure, quick and picklable: it is called for every pair, in any process, and must give the same
    answer each time. A reason alone, as text, stands for a `Finding` without a value.
    """

    def text_problem(self, source: str, target: str) -> Finding | str | None:
        """Return what the texts say, before the tokenizer is learned."""
        del source, target
        return None

    def length_problem(self, source_length: int, target_length: int) -> Finding | str | None:
        """Return what the numbers of subwords say."""
        del source_length, target_length
        return None
