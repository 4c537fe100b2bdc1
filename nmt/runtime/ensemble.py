"""Which models translate together. Loads no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.errors import ConfigError

Mean = Literal["arithmetic", "geometric"]


@dataclass(frozen=True, slots=True)
class Ensemble:
    """What joins the first model. They may differ in shape, not in languages and vocabulary."""

    others: tuple[Path, ...] = ()
    """Run or model folders; none: the first model is alone."""
    weights: tuple[float, ...] = ()
    """Of the first model and of the others; equal ones where there are none."""
    mean: Mean = "arithmetic"
    """Of the probabilities of the next token, or of their logarithms."""

    def shares(self) -> tuple[float, ...]:
        """Return the weight of every model; they sum to 1.

        Raises:
            ConfigError: Too few, too many, negative or only zeros.

        >>> Ensemble((Path("b"), Path("c")), (1.0, 1.0, 2.0)).shares()
        (0.25, 0.25, 0.5)
        """
        count = len(self.others) + 1
        weights = self.weights or (1.0,) * count
        shown = ",".join(f"{weight:g}" for weight in weights)
        if len(weights) != count:
            raise ConfigError(
                f"{len(weights)} weights ({shown}) for {count} model{'s' if count > 1 else ''}.",
                fix="Give one weight for MODEL and one for each --with, in this order.",
            )
        total = sum(weights)
        if min(weights) < 0 or not 0 < total < math.inf:
            raise ConfigError(
                f"The weights {shown} are no weights.",
                fix="Give numbers that are not negative, at least one of them above 0.",
            )
        return tuple(weight / total for weight in weights)


def parse_weights(text: str | None) -> tuple[float, ...]:
    """Read what stands behind ``--weights``.

    Raises:
        ConfigError: It is no list of numbers.

    >>> parse_weights("1,1,2.5")
    (1.0, 1.0, 2.5)
    """
    if text is None:
        return ()
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"--weights is {text!r}.", fix="Write numbers with commas between, as in 1,1,2."
        ) from error
