"""Two run folders -> what differs between their ends, to the bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.files import (
    MODEL,
    OPTIMIZER,
    checkpoint_dir,
    load_tensors,
    newest_checkpoint,
)
from nmt.diagnostics.watched_training import read_metrics
from nmt.errors import CheckpointError

_MOST_TENSORS = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ends of two runs. Pairs are of the one and of the other."""

    weights_sha256: tuple[str, str]
    """Hashes of model.safetensors."""
    optimizer_sha256: tuple[str, str]
    """Hashes of optimizer.safetensors, which holds the random generators too."""
    metrics_lines: int
    """Lines of metrics.jsonl of the one."""
    differences: tuple[str, ...]
    """What differs, in words; times in metrics.jsonl do not count."""


def compare_runs(one: Path, other: Path, step: int) -> Comparison:
    """Compare the checkpoints of ``step``, the last of both runs, and the losses on the way.

    Raises:
        CheckpointError: One of them has no whole checkpoint of this step as its newest.
    """
    ends = _end(one, step), _end(other, step)
    differences: list[str] = []
    hashes = {}
    for name in (MODEL, OPTIMIZER):
        left, right = (_sha256(end / name) for end in ends)
        hashes[name] = left, right
        if left != right:
            differences.append(f"{name}: sha256 {left} and {right}")
            differences += _differing_tensors(ends[0] / name, ends[1] / name)
    metrics = [[_timeless(line) for line in read_metrics(run)] for run in (one, other)]
    differences += _differing_lines(*metrics)
    return Comparison(hashes[MODEL], hashes[OPTIMIZER], len(metrics[0]), tuple(differences))


def _end(run_dir: Path, step: int) -> Path:
    newest = newest_checkpoint(run_dir, strict=True)
    if newest is None or newest != checkpoint_dir(run_dir, step):
        raise CheckpointError(
            f"{run_dir} was trained to step {step:,}, but its newest checkpoint is "
            f"{newest.name if newest else 'missing'}.",
            fix="Start again; if it stays so, please report it.",
        )
    return newest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _timeless(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if "second" not in key}


def _differing_lines(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Tell the first difference."""
    for number, (left, right) in enumerate(zip(one, other, strict=False), start=1):
        for key in sorted({*left, *right}):
            if left.get(key) != right.get(key):
                place = f"metrics.jsonl: line {number} (step {left.get('step')}), {key}"
                yield f"{place}: {left.get(key)} and {right.get(key)}"
                return
    if len(one) != len(other):
        yield f"metrics.jsonl: {len(one)} lines and {len(other)}"


def _differing_tensors(one: Path, other: Path) -> Iterator[str]:
    """Tell the first differences, in the order of the names."""
    left, right = load_tensors(one), load_tensors(other)
    names = sorted({*left, *right})
    found = [name for name in names if not _is_same(left.get(name), right.get(name))]
    yield f"  {len(found)} of {len(names)} tensors differ"
    for name in found[:_MOST_TENSORS]:
        yield f"  {name}: {_difference(left.get(name), right.get(name))}"


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors have the same bits; NaN equals itself here."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    one_bytes, other_bytes = (tensor.reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(one_bytes, other_bytes)


def _difference(one: Tensor | None, other: Tensor | None) -> str:
    if one is None or other is None:
        return "only in one of them"
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    apart = (one.double() - other.double()).abs()
    return f"{int((apart != 0).sum()):,} of {apart.numel():,} values, by up to {apart.max():.3g}"
