"""Several processes of `nmt train` on this machine: torchrun, called from Python."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import torch
from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from nmt.config.training import TrainingConfig
from nmt.device import usable_cores
from nmt.device.distributed import PEER_LOST
from nmt.errors import DeviceError, NmtError
from nmt.training.signals import StoppedBySignal


class ProcessKilledError(NmtError):
    """A process was ended from outside, as by the system when memory runs out."""

    exit_code = PEER_LOST


def launch(arguments: Sequence[str], num_processes: int, training: TrainingConfig) -> None:
    """Run ``nmt`` with ``arguments`` in several processes; return when all have ended well.

    Args:
        arguments: Of the command line, without those that started several processes.
        num_processes: How many; on GPUs, each takes one.
        training: Says how many CPU threads each gets (the cores shared evenly when None), and on
            what they compute.

    Raises:
        DeviceError: There are fewer GPUs.
        ProcessKilledError: Names the process.
        SystemExit: A process failed and has printed why; the code is its own.
        StoppedBySignal: All were asked to stop, and have saved.
    """
    num_gpus = torch.cuda.device_count()
    if training.device != "cpu" and num_gpus and num_gpus < num_processes:
        raise DeviceError(
            f"{num_processes} processes were asked for, but there are {num_gpus} GPUs.",
            fix=f"Set `devices` to {num_gpus}, or training.device to cpu.",
        )
    share = max(1, usable_cores() // num_processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(training.threads or share))
    options = ["--standalone", f"--nproc-per-node={num_processes}", "--module", "nmt"]
    try:
        run.main([*options, *arguments])
    except SignalException as stopped:
        raise StoppedBySignal(stopped.sigval) from None
    except ChildFailedError as error:
        raise _cause(error, num_processes) from None


def _cause(error: ChildFailedError, num_processes: int) -> BaseException:
    """Say which process ended the others: not one that lost a peer, nor one ended by torchrun."""
    secondary = (PEER_LOST, -signal.SIGTERM)
    ended = sorted(error.failures.items(), key=lambda item: item[1].exitcode in secondary)
    rank, failure = ended[0]
    if failure.exitcode - 128 in (signal.SIGINT, signal.SIGTERM):
        return StoppedBySignal(failure.exitcode - 128)
    if failure.exitcode > 0:
        return SystemExit(failure.exitcode)
    return ProcessKilledError(
        f"Process {rank} of {num_processes} (pid {failure.pid}) was killed by "
        f"{signal.Signals(-failure.exitcode).name}; the others have ended.",
        fix="If memory ran out, lower batch.max_tokens. Start the same command again: it "
        "resumes from the last checkpoint.",
    )
