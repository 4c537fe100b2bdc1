"""How long to train, with which optimizer, and what to keep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from nmt.config.section import Binds, FilePath, Many, Pair, Registered, Section

_SCHEDULES = ("noam", "inverse_sqrt", "cosine", "wsd", "linear", "constant")
_OPTIMIZERS = ("adamw", "schedule-free", "muon", "adafactor")
_LOSSES = ("auto", "cross_entropy", "r_drop")
_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


def full_dtype_name(name: object) -> object:
    """Return the full name of a dtype that may be abbreviated.

    >>> full_dtype_name("bf16")
    'bfloat16'
    """
    return _SHORT_DTYPES.get(name, name) if isinstance(name, str) else name


def full_device_name(name: object) -> object:
    """Return our name of a device that others call ``gpu``.

    >>> full_device_name("gpu"), full_device_name("gpu:1"), full_device_name("cpu")
    ('cuda', 'cuda:1', 'cpu')
    """
    return re.sub("^gpu(?=:|$)", "cuda", name) if isinstance(name, str) else name


DeviceName = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | Annotated[str, Field(pattern=r"^cuda:\d{1,3}$")],
    BeforeValidator(full_device_name),
    Field(json_schema_extra={"allowed": "auto, cpu, cuda, cuda:N, mps"}),
]


class ScheduleConfig(Section):
    """The learning rate as a function of the update.

    Args:
        shape: Curve after warm-up; ``linear``, ``cosine`` and (in ``decay_ratio``) ``wsd`` fall.
        peak_lr: Largest learning rate, reached at the end of warm-up (for ``noam``: a factor,
            usually 1).
        warmup_steps: Updates of linear warm-up from zero.
        warmup_ratio: Warm-up as a share of the run, such as 0.06, in place of ``warmup_steps``.
        decay_ratio: Share of the budget over which ``wsd`` decays.
        min_lr_ratio: Learning rate at the end of ``linear``, ``cosine`` and ``wsd``, as a share of
            the peak.
    """

    shape: Annotated[str, Registered("schedule", _SCHEDULES)] = "inverse_sqrt"
    peak_lr: float = Field(default=5e-4, gt=0, le=10)
    warmup_steps: int = Field(default=4000, ge=0)
    warmup_ratio: float | None = Field(default=None, gt=0)
    decay_ratio: float = Field(default=0.2, gt=0, le=1)
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)

    def warmup_updates(self, total_steps: int | None) -> int:
        """Return the updates of warm-up in a run of so many.

        >>> ScheduleConfig(warmup_ratio=0.06).warmup_updates(5000)
        300
        """
        if self.warmup_ratio is None or total_steps is None:
            return self.warmup_steps
        return max(1, round(self.warmup_ratio * total_steps))

    def _disagreements(self) -> Iterator[str]:
        if self.warmup_ratio is not None and self.warmup_ratio >= 1:
            instead = f"for {self.warmup_ratio:g} updates set warmup_steps and omit warmup_ratio"
            yield f"warmup_ratio is a share of the run, below 1: {instead}"


class OptimizerConfig(Section):
    """How gradients change the weights.

    Args:
        kind: ``muon`` suits short runs of ``tiny`` (``peak_lr: 4e-3``), ``adafactor`` little
            memory.
        betas: Decay of the running means of gradient and squared gradient.
        epsilon: Added to the denominator.
        weight_decay: Decoupled decay of matrices; embeddings, norms and biases are not decayed.
        clip_norm: Largest norm of the whole gradient; 0 turns clipping off.
        momentum: Decay of the running mean of ``muon``'s gradients.
        newton_schulz_steps: Iterations by which ``muon`` makes its steps orthogonal; 3 are quicker
            and rougher.
    """

    kind: Annotated[str, Registered("optimizer", _OPTIMIZERS)] = "adamw"
    betas: Pair[Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.98)
    epsilon: float = Field(default=1e-9, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, ge=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    newton_schulz_steps: int = Field(default=5, ge=1, le=10)


class ValidationConfig(Section):
    """What is measured on the validation set.

    Args:
        beam_size: Beam of the decoding behind BLEU and chrF; 1 is greedy, and quick.
        max_sentences: Decode at most this many sentences; the loss is always of the whole set.
        metric: Names the best checkpoint and stops early: ``loss``, ``bleu``, ``chrf`` or another
            metric.
    """

    beam_size: int = Field(default=1, ge=1)
    max_sentences: int | None = Field(default=None, ge=1)
    metric: Annotated[str, Registered("metric", ("bleu", "chrf", "loss")), Binds("run")] = "bleu"


class TrainingConfig(Section):
    """The training loop. Counts are optimizer updates unless they say otherwise.

    Where this section is left out, it gets values that go with the number of training pairs, as do
    the model's preset and dropout, the vocabulary and the batches where they have none.

    Args:
        max_steps: Stop after this many updates.
        max_minutes: Stop after about so many minutes; the updates that fit are measured, and
            recorded.
        max_epochs: Stop after this many passes through the training data.
        seed: Seed of initial weights, data order and dropout.
        precision: ``auto`` is bfloat16 where the hardware has it, float16 on other GPUs, else
            float32.
        device: ``auto`` is the CUDA GPU if there is one; ``cuda:1`` is the second; ``mps`` is
            Apple's.
        compile: Compile the layers, which takes a minute; ``auto``: on a GPU if enough updates
            follow.
        deterministic: On a GPU, add in a fixed order, so that resuming is bit-exact; some kernels
            are slower.
        threads: CPU threads; torch's choice when null.
        label_smoothing: Probability spread evenly over the vocabulary (Szegedy et al. 2016).
        loss: ``cross_entropy`` (label-smoothed) or ``r_drop``; ``auto`` goes by the key
            ``r_drop_weight``.
        r_drop_weight: Weight of R-Drop, the divergence of two passes with different dropout (Liang
            et al. 2021); often 5.
        ema_decay: Decay of a moving average of the weights, such as 0.999, for validation and
            translation.
        init_from: Fine-tune: begin with the weights and the vocabulary of this run or model
            folder.
        freeze: Parts that are not trained, such as ``encoder`` or ``source_vectors``.
        activation_checkpointing: Recompute activations in the backward pass: less memory, a third
            more work.
        tensorboard: Write TensorBoard files beside metrics.jsonl (needs ``nmt[tensorboard]``).
        log_every: Updates between two lines of metrics.jsonl.
        save_every: Updates between two checkpoints.
        validate_every: Updates between two validations; each also saves a checkpoint.
        patience: Stop after this many validations without a better score; never when null.
        keep_last: Newest checkpoints to keep.
        keep_best: Best checkpoints to keep besides.
        average_last: Average so many of the newest checkpoints at the end; the average may become
            the best.
        on_full_disk: When a checkpoint does not fit on the disk: stop with exit code 4, or warn and
            train on.
    """

    max_steps: Annotated[int | None, Binds("budget")] = Field(default=None, ge=1)
    max_minutes: Annotated[float | None, Binds("budget")] = Field(default=None, gt=0)
    max_epochs: Annotated[int | None, Binds("budget")] = Field(default=None, ge=1)
    seed: Annotated[int, Binds("run")] = Field(default=1, ge=0, lt=2**31)
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        BeforeValidator(full_dtype_name),
        Binds("run"),
    ] = "auto"
    device: DeviceName = "auto"
    compile: Literal["auto"] | bool = "auto"
    deterministic: bool = True
    threads: int | None = Field(default=None, ge=1, le=1024)
    label_smoothing: Annotated[float, Binds("run")] = Field(default=0.1, ge=0, lt=1)
    loss: Annotated[str, Registered("loss", _LOSSES), Binds("run")] = "auto"
    r_drop_weight: Annotated[float, Binds("run")] = Field(default=0.0, ge=0)
    optimizer: Annotated[OptimizerConfig, Binds("run")] = OptimizerConfig()
    schedule: Annotated[ScheduleConfig, Binds("run")] = ScheduleConfig()
    validation: ValidationConfig = ValidationConfig()
    ema_decay: Annotated[float | None, Binds("run")] = Field(default=None, gt=0, lt=1)
    init_from: FilePath | None = None
    freeze: Annotated[Many[str], Binds("run")] = ()
    activation_checkpointing: bool = False
    tensorboard: bool = False
    log_every: int = Field(default=50, ge=1)
    save_every: int = Field(default=1000, ge=1)
    validate_every: int = Field(default=1000, ge=1)
    patience: int | None = Field(default=None, ge=1)
    keep_last: int = Field(default=2, ge=1)
    keep_best: int = Field(default=1, ge=1)
    average_last: int | None = Field(default=None, ge=2)
    on_full_disk: Literal["stop", "continue"] = "stop"

    def _disagreements(self) -> Iterator[str]:
        shape, steps = self.schedule.shape, self.average_last
        if shape == "inverse_sqrt" and not self.schedule.warmup_updates(total_steps=1):
            # Without warm-up the rate would be peak_lr / sqrt(step).
            yield "schedule.shape inverse_sqrt needs warm-up: give warmup_steps, or another shape"
        if not (self.max_steps or self.max_minutes or self.max_epochs):
            ends = shape in ("linear", "cosine", "wsd")
            if self.patience is None:
                yield "give one of max_steps, max_minutes, max_epochs or patience"
            elif ends or self.schedule.warmup_ratio:
                what = f"shape {shape} falls over" if ends else "warmup_ratio is a share of"
                yield f"schedule.{what} a budget: give max_steps, max_minutes or max_epochs"
        if self.optimizer.kind == "schedule-free":
            name = "optimizer.kind schedule-free"
            if shape != "constant":
                yield f"{name} needs a constant rate: set schedule.shape constant (found {shape})"
            if self.ema_decay is not None:
                yield f"{name} uses a mean of the weights already: leave ema_decay out"
            if self.optimizer.betas[0] == 0:
                yield f"{name} needs optimizer.betas above 0"
        if steps is not None and self.keep_last < steps:
            yield f"average_last {steps} needs as many: set keep_last to {steps} or more"
