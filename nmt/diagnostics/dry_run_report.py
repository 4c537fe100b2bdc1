"""What ``nmt train --dry-run`` has to say: raw numbers, and a table to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nmt.engine.compilation import Compilation
from nmt.model.cost import TRAINING_FLOPS, LengthSums, MatmulParameters, TrainingFlops

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
    sums: LengthSums
    """Its tokens, EOS included."""
    padding_waste: float
    """Share of padding in the batches' rectangles."""


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

    def as_dict(self) -> dict[str, Any]:
        """Return raw numbers for JSON: bytes, FLOPs, seconds."""
        epoch, updates, flops = self.epoch, self.budget.updates, self.flops
        source, target = epoch.sums.source_tokens, epoch.sums.target_tokens
        flops_of_update = flops.total / epoch.updates
        return {
            "name": self.name,
            "device": self.device,
            "precision": self.precision,
            "compiled": self.compilation.is_on,
            "threads": self.threads,
            "parameters": {**self.parameters, "total": sum(self.parameters.values())},
            "matmul_parameters": asdict(self.matrices),
            "flops": {
                "passes": self.passes,
                "by_source_token": TRAINING_FLOPS * self.matrices.per_source_token,
                "by_target_token": TRAINING_FLOPS * self.matrices.per_target_token,
                "per_target_token": flops.total / target,
                "per_target_token_matmul": flops.matmul / target,
                "per_target_token_attention": flops.attention / target,
                "epoch": asdict(flops) | {"total": flops.total},
                "update": flops_of_update,
                "training": updates and updates * flops_of_update,
                "per_second": flops_of_update / self.update_seconds,
            },
            "memory_bytes": asdict(self.memory) | {"total": self.memory.total},
            "epoch": {
                "pairs": epoch.pairs,
                "batches": epoch.batches,
                "updates": epoch.updates,
                "source_tokens": source,
                "target_tokens": target,
                "tokens_per_batch": (source + target) / epoch.batches,
                "tokens_per_update": (source + target) / epoch.updates,
                "padding_waste": epoch.padding_waste,
            },
            "budget": asdict(self.budget) | {"epochs": updates and updates / epoch.updates},
            "seconds": self._seconds(),
        }

    def _seconds(self) -> dict[str, Any]:
        updates, seconds, in_epoch = self.budget.updates, self.update_seconds, self.epoch.updates
        return {
            "probe_updates": self.probe_updates,
            "update": seconds,
            "epoch": in_epoch * seconds,
            "training": updates and updates * seconds,
            "target_tokens_per_second": self.epoch.sums.target_tokens / in_epoch / seconds,
            "excluded": ["validation", "saving"],
        }

    def as_text(self) -> str:
        """Return a table to read."""
        remark = f", {self.compilation.remark}" if self.compilation.remark else ""
        lines = [
            f"dry run of {self.name} on {self.device}, {self.precision}, {self.threads} threads"
            f"{remark}: nothing is trained, no run folder is written"
        ]
        for row in self._rows(self.as_dict()):
            if isinstance(row, str):
                lines += ["", row]
            else:
                label, value, note = row
                lines.append(f"  {label:34}{value:>14}  {note}".rstrip())
        return "\n".join(lines)

    def _rows(self, raw: Mapping[str, Any]) -> Iterator[_Row | str]:
        """Yield titles, and rows below them, of the numbers of `as_dict`."""
        epoch, seconds, flops = raw["epoch"], raw["seconds"], raw["flops"]
        yield "parameters"
        for part, number in raw["parameters"].items():
            yield part, f"{number:,}", ""
        yield "FLOPs of training (forward and backward)"
        yield from self._flop_rows(flops)
        yield "memory"
        yield from self._memory_rows()
        yield "epoch 0 (tokens with EOS, without padding)"
        for key in ("pairs", "batches", "updates", "source_tokens", "target_tokens"):
            yield key.replace("_", " "), f"{epoch[key]:,}", ""
        yield "tokens per batch", f"{epoch['tokens_per_batch']:,.0f}", "average, both sides"
        yield "tokens per update", f"{epoch['tokens_per_update']:,.0f}", "average, both sides"
        yield "padding waste", f"{epoch['padding_waste']:.1%}", "share of the batches' rectangles"
        yield "budget"
        if self.budget.updates is None:
            yield "updates", "unknown", "only training.patience ends training"
        else:
            may_end = self.budget.has_patience
            earlier = "; training.patience may end it earlier" if may_end else ""
            yield "updates", f"{self.budget.updates:,}", f"{self.budget.limit}{earlier}"
            yield "epochs", f"{raw['budget']['epochs']:,.2f}", ""
        yield "time, without validation and saving"
        probe = f"measured: median of a probe of {self.probe_updates} updates"
        yield "update", _duration(seconds["update"]), probe
        yield "epoch", _duration(seconds["epoch"]), ""
        yield "whole training", _duration(seconds["training"]), ""
        yield "target tokens per second", f"{seconds['target_tokens_per_second']:,.0f}", ""
        yield "FLOPs per second", _si(flops["per_second"]), "of the model, without padding"

    def _flop_rows(self, flops: Mapping[str, Any]) -> Iterator[_Row]:
        sizes = self.matrices
        passes = f"; {self.passes} passes (training.r_drop)" if self.passes > 1 else ""
        encoder = f"encoder {sizes.encoder:,} + cross-attention's keys, values {sizes.memory:,}"
        decoder = f"rest of decoder {sizes.decoder:,} + output {sizes.output:,}"
        sides = f"both sides' tokens, over the target tokens{passes}"
        yield "by each source token", _si(flops["by_source_token"]), f"6 x ({encoder})"
        yield "by each target token", _si(flops["by_target_token"]), f"6 x ({decoder})"
        yield "matrices, per target token", _si(flops["per_target_token_matmul"]), sides
        attention = "12 x width x queries x keys, all layers"
        yield "attention, per target token", _si(flops["per_target_token_attention"]), attention
        yield "all, per target token", _si(flops["per_target_token"]), ""
        yield "per update", _si(flops["update"]), "average"
        yield "whole training", _si(flops["training"]), ""

    def _memory_rows(self) -> Iterator[_Row]:
        memory = self.memory
        shapes = " and ".join("{} x ({} + {})".format(*shape) for shape in memory.largest_batches)
        halved = f"; HALVED {memory.splits} times to fit" if memory.splits else ""
        peak = f"measured: peak of an update on the largest batches, {shapes} tokens{halved}"
        yield "weights", _size(memory.weights), "exact"
        yield "float32 master weights", _size(memory.master_weights), "exact"
        yield "gradients", _size(memory.gradients), "exact"
        yield "optimizer's moments", _size(memory.optimizer), "exact; and averaged weights, if any"
        yield "activations and temporaries", _size(memory.activations), peak
        yield "total", _size(memory.total), "besides Python, torch and the data's page cache"


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
