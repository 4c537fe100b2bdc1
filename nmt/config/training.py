"""Sections of the configuration about training: budget, optimizer, schedule, checkpoints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from nmt.config.section import (
    BindsBudget,
    BindsRun,
    Count,
    FilePath,
    Free,
    Many,
    Pair,
    Probability,
    Registered,
    Section,
    Share,
)

_Metric = Annotated[
    str,
    Registered(
        "metric",
        last=("loss", "command"),
        hidden=("external",),
        advice="; for a different metric, set training.validation.command",
    ),
]
_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


def full_dtype_name(name: object) -> object:
    """Return the full name of a dtype that may be abbreviated.

    >>> full_dtype_name("bf16")
    'bfloat16'
    """
    if not isinstance(name, str):
        return name
    return _SHORT_DTYPES.get(name, name)


def full_device_name(name: object) -> object:
    """Return ``cuda`` for ``gpu``; keep other names of devices.

    >>> full_device_name("gpu"), full_device_name("gpu:1"), full_device_name("cpu")
    ('cuda', 'cuda:1', 'cpu')
    """
    if not isinstance(name, str):
        return name
    return re.sub("^gpu(?=:|$)", "cuda", name)


def split_command(command: object) -> object:
    """Split a command into words as a shell does; keep a list.

    >>> split_command("score --name 'a b' {hypothesis}")
    ['score', '--name', 'a b', '{hypothesis}']
    """
    if not isinstance(command, str):
        return command
    return shlex.split(command)


_Precision = Literal["auto", "float32", "bfloat16", "float16"]
_Difference = Literal["vocabulary", "layers", "encoder", "decoder"]
_COMMAND = Field(json_schema_extra={"allowed": "a command as text, or a list of its words"})
DeviceName = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | Annotated[str, Field(pattern=r"^cuda:\d{1,3}$")],
    BeforeValidator(full_device_name),
    Field(json_schema_extra={"allowed": "auto, cpu, cuda, cuda:N, mps"}),
]


class ScheduleConfig(Section):
    """Learning rate schedule.

    Args:
        shape: Shape of the learning rate after warm-up. ``linear`` and ``cosine`` decay until the
            end, ``wsd`` only during ``decay_ratio``.
        peak_lr: Maximum learning rate, reached at the end of warm-up. For ``noam`` a factor,
            usually 1.
        warmup_steps: Number of updates of linear warm-up.
        warmup_ratio: Warm-up as a share of the run, for example 0.06; replaces ``warmup_steps``.
        decay_ratio: Share of the run in which ``wsd`` decays.
        min_lr_ratio: Final learning rate of ``linear``, ``cosine`` and ``wsd``, as a share of
            ``peak_lr``.
    """

    shape: Annotated[str, Registered("schedule")] = "inverse_sqrt"
    peak_lr: float = Field(default=5e-4, gt=0, le=10)
    warmup_steps: NonNegativeInt = 4000
    warmup_ratio: PositiveFloat | None = None
    decay_ratio: float = Field(default=0.2, gt=0, le=1)
    min_lr_ratio: Share = 0.0

    @property
    def ends(self) -> bool:
        """Whether the learning rate decays until the end of the training."""
        return self.shape in ("linear", "cosine", "wsd")

    @property
    def needs_budget(self) -> bool:
        """Whether the learning rate depends on the planned number of updates."""
        return self.ends or self.warmup_ratio is not None

    def warmup_updates(self, total_steps: int | None) -> int:
        """Return the number of warm-up updates.

        >>> ScheduleConfig(warmup_ratio=0.06).warmup_updates(5000)
        300
        """
        if self.warmup_ratio is None or total_steps is None:
            return self.warmup_steps
        return max(1, round(self.warmup_ratio * total_steps))

    def _disagreements(self) -> Iterator[str]:
        if self.warmup_ratio is not None and self.warmup_ratio >= 1:
            instead = f"for {self.warmup_ratio:g} updates set warmup_steps and remove warmup_ratio"
            yield f"warmup_ratio is a share of the run, below 1: {instead}"


class OptimizerConfig(Section):
    """Optimizer.

    Args:
        kind: Optimizer. ``muon`` suits short runs of the preset ``tiny`` (``peak_lr: 4e-3``);
            ``adafactor`` needs little memory.
        betas: Decay rates of the running means of the gradient and of its square.
        epsilon: Epsilon in the denominator.
        weight_decay: Decoupled weight decay of matrices; not applied to embeddings, norms and
            biases.
        clip_norm: Maximum norm of the gradient. 0: no clipping.
        momentum: Momentum of ``muon``.
        newton_schulz_steps: Number of Newton-Schulz iterations of ``muon``. 2 is faster and as good
            in short runs.
    """

    kind: Annotated[str, Registered("optimizer")] = "adamw"
    betas: Pair[Probability] = (0.9, 0.98)
    epsilon: PositiveFloat = 1e-9
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: NonNegativeFloat = 1.0
    momentum: Probability = 0.95
    newton_schulz_steps: int = Field(default=5, ge=1, le=10)


class ValidationConfig(Section):
    """Validation during training.

    Args:
        beam_size: Beam size for BLEU and chrF; 1 (greedy search) is fastest.
        max_sentences: Maximum sentences of each set to translate for BLEU and chrF; the loss always
            uses the whole set, and the first of several references.
        metric: Metric that selects the best checkpoint and stops early: ``loss``, ``command``, or
            a metric of ``nmt evaluate``, such as ``bleu`` or ``comet:MODEL``. null: ``chrf`` if a
            target language is written without spaces, such as Chinese or Thai; otherwise ``bleu``.
        command: Program that scores the translations, for example ``python score.py {source}
            {hypothesis} {reference}``. The names in braces are replaced by text files; a word
            with ``{reference}`` is repeated for each reference of the set. The last word that it
            prints is the score; higher is better.
        choose_by: Score that selects the best checkpoint if there are several validation sets:
            their mean, or the score of the worst set (``minimum``).
    """

    beam_size: Free[Count] = 1
    max_sentences: Free[Count | None] = None
    metric: BindsRun[_Metric | None] = None
    command: Free[Annotated[Many[str], BeforeValidator(split_command), _COMMAND]] = ()
    choose_by: BindsRun[Literal["mean", "minimum"]] = "mean"

    @property
    def metric_name(self) -> str:
        """``metric`` without its argument: ``comet`` for ``comet:MODEL``."""
        assert self.metric is not None, "`nmt.commands.config.with_metric` chooses it"
        return self.metric.partition(":")[0]

    def _disagreements(self) -> Iterator[str]:
        if self.command and not any("{hypothesis}" in word for word in self.command):
            yield "command must contain {hypothesis}, which is replaced by the file to score"
        # A word with spaces may be a script, in which braces have a different meaning.
        joined = "\n".join(word for word in self.command if " " not in word)
        names = re.findall(r"\{(\w+)\}", joined)
        for name in sorted({*names} - {"source", "hypothesis", "reference"}):
            yield f"command contains {{{name}}}: use {{source}}, {{hypothesis}} or {{reference}}"
        if self.metric == "command" and not self.command:
            yield "metric command needs a program: set command"


class LoraConfig(Section):
    """Low-rank adaptation (LoRA, Hu et al. 2021) of the model of ``init_from``.

    Its weights are frozen. The checkpoints contain only small trained matrices, the adapter. The
    default is null: all weights are trained.

    Args:
        rank: Rank of the trained matrices.
        alpha: Scale of the change: ``alpha`` / ``rank`` times the product of the matrices.
        dropout: Dropout of the input of the adapter.
        layers: Layers that get an adapter: ``attention`` and ``feed-forward``. With ``embeddings``,
            the embedding matrices are trained in full, as new subwords need.
    """

    rank: int = Field(default=16, ge=1, le=4096)
    alpha: PositiveFloat = 32.0
    dropout: Probability = 0.0
    layers: Many[Literal["attention", "feed-forward", "embeddings"]] = Field(
        default=("attention", "feed-forward"), min_length=1
    )


class TrainingConfig(Section):
    """Training. Steps are optimizer updates.

    nmt chooses time, optimizer, schedule and ``r_drop_weight`` for the size of the training text,
    and also model preset, dropout, vocabulary size and batch size, unless you set them. If you set
    ``model.preset``, the size of the model, or ``init_from``, other keys have the defaults below.

    Args:
        max_steps: Maximum number of updates.
        max_minutes: Time in minutes after the preparation of the data, with validations and the
            work at the end. nmt plans the number of updates, again and again while it trains.
        max_epochs: Maximum number of passes through the training data.
        seed: Random seed of initial weights, data order and dropout.
        precision: Number format. ``auto``: bfloat16 if the hardware supports it, float16 on other
            GPUs, otherwise float32.
        device: Device. ``auto``: an NVIDIA GPU if there is one. ``cuda:1`` is the second GPU;
            ``mps`` is Apple's GPU, which ``auto`` never chooses.
        compile: Compile the layers, which takes a minute. ``auto``: on a GPU, if the run is long
            enough.
        deterministic: Make GPU training bit-exact when it is resumed; some operations are slower.
        threads: Number of CPU threads. null: those of PyTorch, usually one for each core; with
            ``max_minutes``, fewer while other programs use the processor.
        label_smoothing: Probability spread evenly over the vocabulary (Szegedy et al. 2016).
        loss: Training loss: ``cross_entropy`` (label-smoothed) or ``r_drop``. ``auto``: ``r_drop``
            if ``r_drop_weight`` is set and ``max_minutes`` is long enough to gain from it.
        r_drop_weight: Weight of R-Drop, the divergence between two passes with different dropout
            (Liang et al. 2021). 5 is usual; doubles the work per update.
        ema_decay: Decay of the moving average of the weights, for example 0.999. The average is
            used for validation and translation.
        init_from: Run or model folder to fine-tune: start with its weights and vocabulary. Omitted
            keys of ``model``, ``tokenizer`` and ``decoding``, and ``data.language_tags``, have the
            values of that model. Other values of ``model`` and ``tokenizer`` are refused.
        init_differences: Differences from the model of ``init_from``. ``vocabulary``: this run
            learns a vocabulary, and subwords of both vocabularies keep their embeddings.
            ``layers``: the numbers of layers differ. ``encoder`` and ``decoder``: this part starts
            with random weights.
        freeze: Parts of the model that are not trained, for example ``encoder`` or
            ``source_vectors``.
        activation_checkpointing: Recompute activations in the backward pass: less memory, a third
            more work.
        trackers: Additional services that record the run: ``tensorboard``, ``wandb``, ``mlflow``,
            ``trackio``. Each needs the extra of the same name.
        log_every: Updates between two log lines (log and metrics.jsonl).
        save_every: Updates between two checkpoints.
        validate_every: Updates between two validations. Each validation also saves a checkpoint.
            With ``max_minutes``, a multiple of it if validations would take too much time.
        patience: Stop after this many validations without improvement. Validations in the warm-up
            or with a score that is noise do not count, and training goes on while the loss falls.
            null: never.
        keep_last: Number of most recent checkpoints to keep.
        keep_best: Number of best checkpoints to keep in addition.
        average_last: Number of most recent checkpoints to average at the end. The average becomes
            the best model if its score is better.
        on_full_disk: If the disk is full at a checkpoint: stop with exit code 4, or warn and
            continue training.
    """

    max_steps: BindsBudget[Count | None] = None
    max_minutes: BindsBudget[PositiveFloat | None] = None
    max_epochs: BindsBudget[Count | None] = None
    seed: BindsRun[int] = Field(default=1, ge=0, lt=2**31)
    precision: BindsRun[Annotated[_Precision, BeforeValidator(full_dtype_name)]] = "auto"
    device: Free[DeviceName] = "auto"
    compile: Free[Literal["auto"] | bool] = "auto"
    deterministic: Free[bool] = True
    threads: Free[int | None] = Field(default=None, ge=1, le=1024)
    label_smoothing: BindsRun[Probability] = 0.1
    loss: BindsRun[Annotated[str, Registered("loss", first=("auto",))]] = "auto"
    r_drop_weight: BindsRun[NonNegativeFloat] = 0.0
    optimizer: BindsRun[OptimizerConfig] = OptimizerConfig()
    schedule: BindsRun[ScheduleConfig] = ScheduleConfig()
    validation: ValidationConfig = ValidationConfig()
    ema_decay: BindsRun[float | None] = Field(default=None, gt=0, lt=1)
    init_from: Free[FilePath | None] = None
    init_differences: BindsRun[Many[_Difference]] = ()
    lora: BindsRun[LoraConfig | None] = None
    freeze: BindsRun[Many[str]] = ()
    activation_checkpointing: Free[bool] = False
    trackers: Free[Many[Annotated[str, Registered("tracker")]]] = ()
    log_every: Free[Count] = 50
    save_every: Free[Count] = 1000
    validate_every: Free[Count] = 1000
    patience: Free[Count | None] = None
    keep_last: Free[Count] = 2
    keep_best: Free[Count] = 1
    average_last: Free[int | None] = Field(default=None, ge=2)
    on_full_disk: Free[Literal["stop", "continue"]] = "stop"

    @property
    def keeps_vocabulary(self) -> bool:
        """Whether the vocabulary is that of the model of ``init_from``."""
        return self.init_from is not None and "vocabulary" not in self.init_differences

    def _disagreements(self) -> Iterator[str]:
        shape = self.schedule.shape
        for key in ("init_differences", "lora"):
            if getattr(self, key) and self.init_from is None:
                yield f"{key} needs init_from, the model to start from"
        if self.lora and self.init_differences:
            yield "lora adapts the whole model of init_from: remove init_differences"
        # A ratio always gives at least one update of warm-up, so any number of steps will do.
        if shape == "inverse_sqrt" and not self.schedule.warmup_updates(total_steps=1):
            # Without warm-up the rate would be peak_lr / sqrt(step).
            yield "schedule.shape inverse_sqrt needs warm-up: set warmup_steps"
        if not (self.max_steps or self.max_minutes or self.max_epochs):
            if self.patience is None:
                yield "set max_steps, max_minutes, max_epochs or patience"
            elif self.schedule.needs_budget:
                reason = "warmup_ratio is a share of"
                if self.schedule.ends:
                    reason = f"shape {shape} depends on"
                yield f"schedule.{reason} the budget: set max_steps, max_minutes or max_epochs"
        if self.optimizer.kind == "schedule-free":
            kind = "optimizer.kind schedule-free"
            if shape != "constant":
                yield f"{kind} needs a constant rate: set schedule.shape constant (found {shape})"
            if self.ema_decay is not None:
                yield f"{kind} already averages the weights: remove ema_decay"
            if self.optimizer.betas[0] == 0:
                yield f"{kind} needs optimizer.betas above 0"
        if self.average_last is not None and self.keep_last < self.average_last:
            yield f"average_last {self.average_last} needs keep_last {self.average_last} or more"
