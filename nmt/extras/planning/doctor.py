"""``nmt doctor``: check the installation and the machine, then train and translate a toy model."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nmt.commands.train import fit
from nmt.config.flag import Options
from nmt.config.loader import load_config
from nmt.device import usable_cores
from nmt.errors import NmtError, install_command
from nmt.files.lines import read_lines
from nmt.inference import engine
from nmt.inference.distributed import errors_only
from nmt.inference.translator import Translator
from nmt.installation import CONFIGS, read_toml
from nmt.version import __version__

_LEAST_DISK_BYTES = 2 << 30  # 2 GiB. Less free space is a problem.
_DATA = read_toml(__file__, "doctor.toml")
_EXTRAS = _DATA["extras"]
_USE_GPU = (
    "A GPU driver is installed, but torch cannot find a GPU. Check nvidia-smi and "
    "CUDA_VISIBLE_DEVICES, or install torch with CUDA (this torch may be built for CPUs)."
)
_REPORT = "Run the command again with `verbose`, and report the output as a bug."
_NMT = logging.getLogger("nmt")


@dataclass(frozen=True)
class Finding:
    """One line of the report: a fact, or a problem with its fix."""

    name: str
    found: str
    fix: str = ""  # Command or advice; empty if there is no problem.
    mark: str = "ok"  # ``--`` for a remark that is not a problem.

    def __str__(self) -> str:
        if self.fix:
            return f"!!  {self.name:14}{self.found}\n    fix: {self.fix}"
        return f"{self.mark}  {self.name:14}{self.found}"


@dataclass(frozen=True)
class DoctorReport:
    """The report of ``nmt doctor``."""

    findings: tuple[Finding, ...]

    @property
    def failure(self) -> NmtError | None:
        """The error with which the command ends; None without problems."""
        count = sum(bool(finding.fix) for finding in self.findings)
        if not count:
            return None
        return NmtError(
            f"{count} problem{'s' if count > 1 else ''} found.",
            fix="See the fix below each line with !!.",
        )

    def as_text(self) -> str:
        """Return a line for each finding. The fix of a problem is on the next line."""
        return "\n".join(map(str, self.findings))

    def as_dict(self) -> dict[str, Any]:
        """Return the findings as plain data for JSON."""
        return {"findings": [asdict(finding) for finding in self.findings]}


def doctor(options: Options | None = None) -> DoctorReport:
    """Check the installation and the machine, then train and translate for a few seconds."""
    del options
    return DoctorReport(tuple(_findings()))


def _findings() -> Iterator[Finding]:
    yield Finding("nmt", f"{__version__} in {Path(__file__).parents[2]}")
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}")
    yield Finding("torch", torch.__version__)
    device = "CPU"
    fix = ""
    if torch.cuda.is_available():
        _, num_bytes = torch.cuda.mem_get_info()  # free and total memory
        device = f"{torch.cuda.get_device_name()}, {num_bytes / 2**30:.0f} GiB"
    elif any(path.exists() for path in engine.GPU_DRIVERS):
        fix = _USE_GPU
    yield Finding("device", device, fix)
    instructions = torch.backends.cpu.get_cpu_capability()
    fix = ""
    if platform.machine() == "x86_64" and instructions in ("DEFAULT", "NO AVX"):
        fix = "Use a different machine: without AVX2, training takes several times as long."
    yield Finding("instructions", instructions, fix)
    threads = torch.get_num_threads()
    cores = usable_cores()
    fix = ""
    if os.environ.get("OMP_NUM_THREADS") and threads < cores:
        fix = "unset OMP_NUM_THREADS"
    yield Finding("threads", f"{threads} for {cores} cores", fix)
    if hasattr(os, "getloadavg"):  # Windows does not report its load
        load, *_ = os.getloadavg()  # of the last minute; then of longer times
        text = f"load average {load:.1f} on {os.cpu_count()} cores (last minute)"
        mark = "ok"
        if load > (os.cpu_count() or 1) / 2:
            text += ". Other processes are running, so training will be slower"
            mark = "--"
        yield Finding("load", text, mark=mark)
    for extra, (library, purpose) in _EXTRAS.items():
        try:
            yield Finding(extra, f"{library} {version(library)}")
        except PackageNotFoundError:
            text = f"not installed; {purpose}, run: {install_command(extra)}"
            yield Finding(extra, text, mark="--")
    free_bytes = shutil.disk_usage(".").free
    fix = ""
    if free_bytes < _LEAST_DISK_BYTES:
        fix = "Delete files: training keeps several checkpoints."
    yield Finding("disk", f"{free_bytes / 2**30:,.1f} GiB free in {Path.cwd()}", fix)
    _NMT.info("training and translating two sentences, for a few seconds")
    yield _self_test()


def _self_test() -> Finding:
    """Train a toy model on two sentence pairs, then translate both sentences."""
    begin = time.perf_counter()
    try:
        # Without advice about such a small corpus.
        with errors_only(), tempfile.TemporaryDirectory(prefix="nmt-doctor-") as folder:
            folders = [f"{key}={folder}/{key}" for key in ("prepared_dir", "run_dir")]
            config = load_config(CONFIGS / "hello.yaml", [*_DATA["self_test"], *folders])
            fit(config)
            translator = Translator.load(config.run_dir)
            results = translator.translate(read_lines(CONFIGS / "hello.fr"))
    except Exception as error:  # every error is a finding
        _NMT.debug("the self-test failed", exc_info=True)
        return Finding("self-test", f"{type(error).__name__}: {error}", _REPORT)
    texts = [result.text for result in results]
    if texts != read_lines(CONFIGS / "hello.en"):
        return Finding("self-test", f"wrong translations: {texts}", _REPORT)
    duration = f"{time.perf_counter() - begin:.1f} s with {translator.engine.name}"
    return Finding("self-test", f"trained and translated two sentences in {duration}")
