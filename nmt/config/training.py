"""How long to train, with which optimizer, and what to keep."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nmt.config.base import Pair, Section


class ScheduleConfig(Section):
    """The learning rate as a function of the update."""

    shape: Literal["noam", "inverse_sqrt", "cosine", "wsd", "linear", "constant"] = "inverse_sqrt"
    """Curve after warm-up. ``noam`` is the paper's, scaled by the model width; ``wsd`` holds the
    peak, then falls to zero over the last ``decay_share`` of training; ``linear`` and ``cosine``
    fall to zero at the end of the step or time budget."""
    peak_lr: float = Field(default=5e-4, gt=0, le=10)
    """Largest learning rate, reached at the end of warm-up (for ``noam``: a factor, usually 1)."""
    warmup_steps: int = Field(default=4000, ge=0)
    """Updates of linear warm-up from zero."""
    decay_share: float = Field(default=0.2, gt=0, le=1)
    """Share of the budget over which ``wsd`` decays."""
    final_share: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end of ``linear``, ``cosine`` and ``wsd``, as a share of the peak."""


class OptimizerConfig(Section):
    """AdamW (Loshchilov and Hutter 2019)."""

    betas: Pair[Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.98)
    """Decay of the running means of gradient and squared gradient."""
    epsilon: float = Field(default=1e-9, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled decay of matrices; embeddings, norms and biases are not decayed."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest norm of the whole gradient; 0 turns clipping off."""


class ValidationConfig(Section):
    """What is measured on the validation set."""

    beam_size: int = Field(default=1, ge=1)
    """Beam of the decoding behind BLEU and chrF; 1 is greedy, and quick."""
    max_sentences: int | None = Field(default=None, ge=1)
    """Decode at most this many sentences; the loss is always of the whole set."""
    metric: Literal["bleu", "chrf", "loss"] = "bleu"
    """The score that names the best checkpoint and stops early."""


class TrainingConfig(Section):
    """The training loop. Counts are optimizer updates unless they say otherwise."""

    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many updates."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Stop after about this long: a probe at the start turns it into a number of updates, which
    is recorded, so that schedules and resumed runs stay exact. Validation and saving come on
    top."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Stop after this many passes through the training data."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Seed of initial weights, data order and dropout."""
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """Arithmetic; ``auto`` is bf16 where the hardware computes in it and float32 elsewhere."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; ``auto`` is the GPU if there is one."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads; torch's choice when null."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Probability spread evenly over the vocabulary (Szegedy et al. 2016)."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    validation: ValidationConfig = ValidationConfig()
    report_every: int = Field(default=50, ge=1)
    """Updates between two lines of metrics.jsonl."""
    save_every: int = Field(default=1000, ge=1)
    """Updates between two checkpoints."""
    validate_every: int = Field(default=1000, ge=1)
    """Updates between two validations; each also saves a checkpoint."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many validations without a better score; never when null."""
    keep_last: int = Field(default=2, ge=1)
    """Newest checkpoints to keep."""
    keep_best: int = Field(default=1, ge=1)
    """Best checkpoints to keep besides."""
    on_full_disk: Literal["stop", "continue"] = "stop"
    """When a checkpoint does not fit on the disk: stop with exit code 4, or warn and train on."""

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        budget = self.max_steps or self.max_minutes or self.max_epochs
        if budget is None and self.patience is None:
            raise ValueError("give one of max_steps, max_minutes, max_epochs or patience")
        if budget is None and self.schedule.shape in ("linear", "cosine", "wsd"):
            raise ValueError(
                f"schedule.shape {self.schedule.shape} falls to its end over a budget: "
                "give max_steps, max_minutes or max_epochs"
            )
        return self
