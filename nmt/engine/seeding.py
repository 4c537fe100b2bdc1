"""The state of torch's random generators, for exact resume."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of the generators that training draws from. uint8 tensors."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Continue the generators from `random_state`."""
    torch.set_rng_state(state["random/cpu"].cpu())
    if device.type == "cuda" and "random/cuda" in state:
        torch.cuda.set_rng_state(state["random/cuda"].cpu(), device)
