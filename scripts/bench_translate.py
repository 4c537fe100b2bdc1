"""Measure the whole command `nmt translate`, with the torch engine and with CTranslate2.

    python scripts/bench_translate.py runs/multi30k-de-en --rounds 5

The script prints three tables. The first shows one sentence, including the start of the command.
The second shows slow input, where each line is sent some time after the previous answer. The third
shows a test set of the run with 1, 2, 4... threads, with peak memory. Seconds are medians over the
rounds. To measure a larger model, create it with `widen_model.py`.

This process does not import torch, because its own memory would count for the commands.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from time import perf_counter
from typing import IO, cast, get_args

import sacrebleu
from bench_text import add_text_options, read_text

from nmt.checkpoint.model_folder import SHORTLIST
from nmt.device import usable_cores
from nmt.inference.engine import Dtype

NMT = Path(sys.executable).with_name("nmt")
EXPORTED = ("float32", "int8")
"""Data types of the exported weights."""
HAS_BF16 = (
    "import sys, torch; from nmt.device.precision import has_fast_bf16; "
    "sys.exit(not has_fast_bf16(torch.device('cpu')))"
)

Commands = Mapping[str, Sequence[str]]
"""Name -> command, without input, output and threads."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a command."""

    seconds: float
    peak_mib: float
    lines: Sequence[str]
    """Standard output."""


def finish(command: Sequence[str], text: str) -> Finished:
    """Run a command with ``text`` as standard input.

    Raises:
        subprocess.CalledProcessError: The command failed; ``stderr`` has its message.
    """
    with TemporaryFile() as stdin, TemporaryFile() as stdout:
        stdin.write(text.encode())
        stdin.seek(0)
        start = perf_counter()
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=pipe) as process:
            stderr = cast(IO[bytes], process.stderr)
            messages = stderr.read().decode()
            # Unlike `Popen.wait`, `wait4` returns the peak memory of this one process.
            _, status, usage = os.wait4(process.pid, 0)
            seconds = perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, stderr=messages)
        stdout.seek(0)
        *lines, _ = stdout.read().decode().split("\n")  # The last line ends with a line feed.
    per_mib = 1 << 20 if sys.platform == "darwin" else 1 << 10  # macOS counts bytes, Linux KiB
    return Finished(seconds, usage.ru_maxrss / per_mib, lines)


def converse(
    command: Sequence[str], lines: Sequence[str], pause: float
) -> tuple[float, list[float]]:
    """Send lines one by one, each ``pause`` seconds after the previous answer.

    Returns:
        Seconds from the start of the command to the first answer, and the seconds that each later
        line waited for its answer.
    """
    waits = []  # The first one includes the start of the command.
    pipe = subprocess.PIPE
    begin = perf_counter()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        stdin = cast(IO[bytes], process.stdin)
        stdout = cast(IO[bytes], process.stdout)
        for line in lines:
            stdin.write(f"{line}\n".encode())
            stdin.flush()
            if not stdout.readline():
                raise SystemExit(f"{' '.join(command)} ended before its input")
            waits.append(perf_counter() - begin)
            time.sleep(pause)
            begin = perf_counter()
        stdin.close()
    return waits[0], waits[1:]


def our_commands(model: Path) -> Commands:
    """Return commands with the torch engine, for each dtype that this processor supports.

    If the model has a shortlist, there are commands with and without it.
    """
    check = subprocess.run([sys.executable, "-c", HAS_BF16], check=False)
    has_bf16 = check.returncode == 0
    commands: dict[str, Sequence[str]] = {}
    for dtype in get_args(Dtype):
        command = (str(NMT), "translate", str(model), "--dtype", dtype)
        if dtype == "bfloat16" and not has_bf16:
            print("note: skipping nmt bfloat16, because this processor only emulates it")
            continue
        try:
            finish(command, "")
        except subprocess.CalledProcessError as error:
            *_, last_line = error.stderr.strip().splitlines()
            print(f"note: skipping nmt {dtype}: {last_line}")
            continue
        commands[f"nmt {dtype}"] = command
        if (model / SHORTLIST).is_file():
            commands[f"nmt {dtype}, shortlist"] = (*command, "--shortlist")
    return commands


def ctranslate2_commands(model: Path, place: Path) -> Commands:
    """Export the model to CTranslate2 in ``place``; return the commands that use the exports."""
    commands = {}
    for kind in EXPORTED:
        folder = str(place / kind)
        command = [str(NMT), "export", str(model), "--to", "ctranslate2", "-o", folder]
        command += ["--quantization", kind]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        commands[f"CTranslate2 {kind}"] = (str(NMT), "translate", folder)
    return commands


def one_sentence(commands: Commands, line: str, rounds: int) -> Mapping[str, float]:
    """Print the seconds of each command for a single sentence; return the medians by name."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for command in commands.values():  # warm-up: fills the file cache
        finish(command, line)
    for _ in range(rounds):
        for name, command in commands.items():
            finished = finish(command, line)
            seconds[name].append(finished.seconds)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    best_median = best_of_ctranslate2(medians)
    print_header("one sentence", "seconds, median (best)", "times CTranslate2's best")
    for name, median in medians.items():
        fastest = min(seconds[name])
        print_row(name, f"{median:.2f} ({fastest:.2f})", f"{median / best_median:.2f}")
    return medians


def slow_lines(commands: Commands, lines: Sequence[str], rounds: int, pause: float) -> None:
    """Print how long lines of slow input wait for their translation."""
    # By name of the command and additional flag.
    variants = {}
    for name, command in commands.items():
        variants[name, "none"] = command
        variants[name, "--stream"] = [*command, "--stream"]
    first_waits: dict[tuple[str, str], list[float]] = defaultdict(list)
    later_waits: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for variant, command in variants.items():
            first_wait, waits = converse(command, lines, pause)
            first_waits[variant].append(first_wait)
            later_waits[variant] += waits
    print_header("slow lines", "flag", "first answer, s", "later answers, ms")
    for name, flag in variants:
        first_seconds = statistics.median(first_waits[name, flag])
        later_ms = 1000 * statistics.median(later_waits[name, flag])
        print_row(name, flag, f"{first_seconds:.2f}", f"{later_ms:.0f}")


def whole_text(
    commands: Commands,
    starts: Mapping[str, float],
    texts: tuple[Sequence[str], Sequence[str]],
    threads: Sequence[int],
    rounds: int,
) -> None:
    """Print time and memory of translating a test set, by number of threads.

    Args:
        commands: The commands to compare.
        starts: Seconds that each command needs for a single sentence.
        texts: Sources and references.
        threads: Numbers of threads.
        rounds: Measurements of each command.
    """
    sources, references = texts
    text = "".join(f"{line}\n" for line in sources)
    print_header(
        f"{len(sources)} sentences", "threads", "seconds, median (best)", "sentences/s",
        "without start", "ratio", "peak MiB", "BLEU",
    )  # fmt: skip
    for num_threads in threads:
        runs_by_name: dict[str, list[Finished]] = defaultdict(list)
        for _ in range(rounds):
            for name, command in commands.items():
                finished = finish([*command, "--threads", str(num_threads)], text)
                runs_by_name[name].append(finished)
        medians = {}
        for name, runs in runs_by_name.items():
            medians[name] = statistics.median(run.seconds for run in runs)
        best_median = best_of_ctranslate2(medians)
        for name, runs in runs_by_name.items():
            median = medians[name]
            fastest = min(run.seconds for run in runs)
            # Without the start, and so without one sentence, whose time is nearly all start.
            translating_seconds = max(median - starts[name], 1e-9)
            peak_mib = max(run.peak_mib for run in runs)
            bleu = sacrebleu.corpus_bleu(runs[0].lines, [references])
            print_row(
                name,
                str(num_threads),
                f"{median:.2f} ({fastest:.2f})",
                f"{len(sources) / median:.1f}",
                f"{(len(sources) - 1) / translating_seconds:.1f}",
                f"{best_median / median:.2f}",
                f"{peak_mib:.0f}",
                f"{bleu.score:.2f}",
            )


def best_of_ctranslate2(seconds: Mapping[str, float]) -> float:
    """Return the shortest time of the CTranslate2 commands, in seconds."""
    return min(taken for name, taken in seconds.items() if name.startswith("CTranslate2"))


def print_header(*cells: str) -> None:
    """Print the header of a Markdown table."""
    print()
    print_row(*cells)
    print_row(*["---"] * len(cells))


def print_row(*cells: str) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Run the measurements and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cores = usable_cores()
    powers = [count for count in (1, 2, 4, 8, 16) if count <= cores]
    add_text_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--slow-sentences", type=int, default=16, help="lines of the slow input")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds before each slow line")
    parser.add_argument("--threads", type=int, nargs="+", default=powers, help="for the test set")
    parser.add_argument("--beam-size", type=int, default=5)
    chosen = parser.parse_args()
    sources, references = read_text(chosen)
    sources = sources[: chosen.sentences]
    references = references[: chosen.sentences]
    print(f"{chosen.model}, beam {chosen.beam_size}, {cores} cores, {chosen.rounds} rounds")
    with TemporaryDirectory() as folder:
        exports = ctranslate2_commands(chosen.model, Path(folder))
        commands = {}
        for name, command in {**our_commands(chosen.model), **exports}.items():
            commands[name] = [*command, "--beam-size", str(chosen.beam_size)]
        starts = one_sentence(commands, f"{sources[0]}\n", chosen.rounds)
        first_lines = sources[: chosen.slow_sentences]
        slow_lines(commands, first_lines, chosen.rounds, chosen.pause)
        texts = (sources, references)
        whole_text(commands, starts, texts, chosen.threads, chosen.rounds)


if __name__ == "__main__":
    main()
