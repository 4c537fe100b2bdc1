"""``nmt inspect MODEL alignment``: which source words each target word was read from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from nmt.extras.inspection.figure import Figure, Heatmap, Links, Part, Text
from nmt.extras.inspection.recording import record
from nmt.extras.inspection.subject import Subject, labels
from nmt.inference.alignment import align_words, as_pharaoh, words_of
from nmt.text.tokenizer import Tokenizer

_EXPLANATION = """\
Each target token is linked to the source token that the decoder reads most when it predicts it: \
mean over the heads of the upper half of the layers; words as `nmt translate` prints them with \
`alignments`. Attention was not trained to align, so a link may point beside the word translated."""


@torch.inference_mode()
def alignment(subject: Subject) -> Part:
    """Links and matrix between source and target, of words and of subwords."""
    recording = record(subject.model, subject.source, subject.target)
    start = int(subject.config.model.source_bos) + len(subject.tag_ids)
    weights = recording.mean_attention()[:-1, start:-1].tolist()  # no EOS, no BOS, no tag
    source, target = subject.tokenizers
    sides = (source, subject.source_ids[start:-1]), (target, subject.target_ids)
    pieces = [labels(*side) for side in sides]
    aligned = align_words(weights, *pieces)
    words, linked = [_words(*side) for side in sides], {*aligned.links}
    word_links = [[float((i, j) in linked) for j in range(len(words[1]))]
                  for i in range(aligned.source_words)]  # fmt: skip
    piece_links = [[float(row[i] == max(row)) for row in weights] for i in range(len(pieces[0]))]
    figures: list[Figure] = [
        Text("Pharaoh format", [as_pharaoh(aligned.links)], "source-target, from 0")
    ]
    for unit, (left, right), matrix, links in (
        ("words", words, aligned.weights, word_links),
        ("subwords", pieces, weights, piece_links),
    ):
        figures += [
            Links(f"Alignment of {unit}", left, right, {"link": links}),
            Heatmap(f"Attention of {unit}", matrix, right, left, "", 0.0, 1.0, "source", "target"),
        ]
    return Part("alignment", "Alignment", _EXPLANATION, figures)


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the words that tokens make, as `nmt.inference.alignment.words_of` counts them."""
    numbered = zip(words_of(labels(tokenizer, ids)), ids, strict=True)
    groups = groupby(numbered, key=lambda each: each[0])
    return [tokenizer.decode([index for _, index in group]) for _, group in groups]
