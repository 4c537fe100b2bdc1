"""Pairs of sentences -> the log probability of every target token, read all at once.

The numbers are those of a search that says the same, without its limits and rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.runtime.stepper import Mixture
from nmt.text import BOS_ID, EOS_ID

IdPair = tuple[Sequence[int], Sequence[int]]
"""Source and target ids of a sentence, without BOS and EOS."""

_MOST_PROBABILITIES = 1 << 23  # of one model, held at once: 32 MiB


@torch.inference_mode()
def forced_log_probs(
    models: Sequence[Transformer], mixture: Mixture, pairs: Sequence[IdPair]
) -> list[list[float]]:
    """Let the models read a batch, then normalise a few rows of probabilities at a time.

    Args:
        models: On one device. None trains.
        mixture: How their probabilities become one.
        pairs: The batch.

    Returns:
        For each pair the log probability of every target id, and of EOS.
    """
    device = models[0].output_weight.device
    source = Packed.from_rows([[*ids, EOS_ID] for ids, _ in pairs], device)
    target = Packed.from_rows([[BOS_ID, *ids] for _, ids in pairs], device)
    gold = torch.tensor([token for _, ids in pairs for token in (*ids, EOS_ID)], device=device)
    gold = gold.unsqueeze(1)
    hidden = [model(source, target) for model in models]
    at_once = max(1, _MOST_PROBABILITIES // models[0].output_weight.shape[0])
    parts = []
    for start in range(0, len(gold), at_once):
        rows = slice(start, start + at_once)
        log_probs = mixture.combine(
            [
                model.logits(values[rows]).float().log_softmax(dim=-1)
                for model, values in zip(models, hidden, strict=True)
            ]
        )
        parts.append(log_probs.gather(1, gold[rows]).squeeze(1))
    sizes = [len(ids) + 1 for _, ids in pairs]
    return [values.tolist() for values in torch.cat(parts).cpu().split(sizes)]
