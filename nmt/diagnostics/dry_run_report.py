"""What ``nmt train --dry-run`` has to say: raw numbers, and a table to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nmt.engine.compilation import Compilation
from nmt.model.cost import TRAINING_FLOPS, MatmulParameters, TrainingFlops, Workload

_Row = tuple[str, str, str]
"""Label, value, remark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes that training holds at its peak. All but ``activations`` are exact."""

    weights: int
    """Parameters, in the dtype that forward and backward read."""
    master_weights: int
    """Their float32 copy where that dtype is smaller; else 0."""
    gradients: int
    """Gradients, in float32 and, where weights are smaller, in their dtype besides."""
    optimizer: int
    """Moments, and averages of the weights if any, float32."""
    activations: int
    """Measured: what one update on the largest batch takes on top of the rest, at its peak."""
    largest_batches: tuple[tuple[int, int, int], ...]
    """Where ``activations`` was measured: pairs, and longest source and target with EOS."""
    splits: int
    """How often they had to be halved to fit into the memory."""

    @property
    def total(self) -> int:
        """All parts."""
        held = self.weights + self.master_weights + self.gradients + self.optimizer
        return held + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """The first epoch as it will be read."""

    pairs: int
    batches: int
    updates: int
    workload: Workload
    """Its tokens, EOS included."""
    padding_waste: float
    """Share of padding in the batches' rectangles."""

    @property
    def tokens(self) -> int:
        """Source and target tokens, EOS included."""
        return self.workload.source_tokens + self.workload.target_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """When training ends."""

    updates: int | None
    """Updates in all, from the first; None when only patience ends training."""
    limit: str | None
    """The key of the configuration that says so."""
    has_patience: bool
    """Whether training may end earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunReport:
    """What training would take."""

    name: str
    device: str
    precision: str
    compilation: Compilation
    threads: int
    parameters: Mapping[str, int]
    """Parameters by part; a tied table is counted once."""
    matrices: MatmulParameters
    passes: int
    """How often an update reads its batches: twice in R-Drop."""
    flops: TrainingFlops
    """Of the first epoch, all passes."""
    memory: MemoryReport
    epoch: EpochReport
    budget: BudgetReport
    probe_updates: int
    """Updates made to measure ``update_seconds``."""
    update_seconds: float
    """Median time of an update, without validation and saving."""

    @property
    def epochs(self) -> float | None:
        """Passes through the data that the budget holds, each taken to be as long as the first."""
        updates = self.budget.updates
        return None if updates is None else updates / self.epoch.updates

    def _of_training(self, of_update: float) -> float | None:
        updates = self.budget.updates
        return None if updates is None else updates * of_update

    def as_dict(self) -> dict[str, Any]:
        """Return raw numbers for JSON: bytes, FLOPs, seconds."""
        return {
            "name": self.name,
            "device": self.device,
            "precision": self.precision,
            "compiled": self.compilation.is_on,
            "threads": self.threads,
            "parameters": {**self.parameters, "total": sum(self.parameters.values())},
            "matmul_parameters": asdict(self.matrices),
            "flops": self._flops(),
            "memory_bytes": asdict(self.memory) | {"total": self.memory.total},
            "epoch": self._epoch(),
            "budget": asdict(self.budget) | {"epochs": self.epochs},
            "seconds": self._seconds(),
        }

    def _flops(self) -> dict[str, Any]:
        per_update = self.flops.total / self.epoch.updates
        targets = self.epoch.workload.target_tokens
        return {
            "passes": self.passes,
            "by_source_token": TRAINING_FLOPS * self.matrices.per_source_token,
            "by_target_token": TRAINING_FLOPS * self.matrices.per_target_token,
            "per_target_token": self.flops.total / targets,
            "per_target_token_matmul": self.flops.matmul / targets,
            "per_target_token_attention": self.flops.attention / targets,
            "epoch": asdict(self.flops) | {"total": self.flops.total},
            "update": per_update,
            "training": self._of_training(per_update),
            "per_second": per_update / self.update_seconds,
        }

    def _epoch(self) -> dict[str, Any]:
        epoch = self.epoch
        return {
            "pairs": epoch.pairs,
            "batches": epoch.batches,
            "updates": epoch.updates,
            "source_tokens": epoch.workload.source_tokens,
            "target_tokens": epoch.workload.target_tokens,
            "tokens_per_batch": epoch.tokens / epoch.batches,
            "tokens_per_update": epoch.tokens / epoch.updates,
            "padding_waste": epoch.padding_waste,
        }

    def _seconds(self) -> dict[str, Any]:
        target_tokens = self.epoch.workload.target_tokens / self.epoch.updates
        return {
            "probe_updates": self.probe_updates,
            "update": self.update_seconds,
            "epoch": self.epoch.updates * self.update_seconds,
            "training": self._of_training(self.update_seconds),
            "target_tokens_per_second": target_tokens / self.update_seconds,
            "excluded": ["validation", "saving"],
        }

    def as_text(self) -> str:
        """Return a table to read."""
        sections = {
            "parameters": self._parameter_rows(),
            "FLOPs of training (forward and backward)": self._flop_rows(),
            "memory": self._memory_rows(),
            "epoch 0 (tokens with EOS, without padding)": self._epoch_rows(),
            "budget": self._budget_rows(),
            "time, without validation and saving": self._time_rows(),
        }
        remark = f", {self.compilation.remark}" if self.compilation.remark else ""
        lines = [
            f"dry run of {self.name} on {self.device}, {self.precision}, {self.threads} threads"
            f"{remark}: nothing is trained, no run folder is written"
        ]
        for title, rows in sections.items():
            lines += ["", title]
            lines += [f"  {label:34}{value:>14}  {note}".rstrip() for label, value, note in rows]
        return "\n".join(lines)

    def _parameter_rows(self) -> Iterator[_Row]:
        for part, number in self.parameters.items():
            yield part, f"{number:,}", ""
        yield "total", f"{sum(self.parameters.values()):,}", ""

    def _flop_rows(self) -> Iterator[_Row]:
        flops, sizes = self._flops(), self.matrices
        passes = f"; {self.passes} passes (training.r_drop)" if self.passes > 1 else ""
        yield (
            "by each source token",
            _si(flops["by_source_token"]),
            f"6 x (encoder {sizes.encoder:,} + cross-attention's keys, values {sizes.memory:,})",
        )
        yield (
            "by each target token",
            _si(flops["by_target_token"]),
            f"6 x (rest of decoder {sizes.decoder:,} + output {sizes.output:,})",
        )
        yield (
            "matrices, per target token",
            _si(flops["per_target_token_matmul"]),
            "both sides' tokens, over the target tokens" + passes,
        )
        yield (
            "attention, per target token",
            _si(flops["per_target_token_attention"]),
            "12 x width x queries x keys, all layers",
        )
        yield "all, per target token", _si(flops["per_target_token"]), ""
        yield "per update", _si(flops["update"]), "average"
        yield "whole training", _si(flops["training"]), ""

    def _memory_rows(self) -> Iterator[_Row]:
        memory = self.memory
        shapes = " and ".join("{} x ({} + {})".format(*shape) for shape in memory.largest_batches)
        halved = f"; HALVED {memory.splits} times to fit" if memory.splits else ""
        yield "weights", _size(memory.weights), "exact"
        yield "float32 master weights", _size(memory.master_weights), "exact"
        yield "gradients", _size(memory.gradients), "exact"
        yield "optimizer's moments", _size(memory.optimizer), "exact; and averaged weights, if any"
        yield (
            "activations and temporaries",
            _size(memory.activations),
            f"measured: peak of an update on the largest batches, {shapes} tokens{halved}",
        )
        yield "total", _size(memory.total), "besides Python, torch and the data's page cache"

    def _epoch_rows(self) -> Iterator[_Row]:
        epoch = self._epoch()
        for key in ("pairs", "batches", "updates", "source_tokens", "target_tokens"):
            yield key.replace("_", " "), f"{epoch[key]:,}", ""
        yield "tokens per batch", f"{epoch['tokens_per_batch']:,.0f}", "average, both sides"
        yield "tokens per update", f"{epoch['tokens_per_update']:,.0f}", "average, both sides"
        yield "padding waste", f"{epoch['padding_waste']:.1%}", "share of the batches' rectangles"

    def _budget_rows(self) -> Iterator[_Row]:
        budget, epochs = self.budget, self.epochs
        if budget.updates is None or epochs is None:
            yield "updates", "unknown", "only training.patience ends training"
            return
        earlier = "; training.patience may end it earlier" if budget.has_patience else ""
        yield "updates", f"{budget.updates:,}", f"{budget.limit}{earlier}"
        yield "epochs", f"{epochs:,.2f}", ""

    def _time_rows(self) -> Iterator[_Row]:
        seconds = self._seconds()
        probe = f"measured: median of a probe of {self.probe_updates} updates"
        yield "update", _duration(seconds["update"]), probe
        yield "epoch", _duration(seconds["epoch"]), ""
        yield "whole training", _duration(seconds["training"]), ""
        yield "target tokens per second", f"{seconds['target_tokens_per_second']:,.0f}", ""
        yield "FLOPs per second", _si(self._flops()["per_second"]), "of the model, without padding"


def _si(number: float | None) -> str:
    """Write a number with three digits and a decimal prefix."""
    if number is None:
        return "unknown"
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if number < 999.5:
            return f"{number:.3g} {prefix}".rstrip()
        number /= 1000
    return f"{number:.3g} Z"


def _size(size_bytes: int) -> str:
    if size_bytes == 0:
        return "0"
    mebibytes = size_bytes / 2**20
    return f"{mebibytes:,.1f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:,.2f} GiB"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"
