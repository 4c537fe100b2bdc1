"""How often an epoch reads each corpus: by temperature, and in stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nmt.config.data import DataConfig, StageConfig


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of training that mixes the corpora in its own way, and when it ends, if it does."""

    weights: Sequence[float]  # How often an epoch reads each corpus.
    epochs: int | None = None  # Ends after so many epochs.
    updates: int | None = None  # Ends after so many updates.
    score: float | None = None  # Ends with a validation score that is no lower.

    def is_over(self, epochs: int, updates: int) -> bool:
        """Whether it ends after so many epochs and updates of it."""
        return epochs == self.epochs or updates == self.updates


def tempered_weights(
    weights: Sequence[float], sizes: Sequence[int], temperature: float
) -> list[float]:
    """Return how often an epoch reads each corpus if p_i ~ (w_i n_i)^(1/T), and as many pairs.

    Source: temperature sampling of Arivazhagan et al. (2019), section 4.2, of corpora in place of
    languages.

    >>> tempered_weights([1, 1], [900, 100], temperature=2)
    [0.8333333333333334, 2.5]
    """
    if temperature == 1:
        return list(weights)
    wanted = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    shares = [pairs ** (1 / temperature) for pairs in wanted]
    each = sum(wanted) / (sum(shares) or 1)
    return [share * each / size if size else 0.0 for share, size in zip(shares, sizes, strict=True)]


def build_stages(data: DataConfig, sizes: Sequence[int], *, lower_is_better: bool) -> list[Stage]:
    """Return the stages of training; none if it has no stages.

    An epoch of a stage has as many pairs as the corpora that it mixes; of one that ends with epochs
    of a corpus it has that corpus once, or an equal part of it where these are no whole number.

    Args:
        data: The section of the configuration.
        sizes: Pairs of each training corpus.
        lower_is_better: Of the validation metric.
    """
    return [_stage(stage, data, sizes, lower_is_better=lower_is_better) for stage in data.stages]


def _stage(
    config: StageConfig, data: DataConfig, sizes: Sequence[int], *, lower_is_better: bool
) -> Stage:
    names = [corpus.name for corpus in data.train]
    shares = [config.mix.get(str(name), 0.0) for name in names]
    length = float(sum(size for size, share in zip(sizes, shares, strict=True) if share))
    what, until = next(iter((config.until or {}).items()), ("", 0.0))
    epochs = None
    if what in config.mix:
        index, epochs = names.index(what), math.ceil(until)
        length = until / epochs * sizes[index] / (shares[index] / sum(shares))
    pairs = [share / sum(shares) * length for share in shares]
    return Stage(
        [own / size if size else 0.0 for own, size in zip(pairs, sizes, strict=True)],
        epochs,
        int(until) if what == "steps" else None,
        (-until if lower_is_better else until) if what == "score" else None,
    )
