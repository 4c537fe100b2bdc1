"""The stages of `gpu_report.py`. Each stage prints its results as lines of JSON.

Some stages run whole `nmt` commands, the others use parts of the package. Random data resemble WMT:
the ids follow Zipf's law in a vocabulary of 37,000, the lengths a log-normal distribution.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

# These parts of the package are not public, so this file must change when they move.
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.training import OptimizerConfig, TrainingConfig
from nmt.data.loader import Batch, collate
from nmt.data.plan import epoch_random, plan_batches
from nmt.device import compilation
from nmt.device.compilation import compile_layers
from nmt.device.compilation import compiled as compile_function
from nmt.device.device import choose_device, deterministic, prepare_process
from nmt.device.precision import Precision, choose_precision
from nmt.extras.planning.plan import LengthSums, training_flops
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model import decoder_state
from nmt.model.attention import FLASH
from nmt.model.positions import sinusoids
from nmt.model.transformer import Transformer, build_model
from nmt.text.flat import FlatIds
from nmt.training.checkpoints import CheckpointWriter, Progress
from nmt.training.losses import CrossEntropy, cross_entropy
from nmt.training.optimizer import ModelOptimizer
from nmt.training.update import Updater, read_together

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    "base": ModelConfig(),
    "big": ModelConfig(preset="transformer-big"),
    "tiny": ModelConfig(preset="tiny"),
}
UPDATES = {
    "base": {
        4_000: ("", ""), 16_000: ("", ""), 50_000: ("580,000", "33%"), 100_000: ("", ""),
    },
    "big": {50_000: ("", "45%")},
    "tiny": {2_048: ("", "")},
}  # fmt: skip
"""Model -> tokens per update -> target tokens/s and utilisation to reach on an H100."""
SMALL = ModelConfig(
    preset="tiny", model_dim=64, ff_dim=128, num_heads=4, encoder_layers=2, decoder_layers=2
)
SMOOTH = SMALL.model_copy(update={"activation": "gelu"})
MODERN = ModelConfig(
    preset="modern", model_dim=64, ff_dim=128, num_heads=4, encoder_layers=2, decoder_layers=2
)
SMOOTHING = 0.1
NMT = [sys.executable, "-m", "nmt"]
PATHS = str(ROOT)
if os.environ.get("PYTHONPATH"):
    PATHS += os.pathsep + os.environ["PYTHONPATH"]
DEMO = "configs/demo.yaml"
SAMPLE = "configs/demo.sample"
PRECISIONS: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
GATE_OF_LOSS = {"float32": 1e-3, "bfloat16": 1e-2}
"""Largest relative error of a loss and of the gradients of its inputs, as
||found - reference|| / ||reference||."""
GATE_OF_MODEL = {torch.float32: 1e-3, torch.bfloat16: 2e-2}
"""The same for the gradients of a model over all shapes, by the dtype of its weights. With
float32 weights under autocast to bf16, as on a GPU, the limit is that of the loss. With bf16
weights, as on a CPU, the sums over tokens are also rounded, so the limit is larger."""
GATE_OF_KINKS = {"float32": 1e-3, "bfloat16": 5e-2}
"""The same for models with ReLU, whose gradient jumps at 0. A relative error of e in the inputs
flips a share e of the units, and this changes the gradient by sqrt(e). In bf16, e is about 0.3%.
(On a CPU under autocast, the worst of 12 shapes: ReLU 2.4%, GELU 0.6%, SwiGLU 0.9%.)"""
GATE_OF_PARAMETER = {"float32": 1e-3, "bfloat16": 2e-1}
"""The same for each single parameter, whose gradient may be a small sum of large terms."""
SHAPES = (
    (1, 1), (1, 60), (2, 3), (3, 17), (5, 8), (7, 33), (8, 64), (13, 5), (16, 21), (31, 9),
    (40, 12), (64, 30),
)  # fmt: skip
"""Number of sentences, and maximum length."""
KINDS = {
    "fused, compiled": r"triton",
    "products": r"gemm|nvjet|cutlass|cublas|splitk|_mm",
    "attention": r"flash|fmha|attention|efficient",
    "loss and softmax": r"softmax|nll|cross_entropy",
    "optimizer": r"adam|multi_tensor",
    "norms": r"layer_norm|rms_norm|norm_kernel",
    "dropout and random numbers": r"dropout|philox|distribution",
    "rows moved": r"index|gather|scatter|embedding|sort|radix",
    "copies": r"memcpy|memset|copy",
    "element by element": r"elementwise|vectorized|reduce|cat",
}
"""Kind of kernel -> pattern of its name. The first match counts."""


Gradients = dict[str, Tensor]
"""Parameter -> gradient in float64, on the CPU."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Options and device of a stage; prints its results."""

    chosen: argparse.Namespace
    device: torch.device

    @property
    def quick(self) -> bool:
        """Whether this run only tests the script."""
        return bool(self.chosen.quick)

    @property
    def folder(self) -> Path:
        """Folder of runs and prepared data."""
        return Path(self.chosen.folder)

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU, which works asynchronously."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has finished all work."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def emit(
        self,
        what: str,
        value: float | str,
        unit: str = "",
        *,
        target: str = "",
        predicted: str = "",
        passed: bool | None = None,
    ) -> None:
        """Print a result as JSON.

        Args:
            what: Name of the result.
            value: The result.
            unit: Its unit.
            target: Value to reach, as text.
            predicted: Predicted value or effect, as text.
            passed: For a gate, whether it passed.
        """
        record = {
            "what": what,
            "value": value,
            "unit": unit,
            "target": target,
            "predicted": predicted,
            "passed": passed,
        }
        print(json.dumps(record), flush=True)

    def emit_ms(self, what: str, seconds: float) -> None:
        """Print a time in milliseconds."""
        self.emit(what, 1e3 * seconds, "ms")

    def emit_seconds(self, what: str, seconds: float, target: str = "") -> None:
        """Print a time in seconds."""
        self.emit(what, seconds, "s", target=target)

    def emit_hash(self, what: str, actual: str, expected: str) -> None:
        """Print a gate: two hashes are equal."""
        passed = actual == expected
        self.emit(what, actual[:12], target=expected[:12], passed=passed)

    def reset_peak(self) -> None:
        """Forget the peak memory of a GPU so far."""
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def emit_peak(self, what: str) -> None:
        """Print the peak memory of a GPU since `reset_peak`."""
        if self.is_gpu:
            peak_bytes = torch.cuda.max_memory_allocated(self.device)
            self.emit(what, peak_bytes / 1e9, "GB")

    def seconds(self, work: Callable[[], object], *, rounds: int = 5, warm_up: int = 2) -> float:
        """Return the median time of ``work`` on the device, in seconds."""
        if self.quick:
            warm_up = 0
            rounds = 1
        times = []
        for _ in range(warm_up + rounds):
            self.wait()
            begin = perf_counter()
            work()
            self.wait()
            times.append(perf_counter() - begin)
        return statistics.median(times[warm_up:])


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of a measurement of speed."""

    config: ModelConfig
    vocab_size: int
    max_tokens: int
    """Source plus target tokens per update."""
    num_batches: int = 8

    def batches(self) -> list[Batch]:
        """Return random batches."""
        return wmt_like(self.vocab_size, self.max_tokens, self.num_batches)

    def updater(self, report: Recorder) -> Updater:
        """Return an updater of a new model, in the precision of training."""
        precision = choose_precision("auto", report.device)
        return make_updater(self.config, self.vocab_size, report.device, precision)


QUICK = Workload(SMALL, 400, 200, num_batches=2)


def base_workload(report: Recorder) -> Workload:
    """Return the sizes of most measurements."""
    if report.quick:
        return QUICK
    return Workload(SIZES["base"], 37_000, 50_000)


class DrawnPairs:
    """Random sentence pairs for `nmt.data.loader.collate`.

    Args:
        vocab_size: Size of both vocabularies.
        source_lengths: Source lengths without EOS. (n,)
        target_lengths: Target lengths without EOS. (n,)
        seed: Seed of the ids.
    """

    def __init__(
        self, vocab_size: int, source_lengths: Any, target_lengths: Any, seed: int
    ) -> None:
        self._source_lengths = source_lengths
        self._target_lengths = target_lengths
        self._random = np.random.default_rng(seed)
        # Zipf's law: the weights of the ids are 1, 1/2, 1/3... Ids 0 to 3 are special symbols.
        weights = 1.0 / np.arange(1, vocab_size - 3)
        self._cumulative = weights.cumsum() / weights.sum()

    def _draw_ids(self, lengths: Any) -> FlatIds:
        drawn = self._random.random(int(lengths.sum()))
        ids = 4 + np.searchsorted(self._cumulative, drawn)
        return FlatIds(ids.astype(np.int64), lengths)

    def batch(self, rows: Any) -> Batch:
        """Return a batch of the pairs ``rows``."""
        source = self._draw_ids(self._source_lengths[rows])
        target = self._draw_ids(self._target_lengths[rows])
        return collate(source, target, rows)


def wmt_like(vocab_size: int, max_tokens: int, count: int) -> list[Batch]:
    """Return ``count`` random batches with about ``max_tokens`` source plus target tokens."""
    random = np.random.default_rng(1)
    num_pairs = max(2000, count * max_tokens // 20)
    max_length = min(150, max_tokens // 4)
    drawn_lengths = random.lognormal(3.2, 0.55, num_pairs)
    source_lengths = np.clip(drawn_lengths, 2, max_length).astype(np.int32)
    ratios = random.lognormal(0.02, 0.2, num_pairs)
    scaled_lengths = source_lengths * ratios
    target_lengths = np.clip(scaled_lengths, 2, max_length).astype(np.int32)
    pairs = DrawnPairs(vocab_size, source_lengths, target_lengths, seed=1)
    # Each sentence gets EOS.
    plan = plan_batches(
        source_lengths + 1,
        target_lengths + 1,
        max_tokens=max_tokens,
        noise=0.1,
        random=epoch_random(1, 0),
    )
    num_tokens = source_lengths + target_lengths + 2
    # Some batches of a plan are small, which would make the measurement depend on chance.
    full = [rows for rows in plan if num_tokens[rows].sum() > max_tokens * 0.7]
    batch_rows = (full or plan)[:count]
    return [pairs.batch(rows) for rows in batch_rows]


def batch_of_shape(vocab_size: int, shape: tuple[int, int], seed: int) -> Batch:
    """Return a random batch of ``shape[0]`` sentences with lengths from 1 to ``shape[1]``."""
    num_sentences, max_length = shape
    random = np.random.default_rng(seed)
    source_lengths = random.integers(1, max_length + 1, num_sentences)
    target_lengths = random.integers(1, max_length + 1, num_sentences)
    source_lengths = source_lengths.astype(np.int32)
    target_lengths = target_lengths.astype(np.int32)
    pairs = DrawnPairs(vocab_size, source_lengths, target_lengths, seed)
    return pairs.batch(np.arange(num_sentences))


def length_sums(batches: Sequence[Batch]) -> LengthSums:
    """Return the sums of lengths, without padding sentences."""
    sources = []
    targets = []
    for batch in batches:
        num_pairs = len(batch.rows)  # Padding sentences come after the pairs.
        sources.append(batch.source.lengths[:num_pairs])
        targets.append(batch.target.lengths[:num_pairs])
    source_lengths = torch.cat(sources)
    target_lengths = torch.cat(targets)
    return LengthSums.of_pairs(source_lengths.numpy(), target_lengths.numpy())


def _mean_tokens(batches: Sequence[Batch]) -> float:
    """Return the mean number of target tokens of a batch."""
    num_tokens = sum(batch.num_target_tokens for batch in batches)
    return num_tokens / len(batches)


def make_updater(
    config: ModelConfig, vocab_size: int, device: torch.device, precision: Precision
) -> Updater:
    """Return an updater of a new model, with the settings of `nmt train`."""
    torch.manual_seed(1)
    model = build_model(config, vocab_size, vocab_size).to(device)
    optimizer = ModelOptimizer(model, OptimizerConfig(), precision.weight_dtype)
    loss = CrossEntropy(SMOOTHING)
    return Updater(model, optimizer, precision, loss, clip_norm=1.0)


def compile_updater(updater: Updater, batch: Batch, device: torch.device) -> float:
    """Compile the layers, with an update of ``batch``; return the seconds that this takes."""
    begin = perf_counter()
    compile_layers(
        True,
        device,
        switch=updater.model.compile_layers,
        warm_up=lambda: updater.warm_up(batch),
    )
    return perf_counter() - begin


def make_updates(updater: Updater, batches: Sequence[Batch]) -> None:
    """Make an update with each batch, then wait for all statistics."""
    read_together([updater([batch], 1e-4) for batch in batches])


def digest(updater: Updater) -> str:
    """Hash the weights and the optimizer's state."""
    sha256 = hashlib.sha256()
    optimizer = updater.optimizer
    for tensors in (optimizer.weights(), optimizer.state()):
        for name in sorted(tensors):
            sha256.update(name.encode())
            value = tensors[name].detach().cpu()
            sha256.update(value.contiguous().numpy().tobytes())
    return sha256.hexdigest()


def matrix_rate(report: Recorder, rows: int, inner: int, columns: int) -> float:
    """Return FLOP/s of a matrix product in the dtype of training, with several random inputs."""
    precision = choose_precision("auto", report.device)
    options: Any = {"device": report.device, "dtype": precision.dtype}
    inputs = []
    for _ in range(3):
        left = torch.randn(rows, inner, **options)
        right = torch.randn(inner, columns, **options)
        inputs.append((left, right))
    if not report.quick:
        inputs *= 4  # Enough work to measure; all inputs alternate.
    seconds = report.seconds(lambda: [left @ right for left, right in inputs])
    flops = 2.0 * rows * inner * columns
    return flops * len(inputs) / seconds


def peak_rate(report: Recorder) -> float:
    """Return FLOP/s of large matrix products, the reference for utilisation."""
    size = 8192
    if report.quick:
        size = 256
    return matrix_rate(report, size, size, size)


# Gates and machine


def machine(report: Recorder) -> None:
    """Report versions, the copy rate, and the rate of matrix products."""
    name = platform.processor() or platform.machine()
    if report.is_gpu:
        name = torch.cuda.get_device_name(report.device)
        report.emit("CUDA", str(torch.version.cuda))
    report.emit("device", name)
    report.emit("torch", torch.__version__)
    report.emit("Python", platform.python_version())
    num_cores = os.cpu_count() or 0
    report.emit("CPU cores", float(num_cores))
    num_bytes = 1 << 30
    num_rows = 25_000
    vocab_size = 37_000
    num_starts = 5000
    if report.quick:
        num_bytes = 1 << 20
        num_rows = 64
        vocab_size = 400
        num_starts = 100
    original = torch.randint(0, 100, (num_bytes,), dtype=torch.uint8, device=report.device)
    copy = torch.empty_like(original)
    seconds = report.seconds(lambda: copy.copy_(original))
    rate = 2 * num_bytes / seconds
    report.emit("copy, read and written", rate / 1e9, "GB/s")
    original = copy = torch.empty(0)  # frees the memory
    rate = peak_rate(report)
    report.emit("products, 8192 cubed", rate / 1e12, "TFLOP/s")
    for size, config in SIZES.items():
        width = config.model_dim
        ff_dim = config.ff_dim
        # Rows and columns of the weights: query, key and value; both of feed-forward; the output.
        weights = [(width, 3 * width), (width, ff_dim), (ff_dim, width), (width, vocab_size)]
        for inner, columns in weights:
            rate = matrix_rate(report, num_rows, inner, columns)
            text = f"products, {size}, {num_rows} x {inner} x {columns}"
            report.emit(text, rate / 1e12, "TFLOP/s")
    small = torch.zeros(1024, device=report.device)
    # A GPU works asynchronously, so this measures how fast the host starts operations.
    begin = perf_counter()
    for _ in range(num_starts):
        small.add_(1)
    host_seconds = perf_counter() - begin
    microseconds = 1e6 * host_seconds / num_starts
    report.emit("host, to start one operation", microseconds, "microseconds")


def reference_gradients(model: Transformer, batch: Batch) -> tuple[Tensor, Gradients]:
    """Return loss and gradients in float64 on the CPU, with torch's cross-entropy."""
    model.zero_grad()
    hidden = model(batch.source, batch.target)
    logits = F.linear(hidden, model.output_weight, model.output_bias)
    loss = F.cross_entropy(logits, batch.gold, label_smoothing=SMOOTHING, reduction="sum")
    loss.backward()
    gradients = {name: gradient_of(parameter) for name, parameter in model.named_parameters()}
    # As of training, the loss is a float32.
    return loss.detach().float(), gradients


def gradient_of(parameter: Tensor) -> Tensor:
    """Return a gradient in float64 on the CPU."""
    assert parameter.grad is not None
    return parameter.grad.detach().double().cpu().clone()


def gradients_of(updater: Updater, batch: Batch) -> tuple[Tensor, Gradients]:
    """Return loss and gradients as in training, but not divided by the number of tokens."""
    parameters = updater.optimizer.parameters
    parameters.clear()
    updater.model.train()
    updater._sum_gradients([batch], 1.0)
    loss = torch.tensor(float(parameters.sums[0]))  # The first sum is the loss.
    views = parameters.views(parameters.gradient)
    gradients = {name: view.double().cpu().clone() for name, view in views.items()}
    parameters.clear()
    return loss, gradients


def error_of(value: Tensor, reference: Tensor) -> float:
    """Return the relative norm of the difference; infinite if it contains NaN."""
    difference = (value - reference).norm()
    error = float(difference / reference.norm().clamp(min=1e-12))
    if np.isfinite(error):
        return error
    return inf


@dataclass(slots=True)
class GradientErrors:
    """Errors of losses and gradients over several batches."""

    loss_errors: list[float] = field(default_factory=list)
    """Relative error of the loss, for each batch."""
    parameter_errors: list[float] = field(default_factory=list)
    """Relative error of the gradient of each parameter, for each batch."""
    difference_norms: list[float] = field(default_factory=list)
    """Norm of the difference of all gradients, for each batch."""
    reference_norms: list[float] = field(default_factory=list)
    """Norm of all reference gradients, for each batch."""

    def add(self, gradients: Gradients, references: Gradients) -> None:
        """Add the gradients of a batch."""
        values = torch.cat([gradients[name].flatten() for name in references])
        expected = torch.cat([reference.flatten() for reference in references.values()])
        reference_norm = float(expected.norm())
        difference = values - expected
        self.difference_norms.append(float(difference.norm()))
        self.reference_norms.append(reference_norm)
        # A gradient that is mathematically zero, as of key biases, is noise in both.
        min_norm = 1e-3 * reference_norm
        for name, reference in references.items():
            if float(reference.norm()) > min_norm:
                self.parameter_errors.append(error_of(gradients[name], reference))

    def total_error(self) -> float:
        """Return the relative error of all gradients over all batches."""
        difference = torch.tensor(self.difference_norms).norm()
        ratio = difference / torch.tensor(self.reference_norms).norm()
        return float(ratio.nan_to_num(inf))  # NaN must fail the gate


def _limit_of_gradients(config: ModelConfig, precision: Precision) -> float:
    """Return the largest relative error of all gradients together."""
    if config.activation == "relu":
        return GATE_OF_KINKS[precision.name]
    if precision.weight_dtype != precision.dtype:
        return GATE_OF_LOSS[precision.name]
    return GATE_OF_MODEL[precision.weight_dtype]


def _check_gradients(report: Recorder, *, is_compiled: bool) -> None:
    """Compare the gradients of training with float64, for random batches of all shapes."""
    vocab_size = 500
    shapes: Sequence[tuple[int, int]] = SHAPES
    if report.quick:
        shapes = SHAPES[::4]
    models = {"tiny": SMALL, "tiny with GELU": SMOOTH, "modern": MODERN}
    for (name, config), precision_name in itertools.product(models.items(), PRECISIONS):
        # Compilation takes half a minute for each, so each model is compiled in one precision.
        compiled_precision = "bfloat16"
        if name == "tiny":
            compiled_precision = "float32"
        if is_compiled and precision_name != compiled_precision:
            continue
        without_dropout = config.model_copy(update={"dropout": 0.0})
        precision = Precision(precision_name, report.device.type)
        updater = make_updater(without_dropout, vocab_size, report.device, precision)
        # Both models use rounded weights, so that only the arithmetic differs.
        weights = {}
        for parameter_name, value in updater.optimizer.weights().items():
            rounded = value.detach().to(precision.dtype)
            weights[parameter_name] = rounded.float().cpu()
        updater.optimizer.load_weights(weights)
        text = f"{name}, {precision_name}"
        if is_compiled:
            warm_up_batch = batch_of_shape(vocab_size, (3, 9), 0)
            seconds = compile_updater(updater, warm_up_batch, report.device)
            report.emit_seconds(f"{text}, time to compile", seconds)
        reference = build_model(without_dropout, vocab_size, vocab_size)
        reference.load_state_dict(weights)
        reference.double().train()
        errors = GradientErrors()
        for seed, shape in enumerate(shapes):
            batch = batch_of_shape(vocab_size, shape, 100 + seed)
            expected_loss, expected_gradients = reference_gradients(reference, batch)
            loss, gradients = gradients_of(updater, batch)
            loss_error = error_of(loss, expected_loss)
            errors.loss_errors.append(loss_error)
            errors.add(gradients, expected_gradients)
        limit = _limit_of_gradients(config, precision)
        parameter_limit = GATE_OF_PARAMETER[precision_name]
        _gate(report, f"{text}, loss", errors.loss_errors, GATE_OF_LOSS[precision_name])
        _gate(report, f"{text}, gradients together", [errors.total_error()], limit)
        _gate(report, f"{text}, gradient of a parameter", errors.parameter_errors, parameter_limit)


def _gate(report: Recorder, what: str, errors: Sequence[float], limit: float) -> None:
    """Print a gate: the largest of some relative errors is below a limit."""
    worst = max(errors)
    if len(errors) > 1:
        what += f": worst of {len(errors)}"
    passed = bool(worst < limit)
    report.emit(what, worst, "relative", target=f"< {limit:g}", passed=passed)


def _check_losses(report: Recorder) -> None:
    """Compare the loss and the gradients of its inputs with float64."""
    random = np.random.default_rng(5)
    num_draws = 12
    max_vocab_size = 9000
    if report.quick:
        num_draws = 3
        max_vocab_size = 400
    for precision in PRECISIONS:
        dtype = Precision(precision, report.device.type).dtype
        loss_errors = []
        gradient_errors = []
        for seed in range(num_draws):
            num_rows = int(random.integers(1, 700))
            width = 16 * int(random.integers(1, 12))
            vocab_size = int(random.integers(5, max_vocab_size))
            torch.manual_seed(seed)
            # Logits have a standard deviation of 2, as in training. A 16-bit logit of 40 would have
            # an error of 0.1, and its probability an error of 10%, even with a perfect loss.
            hidden = torch.randn(num_rows, width) * (2 * width**-0.5)
            weight = torch.randn(vocab_size, width)
            bias = torch.randn(vocab_size) * 0.5
            inputs = [value.to(dtype) for value in (hidden, weight, bias)]
            gold = torch.randint(0, vocab_size, (num_rows,))
            # The loss of training, on the device.
            device_inputs = [value.clone().to(report.device).requires_grad_() for value in inputs]
            hidden, weight, bias = device_inputs
            device_gold = gold.to(report.device)
            loss = cross_entropy(hidden, weight, bias, device_gold, SMOOTHING)
            loss.backward()
            # The reference, in float64 on the CPU.
            reference_inputs = [value.double().requires_grad_() for value in inputs]
            hidden, weight, bias = reference_inputs
            logits = F.linear(hidden, weight, bias)
            expected = F.cross_entropy(logits, gold, label_smoothing=SMOOTHING, reduction="sum")
            expected.backward()
            loss = loss.detach().double().cpu()
            loss_errors.append(error_of(loss, expected.detach()))
            for value, reference in zip(device_inputs, reference_inputs, strict=True):
                error = error_of(gradient_of(value), gradient_of(reference))
                gradient_errors.append(error)
        limit = GATE_OF_LOSS[precision]
        _gate(report, f"loss alone, {precision}", loss_errors, limit)
        _gate(report, f"loss alone, {precision}, gradients", gradient_errors, limit)


def gradients(report: Recorder) -> None:
    """Gate: loss and gradients agree with float64."""
    _check_losses(report)
    _check_gradients(report, is_compiled=False)


def compiled(report: Recorder) -> None:
    """Gate: loss and gradients of compiled layers agree with float64."""
    if report.quick and not report.is_gpu:
        report.emit("compiled layers", "skipped on a CPU")
        return
    _check_gradients(report, is_compiled=True)


def updates(report: Recorder) -> None:
    """Gate: the same updates with dropout give the same bytes twice."""
    count = 20
    max_tokens = 4000
    if report.quick:
        count = 3
        max_tokens = 400
    batches = wmt_like(500, max_tokens, count)
    for name in PRECISIONS:
        precision = Precision(name, report.device.type)
        digests = []
        for _ in range(2):
            updater = make_updater(SMALL, 500, report.device, precision)
            torch.manual_seed(2)
            with deterministic(report.device, wanted=True):
                make_updates(updater, batches)
            digests.append(digest(updater))
        text = f"{count} updates twice, {name}: sha256 of weights and optimizer"
        report.emit_hash(text, digests[0], digests[1])


def nmt(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Run `nmt` with ``arguments``; return standard output and standard error.

    Raises:
        RuntimeError: The command failed.
    """
    variables = os.environ | {"PYTHONPATH": PATHS}
    if env is not None:
        variables.update(env)
    completed = subprocess.run(
        [*NMT, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, env=variables
    )
    if completed.returncode:
        raise RuntimeError(
            f"nmt {' '.join(arguments)}: code {completed.returncode}\n{completed.stderr}"
        )
    return completed.stdout, completed.stderr


def settings(report: Recorder, run: str, changes: Mapping[str, Any]) -> list[str]:
    """Return ``--set`` flags for device, folders and ``changes``.

    Args:
        report: Options and device of the stage.
        run: Name of the run. Runs with the same name before the first hyphen share prepared data.
        changes: Further settings.
    """
    task, *_ = run.split("-")
    values: dict[str, Any] = {
        "training.device": report.device.type,
        "prepared_dir": str(report.folder / "prepared" / task),
        "run_dir": str(report.folder / "runs" / run),
        **changes,
    }
    if report.quick:
        values |= {
            "model.encoder_layers": 1,
            "model.decoder_layers": 1,
            "model.model_dim": 32,
            "model.ff_dim": 32,
            "decoding.max_length_factor": 0.2,
            "decoding.max_length_offset": 4,
            "data.train": [{"name": "demo", "demo": "test"}],
            "data.valid": {"source": f"{SAMPLE}.en", "target": f"{SAMPLE}.de"},
        }
    return [f"--set={key}={json.dumps(value)}" for key, value in values.items()]


def demo_settings(report: Recorder) -> dict[str, Any]:
    """Return settings of short trainings on the demo."""
    vocab_size = 1000
    if report.quick:
        vocab_size = 320
    return {"training.validation.max_sentences": 4, "tokenizer.vocab_size": vocab_size}


def resume(report: Recorder) -> None:
    """Gate: stopped and resumed training gives the same bytes as uninterrupted training."""
    stop_step = 40
    if report.quick:
        stop_step = 4
    last_step = 2 * stop_step
    changes = demo_settings(report) | {
        "training.schedule.shape": "constant",
        "training.compile": report.is_gpu,  # `auto` would not compile for so few updates
        "training.validate_every": 1000,
        "training.save_every": 1000,
    }
    nmt("prepare", DEMO, *settings(report, "demo", changes))
    # Of each run: the last step of each of its trainings, which follow each other.
    steps_of_runs = {"demo-whole": [last_step], "demo-resumed": [stop_step, last_step]}
    run_hashes = []
    for run, steps in steps_of_runs.items():
        for step in steps:
            begin = perf_counter()
            changes["training.max_steps"] = step
            flags = settings(report, run, changes)
            nmt("train", DEMO, *flags, "--exact", "--quiet")
            seconds = perf_counter() - begin
            report.emit_seconds(f"{run}, to update {step}, the whole command", seconds)
        run_hashes.append(_hashes(report.folder / "runs" / run))
    expected_hashes, resumed_hashes = run_hashes
    parts = ("weights", "optimizer")
    for part, resumed, expected in zip(parts, resumed_hashes, expected_hashes, strict=True):
        text = f"{last_step} updates, resumed: sha256 of {part}"
        report.emit_hash(text, resumed, expected)


def _hashes(run_dir: Path) -> list[str]:
    """Return the hashes of the newest weights and of the optimizer's state."""
    newest = max((run_dir / "checkpoints").glob("step-*"))
    hashes = []
    for part in ("model", "optimizer"):
        content = (newest / f"{part}.safetensors").read_bytes()
        hashes.append(hashlib.sha256(content).hexdigest())
    return hashes


def _model(report: Recorder) -> str:
    """Return the model of ``--model``, or a model that an earlier stage has trained."""
    runs = report.folder / "runs"
    for folder in (report.chosen.model, runs / "multi30k", runs / "demo-whole"):
        if folder is not None and (folder / "config.yaml").exists():
            return str(folder)
    raise RuntimeError("no model found: pass --model, or add the stage `resume`")


def _sources(report: Recorder, count: int, *, name: str = "test_2016_flickr") -> Path:
    """Write a file of ``count`` lines to translate, from Multi30k or else from the demo."""
    archive = Path(report.chosen.data) / "multi30k" / f"{name}.de.gz"
    if archive.exists() and report.chosen.model is not None:
        content = gzip.decompress(archive.read_bytes()).decode()
    else:
        content = (ROOT / f"{SAMPLE}.en").read_text(encoding="utf-8")
    repeated_lines = itertools.cycle(content.splitlines())
    lines = itertools.islice(repeated_lines, count)
    path = report.folder / f"source.{count}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _beam_sizes(report: Recorder) -> tuple[int, ...]:
    """Return the beam sizes to measure."""
    if report.quick:
        return (5,)
    return (1, 5)


def search(report: Recorder) -> None:
    """Gate: searches in float32 on the device find the same translations as on the CPU.

    Few rows use recorded CUDA graphs, many rows do not. The guard is off, because it would search
    wrong outputs again and hide them. A few lines may differ, where two hypotheses have almost the
    same score.
    """
    num_lines = 200
    # CUDA graphs are recorded for at most 256 rows.
    small_batch_tokens = 600
    batch_sizes = {"few rows": small_batch_tokens, "many rows": 60_000}
    if report.quick:
        num_lines = 4
        del batch_sizes["many rows"]
    model = _model(report)
    path = _sources(report, num_lines)

    def translate(device: str, beam_size: int, batch_tokens: int) -> list[str]:
        flags = ["-i", str(path), "--device", device, "-b", str(beam_size), "--no-guard"]
        flags += ["--engine", "torch", "--dtype", "float32", "--batch-tokens", str(batch_tokens)]
        output, _ = nmt("translate", model, *flags)
        return output.split("\n")

    for beam_size in _beam_sizes(report):
        expected = translate("cpu", beam_size, small_batch_tokens)
        for name, batch_tokens in batch_sizes.items():
            lines = translate(report.device.type, beam_size, batch_tokens)
            num_equal = sum(map(str.__eq__, lines, expected))
            share_equal = num_equal / len(expected)
            text = f"beam {beam_size}, {name}: lines equal to the CPU"
            passed = len(lines) == len(expected) and share_equal >= 0.98
            percent = 100 * share_equal
            report.emit(text, percent, "%", target=">= 98%", passed=passed)


def shapes(report: Recorder) -> None:
    """Gate: hundreds of batch shapes do not cause recompilation."""
    num_updates = 250
    if report.quick:
        num_updates = 6
    changes = demo_settings(report) | {
        "training.max_steps": num_updates,
        "training.schedule.shape": "constant",
        "training.compile": report.is_gpu,
    }
    flags = settings(report, "demo-shapes", changes)
    _, log = nmt("train", DEMO, *flags, env={"TORCH_LOGS": "recompiles"})
    # The log of torch has a message for each recompilation, which starts with these words.
    _, *messages = log.split("Recompiling function")
    # Training and validation have different graphs, which the warm-up compiles.
    unexpected = [message for message in messages if "grad_mode" not in message]
    text = f"recompiled in {num_updates} updates"
    report.emit(text, float(len(unexpected)), target="0", passed=not unexpected)
    for message in unexpected[:5]:
        reasons = re.findall(r"- \d+/\d+: (.*)", message)
        report.emit("recompiled because", "; ".join(reasons)[:200])


# Speed of the parts


def _rate(
    report: Recorder, updater: Updater, batches: Sequence[Batch], *, rounds: int = 3
) -> tuple[float, float]:
    """Return the seconds of an update, and the seconds until the host could continue."""
    host_seconds = []  # Of each call of `update_all`: until all updates are started.

    def update_all() -> None:
        begin = perf_counter()
        stats = [updater([batch], 1e-4) for batch in batches]
        host_seconds.append(perf_counter() - begin)
        read_together(stats)

    seconds = report.seconds(update_all, rounds=rounds, warm_up=1)
    median_host = statistics.median(host_seconds[-rounds:])  # Without the warm-up.
    return seconds / len(batches), median_host / len(batches)


def loss(report: Recorder) -> None:
    """Time the output projection with its loss, forwards and backwards, against its products."""
    num_rows = 25_000
    vocab_size = 37_000
    if report.quick:
        num_rows = 300
        vocab_size = 400
    width = SIZES["base"].model_dim
    dtype = choose_precision("auto", report.device).dtype
    options: Any = {"device": report.device, "dtype": dtype}
    # Several inputs, so that a cache of the device does not hold all of them.
    inputs = []
    for _ in range(3):
        hidden = torch.randn(num_rows, width, **options, requires_grad=True)
        weight = torch.randn(vocab_size, width, **options).div_(8)
        weight.requires_grad_()
        bias = torch.randn(vocab_size, **options, requires_grad=True)
        gold = torch.randint(0, vocab_size, (num_rows,), device=report.device)
        inputs.append((hidden, weight, bias, gold))

    def compute_losses(compiler: Callable[..., Any]) -> None:
        for hidden, weight, bias, gold in inputs:
            cross_entropy(hidden, weight, bias, gold, SMOOTHING, compiler).backward()
            hidden.grad = weight.grad = bias.grad = None

    def compute_products() -> None:
        # Of the logits, of the gradient of the hidden states, and of the gradient of the weight.
        # Logits stand for their gradient, which has the same shape.
        for hidden, weight, _, _ in inputs:
            logits = hidden.detach() @ weight.detach().T
            logits @ weight.detach()
            logits.T @ hidden.detach()

    product_seconds = report.seconds(compute_products) / len(inputs)
    text = f"loss of {num_rows} x {width} x {vocab_size}"
    report.emit_ms(f"{text}: its three matrix products", product_seconds)
    compilers: dict[str, Callable[..., Any]] = {"not compiled": lambda function: function}
    if report.is_gpu:
        compilers["compiled"] = cache(compile_function)
    for name, compiler in compilers.items():
        report.reset_peak()
        loss_seconds = report.seconds(partial(compute_losses, compiler)) / len(inputs)
        other_ms = 1e3 * (loss_seconds - product_seconds)
        report.emit(f"{text}: the rest, {name}", other_ms, "ms", target="<= 3")
        report.emit_peak(f"{text}: peak memory, {name}")


def training(report: Recorder) -> None:
    """Report tokens/s, utilisation, host and device time, and peak memory of updates."""
    peak = peak_rate(report)
    names = report.chosen.sizes.split(",")
    if report.quick:
        names = ["base"]
    for name in names:
        vocab_size = 37_000
        if name == "tiny":
            vocab_size = 8_000
        targets = UPDATES[name]
        workload = Workload(SIZES[name], vocab_size, min(targets))
        if report.quick:
            workload = QUICK
            targets = {QUICK.max_tokens: ("", "")}
        updater = workload.updater(report)
        with deterministic(report.device, wanted=True):
            if report.is_gpu:
                first_batch, *_ = replace(workload, num_batches=1).batches()
                seconds = compile_updater(updater, first_batch, report.device)
                report.emit_seconds(f"{name}, time to compile", seconds, target="<= 75")
            for max_tokens, (target_rate, target_utilisation) in targets.items():
                batches = replace(workload, max_tokens=max_tokens).batches()
                report.reset_peak()
                seconds, host_seconds = _rate(report, updater, batches)
                tokens = _mean_tokens(batches)
                sums = length_sums(batches)
                flops = training_flops(workload.config, workload.vocab_size, sums)
                update_flops = flops.total / len(batches)
                utilisation = 100 * update_flops / seconds / peak
                text = f"{name}, {max_tokens} tokens an update"
                report.emit(f"{text}: target tokens/s", tokens / seconds, target=target_rate)
                report.emit(f"{text}: utilisation", utilisation, "%", target=target_utilisation)
                report.emit_ms(f"{text}: an update", seconds)
                report.emit_ms(f"{text}: of that, until the host continues", host_seconds)
                report.emit_peak(f"{text}: peak memory")


class PlainTransformer(nn.Module):
    """A model of the same size in PyTorch alone: `torch.nn.Transformer` on padded batches.

    Its dropout also applies to attention weights and inside feed-forward layers.

    Args:
        config: Sizes of the model.
        vocab_size: Size of the vocabulary, shared by source, target and output.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.dim = config.model_dim
        self.dropout = nn.Dropout(config.dropout)
        self.embedding = nn.Embedding(vocab_size, self.dim)
        nn.init.normal_(self.embedding.weight, std=self.dim**-0.5)
        self.layers = nn.Transformer(
            self.dim, config.num_heads, config.encoder_layers, config.decoder_layers,
            config.ff_dim, config.dropout, batch_first=True,
        )  # fmt: skip
        self.register_buffer("positions", sinusoids(512, self.dim, "sinusoidal"))

    def forward(self, source: Tensor, is_padding: Tensor, target: Tensor, gold: Tensor) -> Tensor:
        """Return the summed loss. All inputs are (B, S) or (B, T); padding of ``gold`` is 0."""
        length = target.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, target.device)
        hidden = self.layers(
            self._embed(source),
            self._embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,  # padding comes last, so no token of the target attends to it
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
        )
        logits = F.linear(hidden, self.embedding.weight)
        logits = logits.flatten(0, 1)
        gold = gold.flatten()
        return F.cross_entropy(
            logits, gold, ignore_index=0, label_smoothing=SMOOTHING, reduction="sum"
        )

    def _embed(self, ids: Tensor) -> Tensor:
        positions = self.get_buffer("positions")[: ids.shape[1]]
        vectors = self.embedding(ids) * self.dim**0.5
        return self.dropout(vectors + positions)


def plain_update(
    model: Callable[..., Any], optimizer: torch.optim.Optimizer, batch: Batch, precision: Precision
) -> None:
    """Make an update as scripts with PyTorch alone do: autocast, clipping, fused AdamW."""
    source = batch.source.pad(batch.source.ids)
    target = batch.target.pad(batch.target.ids)
    gold = batch.target.pad(batch.gold)
    is_padding = ~batch.source.mask()
    with precision.autocast():
        loss = model(source, is_padding, target, gold)
    mean = loss / batch.num_target_tokens
    mean.backward()
    (group,) = optimizer.param_groups
    torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
    optimizer.step()
    optimizer.zero_grad()


def pytorch(report: Recorder) -> None:
    """Report updates of a model of this size in PyTorch alone, in turn with those of `nmt`."""
    workload = base_workload(report)
    precision = choose_precision("auto", report.device)
    batches = workload.batches()
    device_batches = [batch.to(report.device) for batch in batches]
    updater = workload.updater(report)
    plain_model = PlainTransformer(workload.config, workload.vocab_size).to(report.device)
    optimizer = torch.optim.AdamW(plain_model.parameters(), lr=1e-4, fused=True)
    forward: Callable[..., Any] = plain_model
    if report.is_gpu:
        compile_updater(updater, batches[0], report.device)
        forward = torch.compile(plain_model, dynamic=True)

    def make_plain_updates() -> None:
        for batch in device_batches:
            plain_update(forward, optimizer, batch, precision)

    num_rounds = 3
    if report.quick:
        num_rounds = 1
    nmt_seconds = []  # Of an update in each round.
    plain_seconds = []
    for _ in range(num_rounds):
        seconds, _ = _rate(report, updater, batches, rounds=1)
        nmt_seconds.append(seconds)
        seconds = report.seconds(make_plain_updates, rounds=1, warm_up=1)
        plain_seconds.append(seconds / len(batches))
    tokens = _mean_tokens(batches)
    nmt_median = statistics.median(nmt_seconds)
    plain_median = statistics.median(plain_seconds)
    text = f"base, {workload.max_tokens} tokens an update"
    report.emit(f"{text}, nmt: target tokens/s", tokens / nmt_median)
    report.emit(f"{text}, PyTorch alone: target tokens/s", tokens / plain_median)
    report.emit("base: nmt beside PyTorch alone", plain_median / nmt_median, "times as fast")


def kernels(report: Recorder) -> None:
    """Report the time of an update by kind of kernel and by operation on the host.

    Also for a tiny model without compiled layers, whose updates take more time on the host than on
    the device.
    """
    workloads = {
        "base": Workload(SIZES["base"], 37_000, 50_000, 6),
        "tiny": Workload(SIZES["tiny"], 37_000, 2048, 6),
    }
    if report.quick:
        workloads = dict.fromkeys(workloads, QUICK)
    activities = [ProfilerActivity.CPU]
    if report.is_gpu:
        activities.append(ProfilerActivity.CUDA)
    for name, workload in workloads.items():
        updater = workload.updater(report)
        batches = workload.batches()
        with deterministic(report.device, wanted=True):
            if report.is_gpu and name == "base":
                compile_seconds = compile_updater(updater, batches[0], report.device)
                text = f"{name}: time to compile again"
                report.emit_seconds(text, compile_seconds, target="<= 15")
            make_updates(updater, batches)  # a warm-up
            report.wait()
            begin = perf_counter()
            make_updates(updater, batches)
            report.wait()
            seconds = perf_counter() - begin
            with profile(activities=activities) as profiled:
                make_updates(updater, batches)
                report.wait()
        update_seconds = seconds / len(batches)
        report.emit_ms(f"{name}: an update", update_seconds)
        _report_profile(report, name, profiled, len(batches), update_seconds)


def _kind_of(kernel: str) -> str:
    """Return the kind of a kernel, a key of `KINDS`, or ``others``."""
    label = kernel.lower()
    for kind, pattern in KINDS.items():
        if re.search(pattern, label):
            return kind
    return "others"


def _report_profile(
    report: Recorder, name: str, profiled: Any, num_updates: int, update_seconds: float
) -> None:
    """Report the time of an update on the device by kind of kernel, and on the host by operation.

    Args:
        report: Prints the results.
        name: Name of the model.
        profiled: The profile of ``num_updates`` updates, in microseconds.
        num_updates: Number of updates.
        update_seconds: Seconds of an update without the profiler.
    """
    device_times: Counter[str] = Counter()  # by kind of kernel
    host_times: Counter[str] = Counter()  # by operation
    num_kernels = 0
    for event in profiled.key_averages():
        if event.is_user_annotation:  # its time is counted by other events
            continue
        device_time = event.self_device_time_total
        host_time = event.self_cpu_time_total
        if device_time and not host_time:  # a kernel, which takes no time on the host
            kind = _kind_of(event.key)
            device_times[kind] += device_time
            num_kernels += event.count
        host_times[event.key] += host_time
    for kind, microseconds in device_times.most_common():
        milliseconds = microseconds / 1e3 / num_updates
        report.emit(f"{name}: device, {kind}", milliseconds, "ms")
    if device_times:
        busy_ms = sum(device_times.values()) / 1e3 / num_updates
        idle_ms = 1e3 * update_seconds - busy_ms
        report.emit(f"{name}: device, idle", idle_ms, "ms")
        report.emit(f"{name}: kernels an update", num_kernels / num_updates)
    for operation, microseconds in host_times.most_common(12):
        milliseconds = microseconds / 1e3 / num_updates
        report.emit(f"{name}: host, {operation[:60]}", milliseconds, "ms")


COPIED = (
    (0, "batch 64 -3 to +3%: 54 us less on the device, 50 more on the host"),
    (1 << 25, ""),
    (1 << 40, "batch 512 -20%: 2.2 GB more per step"),
)
"""Size of caches, in values, from which reordering of beams copies only a part; and the predicted
effect compared to the second entry, which `nmt translate` uses."""


def decoding(report: Recorder) -> None:
    """Report the speed of searches with an untrained base model, with outputs of 25 tokens."""
    workload = base_workload(report)
    length = 25
    batch_sizes = [1, 64, 256, 512]
    copied_batch_sizes = [64, 512]  # to compare the entries of `COPIED`
    dtype = torch.float32
    if report.quick:
        length = 5
        batch_sizes = [1, 4]
        copied_batch_sizes = [4]
    if report.is_gpu:
        dtype = torch.bfloat16
    torch.manual_seed(1)
    model = build_model(workload.config, workload.vocab_size, workload.vocab_size)
    model = model.to(report.device, dtype)
    engine = TorchEngine(model, is_final=True)
    # By batch size and beam size.
    targets = {(1, 1): "<= 8 ms", (256, 1): "300,000", (256, 5): "120,000"}
    for batch_size, beam_size in itertools.product(batch_sizes, (1, 5)):
        batches = _random_sources(workload.vocab_size, length, batch_size)
        seconds, num_tokens = _search_time(report, engine, batches, beam_size)
        search_name = f"beam {beam_size}"
        if beam_size == 1:
            search_name = "greedy"
        text = f"base, {search_name}, batch {batch_size}"
        target = targets.get((batch_size, beam_size), "")
        if batch_size == 1:
            report.emit(f"{text}: a sentence", 1e3 * seconds, "ms", target=target)
            report.emit(f"{text}: tokens of a sentence", num_tokens)
        else:
            report.emit(f"{text}: tokens/s", num_tokens / seconds, target=target)
    for batch_size, (min_values, predicted) in itertools.product(copied_batch_sizes, COPIED):
        decoder_state.LARGE_ON_GPU = min_values
        batches = _random_sources(workload.vocab_size, length, batch_size)
        seconds, num_tokens = _search_time(report, engine, batches, 5)
        options = f"batch {batch_size}, partial copies from {min_values:,} values"
        text = f"base, beam 5, {options}: tokens/s"
        report.emit(text, num_tokens / seconds, predicted=predicted)


def _random_sources(vocab_size: int, length: int, batch_size: int) -> list[list[list[int]]]:
    """Return three batches of ``batch_size`` random sentences of ``length`` tokens."""
    random = np.random.default_rng(3)
    ids = random.integers(4, vocab_size, (3, batch_size, length))
    batches: list[list[list[int]]] = ids.tolist()
    return batches


def _search_time(
    report: Recorder, engine: TorchEngine, batches: Sequence[list[list[int]]], beam_size: int
) -> tuple[float, float]:
    """Return the seconds and the output tokens of a batch; outputs are as long as sources.

    All sentences of ``batches`` must have the same length.
    """
    length = len(batches[0][0])
    options = DecodingConfig(
        beam_size=beam_size,
        min_length_factor=1,
        max_length_factor=0,
        max_length_offset=length,
    )
    output_lengths: list[int] = []  # Of the last search, with EOS.

    def search_all() -> None:
        output_lengths.clear()
        for batch in batches:
            for hypotheses in engine.search(batch, options):
                best = hypotheses[:1]
                output_lengths.extend(len(hypothesis.ids) + 1 for hypothesis in best)

    seconds = report.seconds(search_all, rounds=3, warm_up=2)
    return seconds / len(batches), sum(output_lengths) / len(batches)


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed setting of training, and its predicted effect on the time of an update."""

    name: str
    predicted: str
    is_compiled: bool = True
    is_deterministic: bool = True
    num_slices: int = 1
    """Number of micro-batches per update."""
    has_flash: bool = True
    inductor: tuple[str, ...] = ()
    """Options of the compiler to enable."""


VARIANTS = (
    Variant("padded attention", "+10 to +20%", has_flash=False),
    Variant("layers not compiled", "+30 to +60%", is_compiled=False),
    Variant("kernels started by C++", "-15 to -30%: the host limits", inductor=("cpp_wrapper",)),
    Variant("CUDA graphs of layers", "-10 to -40%, or refused", inductor=("triton.cudagraphs",)),
    Variant("sums in any order", "0 to -3%", is_deterministic=False),
    Variant("two micro-batches", "+2 to +5%", num_slices=2),
)
"""To add a variant, add a field to `Variant` and a line here."""


def variants(report: Recorder) -> None:
    """Report the effect of each variant, and the noise of two equal measurements."""
    workload = base_workload(report)
    batches = workload.batches()
    usual_inductor = compilation.INDUCTOR

    def measure(variant: Variant) -> float:
        """Return the seconds of an update."""
        torch.compiler.reset()  # variants compile the same functions, whose graphs are limited
        torch.compiler.set_stance("default")
        compilation.INDUCTOR = usual_inductor | dict.fromkeys(variant.inductor, True)
        updater = workload.updater(report)
        # The micro-batches of each update.
        slices = [[batch] for batch in batches]
        if variant.num_slices == 2:
            slices = [list(batch.halves()) for batch in batches]
        if not variant.has_flash:
            FLASH[report.device.type] = None
        determinism: AbstractContextManager[object] = nullcontext()
        if variant.is_deterministic:
            determinism = deterministic(report.device, wanted=True)

        def update_all() -> None:
            read_together([updater(micro_batches, 1e-4) for micro_batches in slices])

        with determinism:
            if variant.is_compiled and report.is_gpu:
                compile_updater(updater, batches[0], report.device)
            seconds = report.seconds(update_all, rounds=3, warm_up=1)
        FLASH.pop("cuda", None)  # the next variant looks it up again
        return seconds / len(batches)

    usual = Variant("as it is", "")
    usual_seconds = measure(usual)
    repeated_seconds = measure(usual)
    report.emit_ms("as it is, an update", usual_seconds)
    noise = 100 * abs(repeated_seconds / usual_seconds - 1)
    report.emit("as it is, again: difference (noise)", noise, "%")
    for variant in VARIANTS:
        try:
            seconds = measure(variant)
        except Exception as error:  # torch may not support a variant; measure the others
            reason, *_ = str(error).strip().split("\n", 1)
            report.emit(f"{variant.name}: failed", reason[:100], predicted=variant.predicted)
            continue
        change = 100 * (seconds / min(usual_seconds, repeated_seconds) - 1)
        text = f"{variant.name}: time of an update"
        report.emit(text, change, "%", predicted=variant.predicted)


def beside(report: Recorder) -> None:
    """Report how long updates wait for checkpoints, and how long BPE-dropout takes."""
    workload = Workload(SIZES["base"], 37_000, 4000, 1)
    num_saves = 4
    max_steps = 300
    if report.quick:
        workload = replace(QUICK, num_batches=1)
        num_saves = 2
        max_steps = 8
    updater = workload.updater(report)
    make_updates(updater, workload.batches())
    run_dir = report.folder / "runs" / "saved"
    wait_seconds = []  # Until training can go on.
    write_seconds = []  # Until the thread has written the checkpoint.
    config = TrainingConfig(max_steps=9)
    with CheckpointWriter(run_dir, config, updater, {}, lambda _: None) as writer:
        for step in range(1, num_saves + 1):
            report.wait()
            begin = perf_counter()
            writer.save(Progress(step=step))
            wait_seconds.append(perf_counter() - begin)
            writer.wait()
            write_seconds.append(perf_counter() - begin)
    report.emit_ms("base: updates wait for a checkpoint", statistics.median(wait_seconds))
    report.emit_seconds("base: a checkpoint, written by a thread", statistics.median(write_seconds))
    changes = demo_settings(report)
    changes["training.compile"] = False
    changes["training.max_steps"] = max_steps
    log_every = 4
    changes["training.log_every"] = log_every
    for rate in (0.0, 0.1):
        run = f"demo-{rate}"
        changes["batch.bpe_dropout"] = rate
        flags = settings(report, run, changes)
        nmt("train", DEMO, *flags, "--quiet")
        records = _update_records(report.folder / "runs" / run)
        seconds = statistics.median(record["seconds"] / log_every for record in records)
        report.emit_ms(f"demo, BPE-dropout {rate}: an update", seconds)


# Whole commands


def _update_records(run_dir: Path) -> list[dict[str, Any]]:
    """Return the records of ``metrics.jsonl`` about updates. The run may still be writing."""
    path = run_dir / "metrics.jsonl"
    records: list[dict[str, Any]] = []
    if not path.exists():
        return records
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.endswith("}"):  # the run is writing this line
            continue
        record = json.loads(line)
        if record["kind"] == "update":
            records.append(record)
    return records


class Training:
    """`nmt train` in the background.

    Args:
        report: Options and device of the stage.
        run: Name of the run. Runs with the same name before the first hyphen share prepared data.
        compiles_in: Folder of compiled code.
        changes: Settings.
    """

    def __init__(
        self, report: Recorder, run: str, compiles_in: Path, changes: Mapping[str, Any]
    ) -> None:
        values = {
            **demo_settings(report),
            "training.compile": True,
            "training.log_every": 1,
            "training.schedule.shape": "constant",
            **changes,
        }
        self.folder = report.folder / "runs" / run
        flags = settings(report, run, values)
        nmt("prepare", DEMO, *flags)
        variables = {"PYTHONPATH": PATHS, "TORCHINDUCTOR_CACHE_DIR": str(compiles_in)}
        command = [*NMT, "train", DEMO, *flags, "--quiet"]
        self._begin = perf_counter()
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | variables)

    def seconds_until(self, has_happened: Callable[[], bool]) -> float:
        """Wait until ``has_happened`` returns True; return the seconds since the start.

        Raises:
            RuntimeError: The training ended before.
        """
        while not has_happened():
            # Ask again: the event and the end may both have come after the first question.
            if self.process.poll() is not None and not has_happened():
                raise RuntimeError(f"training ended with code {self.process.returncode}")
            time.sleep(0.02)
        return perf_counter() - self._begin

    def has_updated(self) -> bool:
        """Whether the run has recorded an update."""
        return bool(_update_records(self.folder))

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.terminate()
        return self.process.wait()


def start(report: Recorder) -> None:
    """Report the seconds from the command to the first update, without and with kept kernels."""
    compiles_in = report.folder / "compiled-start"
    changes: dict[str, Any] = {"training.max_steps": 1000}
    if not report.quick:
        changes["model"] = {"preset": "transformer-base"}
    targets = {"empty": "<= 20", "kept": "<= 10"}
    for state, target in targets.items():
        training = Training(report, f"start-{state}", compiles_in, changes)
        seconds = training.seconds_until(training.has_updated)
        training.stop()
        report.emit_seconds(f"base, first update, cache {state}", seconds, target=target)


def signals(report: Recorder) -> None:
    """Gate: SIGTERM while layers are compiled loses nothing."""
    num_updates = 40
    if report.quick:
        num_updates = 4
    changes = {"training.max_steps": num_updates}
    compiles_in = report.folder / "compiled-signals"
    stopped = Training(report, "demo-stopped", compiles_in, changes)
    # The compiler has started when it has written a file.
    stopped.seconds_until(lambda: any(compiles_in.rglob("*.py")))
    begin = perf_counter()
    exit_code = stopped.stop()
    seconds = perf_counter() - begin
    report.emit_seconds("SIGTERM while compiling: the command ends after", seconds)
    text = "SIGTERM while compiling: exit code"
    report.emit(text, float(exit_code), target="143", passed=exit_code == 143)
    run_hashes = []  # Of each run: the hashes of weights and optimizer.
    for run in ("demo-stopped", "demo-unstopped"):
        training = Training(report, run, compiles_in, changes)
        training.process.wait()
        run_hashes.append(_hashes(training.folder))
    text = f"{num_updates} updates, started again: sha256 of weights and optimizer"
    stopped_hashes, expected_hashes = run_hashes
    passed = stopped_hashes == expected_hashes
    report.emit(text, stopped_hashes[0][:12], target=expected_hashes[0][:12], passed=passed)


def together(report: Recorder) -> None:
    """Gate: two trainings on one device do not change each other. Report their speed."""
    num_updates = 400
    if report.quick:
        num_updates = 8
    changes = {"training.max_steps": num_updates}
    compiles_in = report.folder / "compiled-together"
    # Runs of the same name are started at the same time.
    runs_by_name = {"one training": ["demo-alone"], "each of two": ["demo-first", "demo-second"]}
    run_hashes = []  # Of each run: the hashes of weights and optimizer.
    medians = {}
    for name, runs in runs_by_name.items():
        trainings = [Training(report, run, compiles_in, changes) for run in runs]
        for training in trainings:
            training.process.wait()
        update_seconds = []
        for training in trainings:
            run_hashes.append(_hashes(training.folder))
            update_seconds += [record["seconds"] for record in _update_records(training.folder)]
        medians[name] = statistics.median(update_seconds)
    for name, median in medians.items():
        report.emit_ms(f"demo, {name} on the device: an update", median)
    alone, first, second = run_hashes
    text = f"{num_updates} updates beside another training: sha256 of weights and optimizer"
    passed = alone == first == second
    report.emit(text, first[0][:12], target=alone[0][:12], passed=passed)


def _train(
    report: Recorder, config: str, run: str, more_flags: Sequence[str]
) -> tuple[float, float]:
    """Prepare, train and evaluate; return the seconds of these, and BLEU with beam 5."""
    flags = [*settings(report, run, {}), *more_flags]
    evaluation = ["-t", "test", "-b", "5", "--metric", "bleu", "--resamples", "0", "--json"]
    if report.quick:
        flags += ["--set=training.max_steps=4", "--set=training.validation.max_sentences=4"]
        evaluation += ["--limit", "4"]
    begin = perf_counter()
    nmt("prepare", config, *flags)
    nmt("train", config, *flags, "--quiet")
    folder = str(report.folder / "runs" / run)
    output, _ = nmt("evaluate", folder, *evaluation, "--device", report.device.type)
    seconds = perf_counter() - begin
    system = json.loads(output)["test_sets"][0]["systems"][0]
    return seconds, float(system["scores"][0]["value"])


def _corpora(
    report: Recorder, folder: str, names: Mapping[str, str], source: str, target: str
) -> list[str] | None:
    """Return ``--set`` flags for the corpora of a task; None if a file does not exist.

    Args:
        report: Options of the stage.
        folder: Folder in that of ``--data``.
        names: ``train``, ``valid`` and ``test`` -> name of the files without languages.
        source: Source language.
        target: Target language.
    """
    data = report.chosen.data / folder
    corpora = {}
    for part, name in names.items():
        source_file = data / f"{name}.{source}.gz"
        target_file = data / f"{name}.{target}.gz"
        if not source_file.exists() or not target_file.exists():
            return None
        corpora[part] = {"source": str(source_file), "target": str(target_file)}
    train = json.dumps([corpora["train"]])
    valid = json.dumps(corpora["valid"])
    test = json.dumps({"test": corpora["test"]})
    return [f"--set=data.train={train}", f"--set=data.valid={valid}", f"--set=data.test={test}"]


def multi30k(report: Recorder) -> None:
    """Run the Multi30k recipe from text to BLEU; report its time and BLEU."""
    config = "configs/multi30k.yaml"
    names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    flags = _corpora(report, "multi30k", names, "de", "en")
    if report.quick:  # a quick run uses the demo instead
        config = DEMO
        flags = ["--set=tokenizer.vocab_size=320"]
    if flags is None:
        report.emit("Multi30k", "skipped: data not found")
        return
    seconds, score = _train(report, config, "multi30k", flags)
    report.emit_seconds("Multi30k, from text to BLEU", seconds, target="<= 90")
    report.emit("Multi30k de-en, test_2016_flickr, beam 5", score, "BLEU", target=">= 41.0")


def proof(report: Recorder) -> None:
    """Gate: killed and resumed training gives the same bytes as uninterrupted training."""
    if report.quick:
        report.emit("scripts/prove_resume.py", "skipped: it takes a minute")
        return
    flags = settings(report, "proof", {"tokenizer.vocab_size": 1000})
    command = [sys.executable, "scripts/prove_resume.py", DEMO, *flags]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    *_, last_line = completed.stdout.splitlines()
    report.emit("scripts/prove_resume.py", last_line[:120], passed=True)


def tatoeba(report: Recorder) -> None:
    """Train the Multi30k model on Tatoeba English-German; report time and BLEU."""
    if report.quick:
        report.emit("Tatoeba", "skipped")
        return
    names = {"train": "train", "valid": "dev", "test": "test"}
    flags = _corpora(report, "tatoeba_en_de", names, "en", "de")
    if flags is None:
        report.emit("Tatoeba", "skipped: data not found")
        return
    flags += ["--set=source_language=en", "--set=target_language=de"]
    flags += ["--set=training.max_steps=6000", "--set=batch.max_tokens=8192"]
    seconds, score = _train(report, "configs/multi30k.yaml", "tatoeba", flags)
    report.emit_seconds("Tatoeba en-de, from text to BLEU", seconds)
    report.emit("Tatoeba en-de, test, beam 5", score, "BLEU")


def _search_rate(report: Recorder, model: str, path: Path, beam_size: int) -> float:
    """Return lines/s of the searches alone, without the second searches of the guard."""
    translator = Translator.load(model, engine="torch", device=report.device.type, guard=False)
    translator = translator.with_options(beam_size=beam_size)
    lines = path.read_text(encoding="utf-8").splitlines()
    prepared = translator.segment(lines)

    def search_all() -> None:
        translator.finish(prepared)

    seconds = report.seconds(search_all, rounds=1, warm_up=1)
    return len(lines) / seconds


def files(report: Recorder) -> None:
    """Report the speed of `nmt translate` from file to file, and of its searches alone."""
    num_lines = 50_000
    if report.quick:
        num_lines = 8
    model = _model(report)
    path = _sources(report, num_lines, name="train")
    output = path.with_suffix(".out")
    flags = ["-i", str(path), "-o", str(output), "--device", report.device.type]
    for beam_size in _beam_sizes(report):
        begin = perf_counter()
        _, messages = nmt("translate", model, *flags, "-b", str(beam_size))
        rate = num_lines / (perf_counter() - begin)
        text = f"{num_lines} lines, beam {beam_size}"
        report.emit(f"{text}: lines/s, the whole command", rate)
        search_rate = _search_rate(report, model, path, beam_size)
        report.emit(f"{text}: lines/s, the searches alone", search_rate)
        rate_percent = 100 * rate / search_rate
        report.emit(f"{text}: share of that rate", rate_percent, "%", target=">= 70%")
        alarm = re.search(r"guard: ([\d,]+) of [\d,]+ translations looked", messages)
        num_alarms = 0
        if alarm is not None:
            num_alarms = int(alarm[1].replace(",", ""))
        alarm_percent = 100 * num_alarms / num_lines
        report.emit(f"{text}: lines that the guard searched again", alarm_percent, "%")


STAGES: tuple[Callable[[Recorder], None], ...] = (
    machine, gradients, updates, compiled, resume, search, shapes, loss, training, pytorch,
    kernels, decoding, variants, beside, start, signals, together, multi30k, proof, tatoeba,
    files,
)  # fmt: skip


def run(chosen: argparse.Namespace) -> None:
    """Run the stage ``chosen.run`` in this process."""
    prepare_process(None)
    report = Recorder(chosen, choose_device(chosen.device))
    stages = {stage.__name__: stage for stage in STAGES}
    stages[chosen.run](report)
