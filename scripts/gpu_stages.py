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
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from pathlib import Path
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
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
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
        record = {"what": what, "value": value, "unit": unit, "target": target}
        print(json.dumps(record | {"predicted": predicted, "passed": passed}), flush=True)

    def seconds(self, work: Callable[[], object], *, rounds: int = 5, warm_up: int = 2) -> float:
        """Return the median time of ``work`` on the device, in seconds."""
        found = []
        for number in range(1 if self.quick else warm_up + rounds):
            self.wait()
            begin = time.perf_counter()
            work()
            self.wait()
            if self.quick or number >= warm_up:
                found.append(time.perf_counter() - begin)
        return statistics.median(found)


class DrawnPairs:
    """Random sentence pairs for `nmt.data.loader.collate`.

    Args:
        vocab_size: Size of both vocabularies.
        lengths: Source and target lengths without EOS. (n,) each.
        seed: Seed of the ids.
    """

    def __init__(self, vocab_size: int, lengths: tuple[Any, Any], seed: int) -> None:
        self.source_lengths, self.target_lengths = lengths
        self._random = np.random.default_rng(seed)
        weights = 1.0 / np.arange(1, vocab_size - 3)
        self._law = weights.cumsum() / weights.sum()

    def _ids(self, lengths: Any) -> FlatIds:
        ids = 4 + np.searchsorted(self._law, self._random.random(int(lengths.sum())))
        return FlatIds(ids.astype(np.int64), lengths)

    def source_ids(self, rows: Any) -> FlatIds:
        """Same as `nmt.data.store.ParallelStore.source_ids`."""
        return self._ids(self.source_lengths[rows])

    def target_ids(self, rows: Any) -> FlatIds:
        """Same as `nmt.data.store.ParallelStore.target_ids`."""
        return self._ids(self.target_lengths[rows])


def _batch(pairs: DrawnPairs, rows: Any) -> Batch:
    return collate(pairs.source_ids(rows), pairs.target_ids(rows), rows)


def wmt_like(vocab_size: int, max_tokens: int, count: int, seed: int = 1) -> list[Batch]:
    """Return ``count`` random batches with ``max_tokens`` source plus target tokens."""
    random, num_pairs = np.random.default_rng(seed), max(2000, count * max_tokens // 20)
    longest = min(150, max_tokens // 4)
    source = np.clip(random.lognormal(3.2, 0.55, num_pairs), 2, longest).astype(np.int32)
    target = np.clip(source * random.lognormal(0.02, 0.2, num_pairs), 2, longest).astype(np.int32)
    store = DrawnPairs(vocab_size, (source, target), seed)
    plan = plan_batches(
        source + 1, target + 1, max_tokens=max_tokens, noise=0.1, random=epoch_random(1, 0)
    )
    whole = [rows for rows in plan if (source[rows] + target[rows] + 2).sum() > max_tokens * 0.7]
    return [_batch(store, rows) for rows in (whole or plan)[:count]]


def of_shape(vocab_size: int, shape: tuple[int, int], seed: int) -> Batch:
    """Return a random batch of ``shape[0]`` sentences with lengths from 1 to ``shape[1]``."""
    random = np.random.default_rng(seed)
    lengths = [random.integers(1, shape[1] + 1, shape[0]).astype(np.int32) for _ in range(2)]
    store = DrawnPairs(vocab_size, (lengths[0], lengths[1]), seed)
    return _batch(store, np.arange(shape[0]))


def length_sums(batches: Sequence[Batch]) -> LengthSums:
    """Return the sums of lengths, without padding sentences."""
    lengths = [
        torch.stack([side.lengths[: len(batch.rows)] for side in (batch.source, batch.target)])
        for batch in batches
    ]
    return LengthSums.of_pairs(*torch.cat(lengths, dim=1).numpy())


def make_updater(
    config: ModelConfig,
    vocab_size: int,
    device: torch.device,
    precision: Precision,
    *,
    seed: int = 1,
) -> Updater:
    """Return an updater of a new model, with the settings of `nmt train`."""
    torch.manual_seed(seed)
    model = build_model(config, vocab_size, vocab_size).to(device)
    optimizer = ModelOptimizer(model, OptimizerConfig(), precision.weight_dtype)
    loss = CrossEntropy(SMOOTHING)
    return Updater(model, optimizer, precision, loss, clip_norm=1.0)


def have_compiled(updater: Updater, batch: Batch, device: torch.device) -> float:
    """Compile the layers; return the seconds that this takes."""
    begin = time.perf_counter()
    compile_layers(
        True,
        device,
        switch=updater.model.compile_layers,
        warm_up=lambda: updater.warm_up(batch),
    )
    return time.perf_counter() - begin


def make_updates(updater: Updater, batches: Sequence[Batch]) -> None:
    """Make an update with each batch, then wait for all statistics."""
    read_together([updater([batch], 1e-4) for batch in batches])


def digest(updater: Updater) -> str:
    """Hash the weights and the optimizer's state."""
    found = hashlib.sha256()
    for tensors in (updater.optimizer.weights(), updater.optimizer.state()):
        for name in sorted(tensors):
            found.update(name.encode())
            found.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def matrix_rate(report: Recorder, rows: int, inner: int, columns: int) -> float:
    """Return FLOP/s of a matrix product in the dtype of training, with several random inputs."""
    dtype = choose_precision("auto", report.device).dtype
    sets = [
        tuple(torch.randn(shape, device=report.device, dtype=dtype) for shape in shapes)
        for shapes in [((rows, inner), (inner, columns))] * 3
    ]
    repeats = 1 if report.quick else 4
    each = report.seconds(lambda: [left @ right for left, right in sets * repeats])
    return 2.0 * rows * inner * columns * len(sets) * repeats / each


def peak_rate(report: Recorder) -> float:
    """Return FLOP/s of large matrix products, the reference for utilisation."""
    size = 256 if report.quick else 8192
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
    report.emit("CPU cores", float(os.cpu_count() or 0))
    count = 1 << (20 if report.quick else 30)
    here = torch.randint(0, 100, (count,), dtype=torch.uint8, device=report.device)
    there = torch.empty_like(here)
    rate = 2 * count / report.seconds(lambda: there.copy_(here))
    report.emit("copy, read and written", rate / 1e9, "GB/s")
    here = there = torch.empty(0)  # frees the memory
    report.emit("products, 8192 cubed", peak_rate(report) / 1e12, "TFLOP/s")
    rows, entries = (64, 400) if report.quick else (25_000, 37_000)
    for size, config in SIZES.items():
        width, ff_dim = config.model_dim, config.ff_dim
        for inner, columns in (
            (width, 3 * width),
            (width, ff_dim),
            (ff_dim, width),
            (width, entries),
        ):
            rate = matrix_rate(report, rows, inner, columns) / 1e12
            report.emit(f"products, {size}, {rows} x {inner} x {columns}", rate, "TFLOP/s")
    small = torch.zeros(1024, device=report.device)
    repeats = 100 if report.quick else 5000
    begin = time.perf_counter()
    for _ in range(repeats):
        small.add_(1)
    host = time.perf_counter() - begin
    report.emit("host, to start one operation", 1e6 * host / repeats, "microseconds")


def reference_gradients(model: Transformer, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients in float64 on the CPU, with torch's cross-entropy."""
    model.zero_grad()
    hidden = model(batch.source, batch.target)
    logits = F.linear(hidden, model.output_weight, model.output_bias)
    loss = F.cross_entropy(logits, batch.gold, label_smoothing=SMOOTHING, reduction="sum")
    loss.backward()
    found = {name: gradient_of(parameter) for name, parameter in model.named_parameters()}
    return float(loss.detach()), found


def gradient_of(parameter: Tensor) -> Tensor:
    """Return a gradient in float64 on the CPU."""
    assert parameter.grad is not None
    return parameter.grad.detach().double().cpu().clone()


def gradients_of(updater: Updater, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients as in training, but not divided by the number of tokens."""
    flat = updater.optimizer.parameters
    flat.clear()
    updater.model.train()
    updater._sum_gradients([batch], 1.0)
    loss = float(flat.sums[0])
    found = {name: view.double().cpu().clone() for name, view in flat.views(flat.gradient).items()}
    flat.clear()
    return loss, found


def error_of(found: Tensor, reference: Tensor) -> float:
    """Return the relative norm of the difference; infinite if it contains NaN."""
    error = float((found - reference).norm() / reference.norm().clamp(min=1e-12))
    return error if np.isfinite(error) else inf


def _check_gradients(report: Recorder, *, is_compiled: bool) -> None:
    """Compare the gradients of training with float64, for random batches of all shapes."""
    vocab_size = 500
    shapes = SHAPES[::4] if report.quick else SHAPES
    models = {"tiny": SMALL, "tiny with GELU": SMOOTH, "modern": MODERN}
    for (name, config), precision in itertools.product(models.items(), PRECISIONS):
        if is_compiled and (name == "tiny") != (precision == "float32"):
            continue  # compilation takes half a minute each
        still = config.model_copy(update={"dropout": 0.0})
        policy = Precision(precision, report.device.type)
        updater = make_updater(still, vocab_size, report.device, policy)
        # Both use rounded weights, so that only the arithmetic differs.
        weights = {
            key: value.detach().to(policy.dtype).float().cpu()
            for key, value in updater.optimizer.weights().items()
        }
        updater.optimizer.load_weights(weights)
        if is_compiled:
            seconds = have_compiled(updater, of_shape(vocab_size, (3, 9), 0), report.device)
            report.emit(f"{name}, {precision}, time to compile", seconds, "s")
        reference = build_model(still, vocab_size, vocab_size)
        reference.load_state_dict(weights)
        reference.double().train()
        losses, singles = [], []
        differences, lengths = [], []
        for seed, shape in enumerate(shapes):
            batch = of_shape(vocab_size, shape, 100 + seed)
            expected_loss, expected = reference_gradients(reference, batch)
            loss, found = gradients_of(updater, batch)
            losses.append(error_of(torch.tensor(loss), torch.tensor(expected_loss)))
            flat = [
                torch.cat([side[key].flatten() for key in expected]) for side in (found, expected)
            ]
            differences.append(float((flat[0] - flat[1]).norm()))
            lengths.append(float(flat[1].norm()))
            # A gradient that is mathematically zero, as of key biases, is noise in both.
            least = 1e-3 * float(flat[1].norm())
            singles += [
                error_of(found[key], of_key)
                for key, of_key in expected.items()
                if float(of_key.norm()) > least
            ]
        text = f"{name}, {precision}"
        _gate(report, f"{text}, loss", losses, GATE_OF_LOSS[precision])
        is_smooth = config.activation != "relu"
        limit = GATE_OF_KINKS[precision] if not is_smooth else GATE_OF_MODEL[policy.weight_dtype]
        if is_smooth and policy.weight_dtype != policy.dtype:
            limit = GATE_OF_LOSS[precision]
        together = torch.tensor(differences).norm() / torch.tensor(lengths).norm()
        # NaN must fail the gate.
        _gate(report, f"{text}, gradients together", [float(together.nan_to_num(inf))], limit)
        _gate(report, f"{text}, gradient of a parameter", singles, GATE_OF_PARAMETER[precision])


def _gate(report: Recorder, what: str, errors: Sequence[float], limit: float) -> None:
    worst = max(errors)
    text = f"{what}: worst of {len(errors)}" if len(errors) > 1 else what
    report.emit(text, worst, "relative", target=f"< {limit:g}", passed=bool(worst < limit))


def _check_losses(report: Recorder) -> None:
    """Compare the loss and the gradients of its inputs with float64."""
    random = np.random.default_rng(5)
    for precision in PRECISIONS:
        dtype = Precision(precision, report.device.type).dtype
        losses, backs = [], []
        for number in range(3 if report.quick else 12):
            rows, width = int(random.integers(1, 700)), 16 * int(random.integers(1, 12))
            vocab_size = int(random.integers(5, 400 if report.quick else 9000))
            torch.manual_seed(number)
            # Logits have a standard deviation of 2, as in training. A 16-bit logit of 40 would have
            # an error of 0.1, and its probability an error of 10%, even with a perfect loss.
            scales = {(rows, width): 2 * width**-0.5, (vocab_size, width): 1, (vocab_size,): 0.5}
            inputs = [(torch.randn(shape) * scale).to(dtype) for shape, scale in scales.items()]
            gold = torch.randint(0, vocab_size, (rows,))
            here = [each.clone().to(report.device).requires_grad_() for each in inputs]
            loss = cross_entropy(here[0], here[1], here[2], gold.to(report.device), SMOOTHING)
            loss.backward()
            there = [each.double().requires_grad_() for each in inputs]
            logits = F.linear(there[0], there[1], there[2])
            expected = F.cross_entropy(logits, gold, label_smoothing=SMOOTHING, reduction="sum")
            expected.backward()
            losses.append(error_of(loss.detach().double().cpu(), expected.detach()))
            backs += [
                error_of(gradient_of(one), gradient_of(other))
                for one, other in zip(here, there, strict=True)
            ]
        _gate(report, f"loss alone, {precision}", losses, GATE_OF_LOSS[precision])
        _gate(report, f"loss alone, {precision}, gradients", backs, GATE_OF_LOSS[precision])


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
    count = 3 if report.quick else 20
    batches = wmt_like(500, 400 if report.quick else 4000, count)
    for name in PRECISIONS:
        precision = Precision(name, report.device.type)
        found = []
        for _ in range(2):
            updater = make_updater(SMALL, 500, report.device, precision)
            torch.manual_seed(2)
            with deterministic(report.device, wanted=True):
                make_updates(updater, batches)
            found.append(digest(updater))
        text = f"{count} updates twice, {name}: sha256 of weights and optimizer"
        report.emit(text, found[0][:12], target=found[1][:12], passed=found[0] == found[1])


def nmt(*arguments: str, env: dict[str, str] | None = None) -> tuple[str, str]:
    """Run `nmt` with ``arguments``; return standard output and standard error.

    Raises:
        RuntimeError: The command failed.
    """
    how: Any = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": PATHS} | (env or {})}
    done = subprocess.run([*NMT, *arguments], capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise RuntimeError(f"nmt {' '.join(arguments)}: code {done.returncode}\n{done.stderr}")
    return done.stdout, done.stderr


def settings(report: Recorder, run: str, **changes: Any) -> list[str]:
    """Return ``--set`` flags for device, folders and ``changes``, whose ``__`` becomes a dot."""
    folder = Path(report.chosen.folder)
    chosen = {
        "training.device": report.device.type,
        "prepared_dir": str(folder / "prepared" / run.split("-")[0]),
        "run_dir": str(folder / "runs" / run),
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    if report.quick:
        small = {"encoder_layers": 1, "decoder_layers": 1, "model_dim": 32, "ff_dim": 32}
        chosen |= {f"model.{name}": size for name, size in small.items()}
        chosen |= {"decoding.max_length_factor": 0.2, "decoding.max_length_offset": 4}
        chosen["data.train"] = [{"name": "demo", "demo": "test"}]
        chosen["data.valid"] = {"source": f"{SAMPLE}.en", "target": f"{SAMPLE}.de"}
    return [f"--set={key}={json.dumps(value)}" for key, value in chosen.items()]


def resume(report: Recorder) -> None:
    """Gate: stopped and resumed training gives the same bytes as uninterrupted training."""
    half = 4 if report.quick else 40
    sizes = {
        "training__schedule__shape": "constant",
        "training__compile": report.is_gpu,  # `auto` would not compile for so few updates
        "training__validate_every": 1000,
        "training__save_every": 1000,
        "training__validation__max_sentences": 4,
        "tokenizer__vocab_size": 320 if report.quick else 1000,
    }
    config, hashes = "configs/demo.yaml", []
    nmt("prepare", config, *settings(report, "demo", **sizes))
    for run, stops in (("demo-whole", [2 * half]), ("demo-resumed", [half, 2 * half])):
        for stop in stops:
            begin = time.perf_counter()
            flags = settings(report, run, training__max_steps=stop, **sizes)
            nmt("train", config, *flags, "--exact", "--quiet")
            seconds = time.perf_counter() - begin
            report.emit(f"{run}, to update {stop}, the whole command", seconds, "s")
        hashes.append(_hashes(Path(report.chosen.folder) / "runs" / run))
    for part, first, second in zip(("weights", "optimizer"), *hashes, strict=True):
        text = f"{2 * half} updates, resumed: sha256 of {part}"
        report.emit(text, second[:12], target=first[:12], passed=first == second)


def _hashes(run_dir: Path) -> list[str]:
    """Return the hashes of the newest weights and of the optimizer's state."""
    newest = max((run_dir / "checkpoints").glob("step-*"))
    parts = [newest / f"{part}.safetensors" for part in ("model", "optimizer")]
    return [hashlib.sha256(part.read_bytes()).hexdigest() for part in parts]


def _model(report: Recorder) -> str:
    """Return the model of ``--model``, or a model that an earlier stage has trained."""
    runs = Path(report.chosen.folder) / "runs"
    found = [report.chosen.model, runs / "multi30k", runs / "demo-whole"]
    for folder in found:
        if folder is not None and (folder / "config.yaml").exists():
            return str(folder)
    raise RuntimeError("no model found: pass --model, or add the stage `resume`")


def _sources(report: Recorder, count: int, *, name: str = "test_2016_flickr") -> Path:
    """Write a file of ``count`` lines to translate, from Multi30k or else from the demo."""
    place = Path(report.chosen.data) / "multi30k" / f"{name}.de.gz"
    if place.exists() and report.chosen.model is not None:
        lines = gzip.decompress(place.read_bytes()).decode().splitlines()
    else:
        lines = (ROOT / f"{SAMPLE}.en").read_text(encoding="utf-8").splitlines()
    path = Path(report.chosen.folder) / f"source.{count}"
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen = itertools.islice(itertools.cycle(lines), count)
    path.write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")
    return path


def search(report: Recorder) -> None:
    """Gate: searches in float32 on the device find the same translations as on the CPU.

    Few rows use recorded CUDA graphs, many rows do not. The guard is off, because it would search
    wrong outputs again and hide them. A few lines may differ, where two hypotheses have almost the
    same score.
    """
    model, count = _model(report), 4 if report.quick else 200
    path = _sources(report, count)

    def translate(device: str, beam_size: int, batch_tokens: int) -> list[str]:
        flags = ["-i", str(path), "--device", device, "-b", str(beam_size), "--no-guard"]
        flags += ["--dtype", "float32"]
        flags += ["--engine", "torch", "--dtype", "float32"]
        return nmt("translate", model, *flags, "--batch-tokens", str(batch_tokens))[0].split("\n")

    for beam_size in (5,) if report.quick else (1, 5):
        # CUDA graphs are recorded for at most 256 rows.
        many, few = 60_000, 600
        expected = translate("cpu", beam_size, few)
        for name, batch_tokens in (("few rows", few), ("many rows", many)):
            if report.quick and name == "many rows":
                continue
            found = translate(report.device.type, beam_size, batch_tokens)
            alike = sum(map(str.__eq__, found, expected)) / len(expected)
            text = f"beam {beam_size}, {name}: lines equal to the CPU"
            passed = len(found) == len(expected) and alike >= 0.98
            report.emit(text, 100 * alike, "%", target=">= 98%", passed=passed)


def shapes(report: Recorder) -> None:
    """Gate: hundreds of batch shapes do not cause recompilation."""
    count = 6 if report.quick else 250
    flags = settings(
        report,
        "demo-shapes",
        training__max_steps=count,
        training__schedule__shape="constant",
        training__compile=report.is_gpu,
        training__validation__max_sentences=4,
        tokenizer__vocab_size=320 if report.quick else 1000,
    )
    _, said = nmt("train", "configs/demo.yaml", *flags, env={"TORCH_LOGS": "recompiles"})
    causes = said.split("Recompiling function")[1:]
    # Training and validation have different graphs, which the warm-up compiles.
    found = [cause for cause in causes if "grad_mode" not in cause]
    text = f"recompiled in {count} updates"
    report.emit(text, float(len(found)), target="0", passed=not found)
    for cause in found[:5]:
        reasons = re.findall(r"- \d+/\d+: (.*)", cause)
        report.emit("recompiled because", "; ".join(reasons)[:200])


# Speed of the parts


def _rate(
    report: Recorder, updater: Updater, batches: Sequence[Batch], *, rounds: int = 3
) -> tuple[float, float]:
    """Return the seconds of an update, and the seconds until the host could continue."""
    hosts = []

    def work() -> None:
        begin = time.perf_counter()
        stats = [updater([batch], 1e-4) for batch in batches]
        hosts.append(time.perf_counter() - begin)
        read_together(stats)

    seconds = report.seconds(work, rounds=rounds, warm_up=1)
    return seconds / len(batches), statistics.median(hosts[-rounds:]) / len(batches)


def loss(report: Recorder) -> None:
    """Time the output projection with its loss, forwards and backwards, against its products."""
    rows, entries = (300, 400) if report.quick else (25_000, 37_000)
    width, dtype = SIZES["base"].model_dim, choose_precision("auto", report.device).dtype
    options: Any = {"device": report.device, "dtype": dtype}
    sets = [
        (
            torch.randn((rows, width), **options, requires_grad=True),
            torch.randn((entries, width), **options).div_(8).requires_grad_(),
            torch.randn(entries, **options).requires_grad_(),
            torch.randint(0, entries, (rows,), device=report.device),
        )
        for _ in range(3)
    ]

    def both_ways(compiler: Callable[..., Any]) -> None:
        for hidden, weight, bias, gold in sets:
            cross_entropy(hidden, weight, bias, gold, SMOOTHING, compiler).backward()
            hidden.grad = weight.grad = bias.grad = None

    def products() -> None:
        for hidden, weight, _, _ in sets:
            by_logits = hidden.detach() @ weight.detach().T
            by_logits @ weight.detach()
            by_logits.T @ hidden.detach()

    alone = report.seconds(products) / len(sets)
    text = f"loss of {rows} x {width} x {entries}"
    report.emit(f"{text}: its three matrix products", 1e3 * alone, "ms")
    ways: dict[str, Callable[..., Any]] = {"not compiled": lambda function: function}
    if report.is_gpu:
        ways["compiled"] = cache(compile_function)
    for name, compiler in ways.items():
        if report.is_gpu:
            torch.cuda.reset_peak_memory_stats(report.device)
        whole = report.seconds(partial(both_ways, compiler)) / len(sets)
        report.emit(f"{text}: the rest, {name}", 1e3 * (whole - alone), "ms", target="<= 3")
        if report.is_gpu:
            peak_bytes = torch.cuda.max_memory_allocated(report.device)
            report.emit(f"{text}: peak memory, {name}", peak_bytes / 1e9, "GB")


def training(report: Recorder) -> None:
    """Report tokens/s, utilisation, host and device time, and peak memory of updates."""
    peak = peak_rate(report)
    for name in ["base"] if report.quick else report.chosen.sizes.split(","):
        config = SMALL if report.quick else SIZES[name]
        vocab_size = 400 if report.quick else (8_000 if name == "tiny" else 37_000)
        precision = choose_precision("auto", report.device)
        updater = make_updater(config, vocab_size, report.device, precision)
        with deterministic(report.device, wanted=True):
            counts = {200: ("", "")} if report.quick else UPDATES[name]
            if report.is_gpu:
                first = wmt_like(vocab_size, min(counts), 1)[0]
                seconds = have_compiled(updater, first, report.device)
                report.emit(f"{name}, time to compile", seconds, "s", target="<= 75")
            for max_tokens, (rate, share) in counts.items():
                batches = wmt_like(vocab_size, max_tokens, 2 if report.quick else 8)
                if report.is_gpu:
                    torch.cuda.reset_peak_memory_stats(report.device)
                seconds, host = _rate(report, updater, batches)
                tokens = sum(batch.num_target_tokens for batch in batches) / len(batches)
                sums = length_sums(batches)
                needed = training_flops(config, vocab_size, sums).total / len(batches)
                utilisation = 100 * needed / seconds / peak
                text = f"{name}, {max_tokens} tokens an update"
                report.emit(f"{text}: target tokens/s", tokens / seconds, target=rate)
                report.emit(f"{text}: utilisation", utilisation, "%", target=share)
                report.emit(f"{text}: an update", 1e3 * seconds, "ms")
                report.emit(f"{text}: of that, until the host continues", 1e3 * host, "ms")
                if report.is_gpu:
                    peak_bytes = torch.cuda.max_memory_allocated(report.device)
                    report.emit(f"{text}: peak memory", peak_bytes / 1e9, "GB")


class PlainTransformer(nn.Module):
    """A model of the same size in PyTorch alone: `torch.nn.Transformer` on padded batches.

    Its dropout also applies to attention weights and inside feed-forward layers.

    Args:
        config: Sizes of the model.
        vocab_size: Size of the vocabulary, shared by source, target and output.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.dim, self.dropout = config.model_dim, nn.Dropout(config.dropout)
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
        logits = F.linear(hidden, self.embedding.weight).flatten(0, 1)
        return F.cross_entropy(
            logits, gold.flatten(), ignore_index=0, label_smoothing=SMOOTHING, reduction="sum"
        )

    def _embed(self, ids: Tensor) -> Tensor:
        positions = self.get_buffer("positions")[: ids.shape[1]]
        return self.dropout(self.embedding(ids) * self.dim**0.5 + positions)


def plain_update(
    model: Callable[..., Any], optimizer: torch.optim.Optimizer, batch: Batch, precision: Precision
) -> None:
    """Make an update as scripts with PyTorch alone do: autocast, clipping, fused AdamW."""
    source, target = batch.source.pad(batch.source.ids), batch.target.pad(batch.target.ids)
    gold = batch.target.pad(batch.gold)
    with precision.autocast():
        loss = model(source, ~batch.source.mask(), target, gold)
    (loss / batch.num_target_tokens).backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()
    optimizer.zero_grad()


def pytorch(report: Recorder) -> None:
    """Report updates of a model of this size in PyTorch alone, in turn with those of `nmt`."""
    vocab_size, max_tokens = (400, 200) if report.quick else (37_000, 50_000)
    config = SMALL if report.quick else SIZES["base"]
    precision = choose_precision("auto", report.device)
    batches = wmt_like(vocab_size, max_tokens, 2 if report.quick else 8)
    here = [batch.to(report.device) for batch in batches]
    updater = make_updater(config, vocab_size, report.device, precision)
    model = PlainTransformer(config, vocab_size).to(report.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    plain: Callable[..., Any] = model
    if report.is_gpu:
        have_compiled(updater, batches[0], report.device)
        plain = torch.compile(model, dynamic=True)

    def theirs() -> None:
        for batch in here:
            plain_update(plain, optimizer, batch, precision)

    found: dict[str, list[float]] = {"nmt": [], "PyTorch alone": []}
    for _ in range(1 if report.quick else 3):
        found["nmt"].append(_rate(report, updater, batches, rounds=1)[0])
        found["PyTorch alone"].append(report.seconds(theirs, rounds=1, warm_up=1) / len(batches))
    tokens = sum(batch.num_target_tokens for batch in batches) / len(batches)
    medians = {name: statistics.median(each) for name, each in found.items()}
    for name, seconds in medians.items():
        text = f"base, {max_tokens} tokens an update, {name}"
        report.emit(f"{text}: target tokens/s", tokens / seconds)
    ratio = medians["PyTorch alone"] / medians["nmt"]
    report.emit("base: nmt beside PyTorch alone", ratio, "times as fast")


def kernels(report: Recorder) -> None:
    """Report the time of an update by kind of kernel and by operation on the host.

    Also for a tiny model without compiled layers, whose updates take more time on the host than on
    the device.
    """
    vocab_size = 400 if report.quick else 37_000
    models = (("base", SIZES["base"], 50_000), ("tiny", SIZES["tiny"], 2048))
    for name, config, max_tokens in models:
        if report.quick:
            config, max_tokens = SMALL, 200
        precision = choose_precision("auto", report.device)
        updater = make_updater(config, vocab_size, report.device, precision)
        batches = wmt_like(vocab_size, max_tokens, 2 if report.quick else 6)
        with deterministic(report.device, wanted=True):
            if report.is_gpu and name == "base":
                seconds = have_compiled(updater, batches[0], report.device)
                report.emit(f"{name}: time to compile again", seconds, "s", target="<= 15")
            make_updates(updater, batches)
            report.wait()
            kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * report.is_gpu
            begin = time.perf_counter()
            make_updates(updater, batches)
            report.wait()
            plain = (time.perf_counter() - begin) / len(batches)
            with profile(activities=kinds) as found:
                make_updates(updater, batches)
                report.wait()
        report.emit(f"{name}: an update", 1e3 * plain, "ms")
        _by_kind(report, name, found, len(batches), plain)


def _by_kind(report: Recorder, name: str, found: Any, count: int, seconds: float) -> None:
    kinds: Counter[str] = Counter()
    host: Counter[str] = Counter()
    calls = 0
    for event in found.key_averages():
        if event.is_user_annotation:  # its time is counted by other events
            continue
        if event.self_device_time_total and not event.self_cpu_time_total:
            label = event.key.lower()
            kind = next((kind for kind, law in KINDS.items() if re.search(law, label)), "others")
            kinds[kind] += event.self_device_time_total
            calls += event.count
        host[event.key] += event.self_cpu_time_total
    for kind, microseconds in kinds.most_common():
        report.emit(f"{name}: device, {kind}", microseconds / 1e3 / count, "ms")
    if kinds:
        idle = 1e3 * seconds - sum(kinds.values()) / 1e3 / count
        report.emit(f"{name}: device, idle", idle, "ms")
        report.emit(f"{name}: kernels an update", calls / count)
    for key, microseconds in host.most_common(12):
        report.emit(f"{name}: host, {key[:60]}", microseconds / 1e3 / count, "ms")


COPIED = (
    (0, "batch 64 -3 to +3%: 54 us less on the device, 50 more on the host"),
    (1 << 25, ""),
    (1 << 40, "batch 512 -20%: 2.2 GB more per step"),
)
"""Size of caches, in values, from which reordering of beams copies only a part; and the predicted
effect compared to the second entry, which `nmt translate` uses."""


def decoding(report: Recorder) -> None:
    """Report the speed of searches with an untrained base model, with outputs of 25 tokens."""
    vocab_size, length = (400, 5) if report.quick else (37_000, 25)
    config = SMALL if report.quick else SIZES["base"]
    torch.manual_seed(1)
    dtype = torch.bfloat16 if report.is_gpu else torch.float32
    engine = TorchEngine(
        build_model(config, vocab_size, vocab_size).to(report.device, dtype), is_final=True
    )
    targets = {(1, 1): "<= 8 ms", (256, 1): "300,000", (256, 5): "120,000"}
    for size, beam_size in itertools.product((1, 4) if report.quick else (1, 64, 256, 512), (1, 5)):
        seconds, tokens = _search_time(report, engine, vocab_size, length, size, beam_size)
        text = f"base, {'greedy' if beam_size == 1 else f'beam {beam_size}'}, batch {size}"
        target = targets.get((size, beam_size), "")
        if size == 1:
            report.emit(f"{text}: a sentence", 1e3 * seconds, "ms", target=target)
            report.emit(f"{text}: tokens of a sentence", tokens)
        else:
            report.emit(f"{text}: tokens/s", tokens / seconds, target=target)
    for size, (limit, predicted) in itertools.product((4,) if report.quick else (64, 512), COPIED):
        decoder_state.LARGE_ON_GPU = limit
        seconds, tokens = _search_time(report, engine, vocab_size, length, size, 5)
        text = f"base, beam 5, batch {size}, partial copies from {limit:,} values: tokens/s"
        report.emit(text, tokens / seconds, predicted=predicted)


def _search_time(
    report: Recorder, engine: TorchEngine, vocab_size: int, length: int, size: int, beam_size: int
) -> tuple[float, float]:
    """Return the seconds and the output tokens of a batch of ``size`` random sentences."""
    random, num_batches = np.random.default_rng(3), 3
    batches = [
        [row.tolist() for row in random.integers(4, vocab_size, (size, length))]
        for _ in range(num_batches)
    ]
    options = DecodingConfig(
        beam_size=beam_size, min_length_factor=1, max_length_factor=0, max_length_offset=length
    )
    counts: list[int] = []

    def work() -> None:
        counts.clear()
        for batch in batches:
            found = engine.search(batch, options)
            counts.extend(len(best[0].ids) + 1 for best in found if best)

    seconds = report.seconds(work, rounds=3, warm_up=2)
    return seconds / num_batches, sum(counts) / num_batches


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
    vocab_size, max_tokens = (400, 200) if report.quick else (37_000, 50_000)
    config = SMALL if report.quick else SIZES["base"]
    precision = choose_precision("auto", report.device)
    batches = wmt_like(vocab_size, max_tokens, 2 if report.quick else 8)

    plain = compilation.INDUCTOR

    def measure(variant: Variant) -> float:
        torch.compiler.reset()  # variants compile the same functions, whose graphs are limited
        torch.compiler.set_stance("default")
        compilation.INDUCTOR = plain | dict.fromkeys(variant.inductor, True)
        updater = make_updater(config, vocab_size, report.device, precision)
        slices = [list(batch.halves()) if variant.num_slices == 2 else [batch] for batch in batches]
        if not variant.has_flash:
            FLASH[report.device.type] = None
        in_order = variant.is_deterministic
        with deterministic(report.device, wanted=True) if in_order else nullcontext():
            if variant.is_compiled and report.is_gpu:
                have_compiled(updater, batches[0], report.device)
            work = lambda: read_together([updater(parts, 1e-4) for parts in slices])  # noqa: E731
            found = report.seconds(work, rounds=3, warm_up=1) / len(batches)
        FLASH.pop("cuda", None)  # the next variant looks it up again
        return found

    base = Variant("as it is", "")
    before, again = measure(base), measure(base)
    report.emit("as it is, an update", 1e3 * before, "ms")
    noise = 100 * abs(again / before - 1)
    report.emit("as it is, again: difference (noise)", noise, "%")
    for variant in VARIANTS:
        try:
            change = 100 * (measure(variant) / min(before, again) - 1)
        except Exception as error:  # torch may not support a variant; measure the others
            reason = str(error).strip().split("\n", 1)[0][:100]
            report.emit(f"{variant.name}: failed", reason, predicted=variant.predicted)
            continue
        report.emit(f"{variant.name}: time of an update", change, "%", predicted=variant.predicted)


def beside(report: Recorder) -> None:
    """Report how long updates wait for checkpoints, and how long BPE-dropout takes."""
    vocab_size = 400 if report.quick else 37_000
    config = SMALL if report.quick else SIZES["base"]
    updater = make_updater(
        config, vocab_size, report.device, choose_precision("auto", report.device)
    )
    make_updates(updater, wmt_like(vocab_size, 200 if report.quick else 4000, 1))
    run_dir, waits, seconds = Path(report.chosen.folder) / "runs" / "saved", [], []
    training = TrainingConfig(max_steps=9)
    with CheckpointWriter(run_dir, training, updater, {}, lambda _: None) as writer:
        for step in range(1, 3 if report.quick else 5):
            report.wait()
            begin = time.perf_counter()
            writer.save(Progress(step=step))
            waits.append(time.perf_counter() - begin)
            writer.wait()
            seconds.append(time.perf_counter() - begin)
    report.emit("base: updates wait for a checkpoint", 1e3 * statistics.median(waits), "ms")
    report.emit("base: a checkpoint, written by a thread", statistics.median(seconds), "s")
    sizes = {"tokenizer__vocab_size": 320 if report.quick else 1000, "training__compile": False}
    sizes["training__max_steps"] = 8 if report.quick else 300
    sizes |= {"training__validation__max_sentences": 4, "training__log_every": 4}
    for rate in (0.0, 0.1):
        flags = settings(report, f"demo-{rate}", batch__bpe_dropout=rate, **sizes)
        nmt("train", "configs/demo.yaml", *flags, "--quiet")
        path = Path(report.chosen.folder) / "runs" / f"demo-{rate}" / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        each = [line["seconds"] / 4 for line in lines if line["kind"] == "update"]
        text = f"demo, BPE-dropout {rate}: an update"
        report.emit(text, 1e3 * statistics.median(each), "ms")


# Whole commands


class Training:
    """`nmt train` in the background.

    Args:
        report: Options and device of the stage.
        run: Name of the run. Runs with the same name before the first hyphen share prepared data.
        compiles_in: Folder of compiled code.
        changes: Settings, with ``__`` for a dot.
    """

    def __init__(self, report: Recorder, run: str, compiles_in: Path, **changes: Any) -> None:
        changes = {
            "training__compile": True,
            "training__log_every": 1,
            "training__validation__max_sentences": 4,
            "training__schedule__shape": "constant",
            "tokenizer__vocab_size": 320 if report.quick else 1000,
            **changes,
        }
        self.folder = Path(report.chosen.folder) / "runs" / run
        flags = settings(report, run, **changes)
        nmt("prepare", "configs/demo.yaml", *flags)
        folders = {"PYTHONPATH": PATHS, "TORCHINDUCTOR_CACHE_DIR": str(compiles_in)}
        command = [*NMT, "train", "configs/demo.yaml", *flags, "--quiet"]
        self._begin = time.perf_counter()
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | folders)

    def seconds_until(self, happened: Callable[[], bool]) -> float:
        """Wait until ``happened``; return the seconds since the start.

        Raises:
            RuntimeError: The training ended before.
        """
        while not happened():
            if self.process.poll() is not None and not happened():
                raise RuntimeError(f"training ended with code {self.process.returncode}")
            time.sleep(0.02)
        return time.perf_counter() - self._begin

    def updates(self) -> list[dict[str, Any]]:
        """Return what the run has written about its updates."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        written = [json.loads(line) for line in lines if line.endswith("}")]
        return [line for line in written if line["kind"] == "update"]

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.terminate()
        return self.process.wait()


def start(report: Recorder) -> None:
    """Report the seconds from the command to the first update, without and with kept kernels."""
    compiles_in = Path(report.chosen.folder) / "compiled-start"
    model = {} if report.quick else {"model": {"preset": "transformer-base"}}
    for found, target in (("empty", "<= 20"), ("kept", "<= 10")):
        training = Training(
            report, f"start-{found}", compiles_in, training__max_steps=1000, **model
        )
        seconds = training.seconds_until(lambda: bool(training.updates()))  # noqa: B023
        training.stop()
        report.emit(f"base, first update, cache {found}", seconds, "s", target=target)


def signals(report: Recorder) -> None:
    """Gate: SIGTERM while layers are compiled loses nothing."""
    count = 4 if report.quick else 40
    compiles_in = Path(report.chosen.folder) / "compiled-signals"
    stopped = Training(report, "demo-stopped", compiles_in, training__max_steps=count)
    stopped.seconds_until(lambda: any(compiles_in.rglob("*.py")))
    begin = time.perf_counter()
    code = stopped.stop()
    seconds = time.perf_counter() - begin
    report.emit("SIGTERM while compiling: the command ends after", seconds, "s")
    text = "SIGTERM while compiling: exit code"
    report.emit(text, float(code), target="143", passed=code == 143)
    hashes = []
    for run in ("demo-stopped", "demo-unstopped"):
        training = Training(report, run, compiles_in, training__max_steps=count)
        training.process.wait()
        hashes.append(_hashes(training.folder))
    text = f"{count} updates, started again: sha256 of weights and optimizer"
    passed = hashes[0] == hashes[1]
    report.emit(text, hashes[0][0][:12], target=hashes[1][0][:12], passed=passed)


def together(report: Recorder) -> None:
    """Gate: two trainings on one device do not change each other. Report their speed."""
    count = 8 if report.quick else 400
    compiles_in = Path(report.chosen.folder) / "compiled-together"
    hashes, medians = [], []
    for runs in (("demo-alone",), ("demo-first", "demo-second")):
        trainings = [Training(report, run, compiles_in, training__max_steps=count) for run in runs]
        for training in trainings:
            training.process.wait()
        hashes += [_hashes(training.folder) for training in trainings]
        seconds = [line["seconds"] for each in trainings for line in each.updates()]
        medians.append(statistics.median(seconds))
    for name, median in zip(("one training", "each of two"), medians, strict=True):
        report.emit(f"demo, {name} on the device: an update", 1e3 * median, "ms")
    passed = all(each == hashes[0] for each in hashes)
    text = f"{count} updates beside another training: sha256 of weights and optimizer"
    report.emit(text, hashes[1][0][:12], target=hashes[0][0][:12], passed=passed)


def _trained(
    report: Recorder, config: str, run: str, test: str, changes: Sequence[str]
) -> tuple[float, float]:
    """Prepare, train and evaluate; return the seconds of these, and BLEU with beam 5."""
    flags = [*settings(report, run), *changes]
    if report.quick:
        flags += ["--set=training.max_steps=4", "--set=training.validation.max_sentences=4"]
    begin = time.perf_counter()
    nmt("prepare", config, *flags)
    nmt("train", config, *flags, "--quiet")
    folder = str(Path(report.chosen.folder) / "runs" / run)
    limit = ["--limit", "4"] if report.quick else []
    which = ["-t", test, "-b", "5", "--metric", "bleu", "--resamples", "0", "--json", *limit]
    found, _ = nmt("evaluate", folder, *which, "--device", report.device.type)
    seconds = time.perf_counter() - begin
    return seconds, float(json.loads(found)["systems"][0]["scores"][0]["value"])


def _files(report: Recorder, folder: str, names: dict[str, tuple[str, str]]) -> list[str] | None:
    """Return ``--set`` flags for the corpora of a task; None if a file does not exist."""
    place = Path(report.chosen.data) / folder
    sides = {
        key: {"source": str(place / source), "target": str(place / target)}
        for key, (source, target) in names.items()
    }
    if not all(Path(path).exists() for side in sides.values() for path in side.values()):
        return None
    data: dict[str, Any] = {"data.train": [sides["train"]], "data.valid": sides["valid"]}
    data["data.test"] = {"test": sides["test"]}
    return [f"--set={key}={json.dumps(value)}" for key, value in data.items()]


def multi30k(report: Recorder) -> None:
    """Run the Multi30k recipe from text to BLEU; report its time and BLEU."""
    corpora = _files(
        report,
        "multi30k",
        {
            "train": ("train.de.gz", "train.en.gz"),
            "valid": ("val.de.gz", "val.en.gz"),
            "test": ("test_2016_flickr.de.gz", "test_2016_flickr.en.gz"),
        },
    )
    if corpora is None or report.quick:  # a quick run uses the demo instead
        corpora, config = ["--set=tokenizer.vocab_size=320"], "configs/demo.yaml"
        if not report.quick:
            report.emit("Multi30k", "skipped: data not found")
            return
    else:
        config = "configs/multi30k.yaml"
    seconds, score = _trained(report, config, "multi30k", "test", corpora)
    report.emit("Multi30k, from text to BLEU", seconds, "s", target="<= 90")
    report.emit("Multi30k de-en, test_2016_flickr, beam 5", score, "BLEU", target=">= 41.0")


def proof(report: Recorder) -> None:
    """Gate: killed and resumed training gives the same bytes as uninterrupted training."""
    if report.quick:
        report.emit("scripts/prove_resume.py", "skipped: it takes a minute")
        return
    flags = settings(report, "proof", tokenizer__vocab_size=1000)
    command = [sys.executable, "scripts/prove_resume.py", "configs/demo.yaml", *flags]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report.emit("scripts/prove_resume.py", found.splitlines()[-1][:120], passed=True)


def tatoeba(report: Recorder) -> None:
    """Train the Multi30k model on Tatoeba English-German; report time and BLEU."""
    corpora = _files(
        report,
        "tatoeba_en_de",
        {part: (f"{name}.en.gz", f"{name}.de.gz") for part, name in
         {"train": "train", "valid": "dev", "test": "test"}.items()},
    )  # fmt: skip
    if corpora is None or report.quick:
        report.emit("Tatoeba", "skipped" if report.quick else "skipped: data not found")
        return
    corpora += ["--set=source_language=en", "--set=target_language=de"]
    corpora += ["--set=training.max_steps=6000", "--set=batch.max_tokens=8192"]
    seconds, score = _trained(report, "configs/multi30k.yaml", "tatoeba", "test", corpora)
    report.emit("Tatoeba en-de, from text to BLEU", seconds, "s")
    report.emit("Tatoeba en-de, test, beam 5", score, "BLEU")


def _search_rate(report: Recorder, model: str, path: Path, beam_size: int) -> float:
    """Return lines/s of the searches alone, without the second searches of the guard."""
    device = "cuda" if report.is_gpu else "cpu"
    translator = Translator.load(model, engine="torch", device=device, guard=False)
    translator = translator.with_options(beam_size=beam_size)
    lines = path.read_text(encoding="utf-8").splitlines()
    prepared = translator.segment(lines)
    return len(lines) / report.seconds(lambda: translator.finish(prepared), rounds=1, warm_up=1)


def files(report: Recorder) -> None:
    """Report the speed of `nmt translate` from file to file, and of its searches alone."""
    count = 8 if report.quick else 50_000
    model, path = _model(report), _sources(report, count, name="train")
    output = path.with_suffix(".out")
    for beam_size in (5,) if report.quick else (1, 5):
        flags = ["-i", str(path), "-o", str(output), "--device", report.device.type]
        flags += ["-b", str(beam_size)]
        begin = time.perf_counter()
        _, said = nmt("translate", model, *flags)
        seconds = time.perf_counter() - begin
        text = f"{count} lines, beam {beam_size}"
        report.emit(f"{text}: lines/s, the whole command", count / seconds)
        alone = _search_rate(report, model, path, beam_size)
        report.emit(f"{text}: lines/s, the searches alone", alone)
        share = 100 * count / seconds / alone
        report.emit(f"{text}: share of that rate", share, "%", target=">= 70%")
        alarms = re.findall(r"guard: ([\d,]+) of [\d,]+ translations looked", said)
        shown = int(alarms[0].replace(",", "")) if alarms else 0
        report.emit(f"{text}: lines that the guard searched again", 100 * shown / count, "%")


def _stages() -> Iterator[tuple[str, Callable[[Recorder], None]]]:
    known = (
        machine, gradients, updates, compiled, resume, search, shapes, loss, training, pytorch,
        kernels, decoding, variants, beside, start, signals, together, multi30k, proof, tatoeba,
        files,
    )  # fmt: skip
    return ((each.__name__, each) for each in known)


def run(chosen: argparse.Namespace) -> None:
    """Run the stage ``chosen.run`` in this process."""
    prepare_process(None)
    report = Recorder(chosen, choose_device(chosen.device))
    dict(_stages())[chosen.run](report)
