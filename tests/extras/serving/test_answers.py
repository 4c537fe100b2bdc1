"""Results of sentences, put together for a client."""

from __future__ import annotations

from nmt.extras.serving.answers import join_results
from nmt.inference.result import Result
from nmt.text.sentences import SplitText


def test_confidence_of_several_sentences_is_weighted_by_length() -> None:
    """By hand: 9 characters at 80 and 1 at 20 are (9 * 80 + 1 * 20) / 10 = 74."""
    split = SplitText(("", " ", ""), ("a" * 9, "b"))
    results = [
        Result("a" * 9, "A", -1.0, confidence=80.0),
        Result("b", "B", -1.0, confidence=20.0),
    ]
    answer = join_results("a" * 9 + " b", split, results, joiner=" ", with_attention=False)
    assert answer["confidence"] == 74.0
