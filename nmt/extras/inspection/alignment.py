"""``nmt inspect MODEL alignment``: which source words each target word was read from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nmt.extras.inspection.figure import Figure, Heatmap, Links, Part, Text
from nmt.extras.inspection.recording import record
from nmt.extras.inspection.subject import Subject, labels
from nmt.inference.result import AlignedSegment, align_words, as_pharaoh, words_of
from nmt.text.tokenizer import Tokenizer

_EXPLANATION = """\
Each target token is linked to the source token that the decoder reads most when it predicts it: \
mean over the heads of the upper half of the layers; words as `nmt translate --alignments` prints \
them. Attention was not trained to align, so a link may point beside the word translated."""


@torch.inference_mode()
def alignment(subject: Subject) -> Part:
    """Links and matrix between source and target, of words and of subwords."""
    recording = record(subject.model, subject.source, subject.target)
    start = int(subject.config.model.source_bos) + len(subject.tag_ids)
    weights = recording.mean_attention()[:-1, start:-1].tolist()  # no EOS, no BOS, no tag
    sides = (subject.tokenizers.source, subject.source_ids[start:-1]), (
        subject.tokenizers.target, subject.target_ids,
    )  # fmt: skip
    pieces = [labels(*side) for side in sides]
    aligned = align_words(weights, *pieces)
    words = [words_in(*side) for side in sides]
    strongest = [[float(x == max(row)) for x in row] for row in weights]
    figures: list[Figure] = []
    for unit, (left, right), matrix, links in (
        ("words", words, aligned.weights, _linked(aligned, len(words[1]))),
        ("subwords", pieces, weights, strongest),
    ):
        by_source = [[row[place] for row in links] for place in range(len(left))]
        figures += [
            Links(f"Alignment of {unit}", left, right, {"link": by_source}),
            Heatmap(f"Attention of {unit}", matrix, right, left, "", 0.0, 1.0, "source", "target"),
        ]
    pharaoh = Text("Pharaoh format", [as_pharaoh(aligned.links)], "source-target, from 0")
    return Part("alignment", "Alignment", _EXPLANATION, [pharaoh, *figures])


def words_in(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the words that tokens make, as `nmt.inference.result.words_of` counts them."""
    words: list[list[int]] = []
    for index, word in zip(ids, words_of(labels(tokenizer, ids)), strict=True):
        if word == len(words):
            words.append([])
        words[word].append(index)
    return [tokenizer.decode(word) for word in words]


def _linked(aligned: AlignedSegment, num_targets: int) -> list[list[float]]:
    """Return 1 where a target word is linked to a source word, else 0: (T, S)."""
    links, places = {*aligned.links}, range(aligned.source_words)
    return [
        [float((source, target) in links) for source in places] for target in range(num_targets)
    ]
