"""The state of torch's random generators, for exact resume."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nmt.engine.distributed import OneProcess, Processes

_BETWEEN_RANKS = 1_000_003


def random_state(device: torch.device, processes: Processes | None = None) -> dict[str, Tensor]:
    """Return the state of the generators that training draws from. uint8 tensors.

    Those of all processes: the first has the plain names, the others add their rank.
    """
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    gathered = (processes or OneProcess()).gather(state)
    return {_name(name, rank): t for rank, own in enumerate(gathered) for name, t in own.items()}


def restore_random_state(
    state: Mapping[str, Tensor], device: torch.device, processes: Processes | None = None
) -> None:
    """Continue the generators of this process from `random_state`."""
    rank = (processes or OneProcess()).rank
    torch.set_rng_state(state[_name("random/cpu", rank)].cpu())
    if device.type == "cuda" and (name := _name("random/cuda", rank)) in state:
        torch.cuda.set_rng_state(state[name].cpu(), device)


def seed_rank(seed: int, rank: int) -> None:
    """Let each process draw other numbers. The first goes on with those that it has."""
    if rank:
        torch.manual_seed(seed + rank * _BETWEEN_RANKS)


def _name(name: str, rank: int) -> str:
    return f"{name}/{rank}" if rank else name
