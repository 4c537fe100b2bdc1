"""The engines that `bench_engines.py` compares: nmt, CTranslate2 and Hugging Face.

For throughput (large batches), an engine may translate as many batches in parallel as it has
threads. For latency (a stream of single sentences), threads help only inside of one search, so each
engine runs with one thread and with all threads.

nmt also runs with a shortlist of candidates (``--shortlist``). CTranslate2 also runs with a
vocabulary map of the same candidates, as a separate family. For each sentence it scores the
candidates of the whole batch.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import IO, Literal, cast, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.checkpoint.model_folder import SHORTLIST, ModelBundle
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.device.precision import has_fast_bf16
from nmt.errors import NmtError
from nmt.extras.exchange.ctranslate2 import (
    VOCABULARY_MAP,
    CTranslate2Engine,
    import_ctranslate2,
)
from nmt.extras.exchange.export import export
from nmt.extras.exchange.options import ExportOptions
from nmt.inference.engine import Dtype, Engine, EngineOptions, Needs, SearchTask
from nmt.inference.torch_engine import load_torch
from nmt.model.positions import LearnedPositions, sinusoids
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import limits_of

Ids = Sequence[Sequence[int]]
Run = Callable[[Sequence[Ids], DecodingConfig], tuple[float, Ids]]
"""Batches -> seconds, and output ids of each sentence in the order of the batches."""
Family = Literal["nmt", "CTranslate2", "CTranslate2 with the list", "Hugging Face"]

CTRANSLATE2_KINDS: tuple[str, ...] = (
    "float32", "bfloat16", "int16", "int8", "int8_bfloat16",
)  # fmt: skip
"""Data types of CTranslate2 to try, if this processor supports them."""
_M2M100 = {
    "norm_position": ("pre",), "norm": ("layer",), "bias": (True,), "qk_norm": (False,),
    "embeddings": ("tied",), "output_bias": (False,), "num_kv_heads": (None,),
    "decoder_model_dim": (None,), "activation": ("relu", "gelu"),
    "positions": ("sinusoidal", "sinusoidal-halves", "learned"),
}  # fmt: skip
"""Values of the ``model`` section that M2M100 supports."""
_NUM_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine with a data type and a number of threads."""

    family: Family
    kind: str
    """Data type of the weights."""
    threads: int
    is_stream: bool
    """Whether the batches are single sentences."""
    run: Run


def our_contenders(model: Path, threads: int) -> Iterator[Contender]:
    """Yield the contenders of nmt, one for each data type that this processor supports."""
    for dtype in get_args(Dtype):
        if dtype == "int8":  # only CTranslate2 has it
            continue
        if dtype == "bfloat16" and not has_fast_bf16(torch.device("cpu")):
            print("note: skipping nmt bfloat16, because this processor only emulates it")
            continue
        try:
            options = EngineOptions(device="cpu", threads=threads, dtype=dtype)
            engine = load_torch(model, options, Needs()).engine
        except NmtError as error:
            print(f"note: skipping nmt {dtype}: {error.problem}")
            continue
        adapters = {dtype: _unchanged}
        if (model / SHORTLIST).is_file():
            adapters[f"{dtype}, shortlist"] = _with_shortlist
        for kind, adapt in adapters.items():
            run = adapt(_all_at_once(engine, threads))
            yield Contender("nmt", kind, threads, False, run)
            for num_threads in sorted({1, threads}):
                run = adapt(_one_by_one(engine, num_threads))
                yield Contender("nmt", kind, num_threads, True, run)


def _unchanged(run: Run) -> Run:
    return run


def _with_shortlist(run: Run) -> Run:
    """Return ``run`` with the shortlist switched on."""

    def with_shortlist(batches: Sequence[Ids], options: DecodingConfig) -> tuple[float, Ids]:
        shortlist_options = options.model_copy(update={"shortlist": True})
        return run(batches, shortlist_options)

    return with_shortlist


def ctranslate2_contenders(model: Path, place: Path, threads: int) -> Iterator[Contender]:
    """Export the model to ``place`` for CTranslate2; yield the contenders of CTranslate2."""
    package = import_ctranslate2()
    for kind in CTRANSLATE2_KINDS:
        if kind not in package.get_supported_compute_types("cpu"):
            continue
        folder = place / f"ctranslate2-{kind}"
        options = ExportOptions(model=model, output=folder, to="ctranslate2", quantization=kind)
        export(options)
        adapters = {"CTranslate2": _unchanged}
        if (folder / VOCABULARY_MAP).is_file():
            adapters["CTranslate2 with the list"] = _with_shortlist
        for family, adapt in adapters.items():
            engine = CTranslate2Engine(folder, device="cpu", threads=threads)
            run = adapt(_all_at_once(engine, threads))
            yield Contender(cast(Family, family), kind, threads, False, run)
            for num_threads in sorted({1, threads}):
                stream_engine = CTranslate2Engine(folder, device="cpu", threads=1)
                if num_threads > 1:  # CTranslate2Engine uses threads only for several batches
                    stream_engine.loaded = package.Translator(
                        str(folder), device="cpu", inter_threads=1, intra_threads=num_threads
                    )
                run = adapt(_one_by_one(stream_engine, num_threads))
                yield Contender(cast(Family, family), kind, num_threads, True, run)


def _all_at_once(engine: Engine, threads: int) -> Run:
    """Return a function that gives all batches to the engine at the same time."""

    def run(batches: Sequence[Ids], options: DecodingConfig) -> tuple[float, Ids]:
        torch.set_num_threads(threads)
        start = perf_counter()
        tasks = [SearchTask(batch, options) for batch in batches]
        batch_results = list(engine.search_all(tasks))
        seconds = perf_counter() - start
        results = chain.from_iterable(batch_results)
        return seconds, [hypotheses[0].ids for hypotheses in results]

    return run


def _one_by_one(engine: Engine, threads: int) -> Run:
    """Return a function that waits for the result of each batch before the next one."""

    def run(batches: Sequence[Ids], options: DecodingConfig) -> tuple[float, Ids]:
        torch.set_num_threads(threads)
        start = perf_counter()
        batch_results = [engine.search(batch, options) for batch in batches]
        seconds = perf_counter() - start
        results = chain.from_iterable(batch_results)
        return seconds, [hypotheses[0].ids for hypotheses in results]

    return run


@contextmanager
def hugging_face_contenders(
    python: Path, bundle: ModelBundle, place: Path, threads: int
) -> Iterator[list[Contender]]:
    """Yield the contenders of Hugging Face, each a process of ``python`` inside the context.

    Args:
        python: A Python interpreter that has transformers.
        bundle: The model.
        place: Folder for the files of the model.
        threads: Maximum number of threads.
    """
    unsupported = unsupported_settings(bundle.config.model)
    if unsupported:
        print(f"note: skipping Hugging Face: M2M100 does not support {', '.join(unsupported)}")
        yield []
        return
    folder = place / "hugging-face"
    write_for_hugging_face(bundle.model, folder)
    kinds = ["float32"]
    if has_fast_bf16(torch.device("cpu")):
        kinds.append("bf16")
    with ExitStack() as stack:
        contenders = []
        for kind in kinds:
            with_threads = stack.enter_context(_hugging_face(python, folder, kind))
            run = with_threads(threads)
            contenders.append(Contender("Hugging Face", kind, threads, False, run))
            for num_threads in sorted({1, threads}):
                run = with_threads(num_threads)
                contenders.append(Contender("Hugging Face", kind, num_threads, True, run))
        yield contenders


def unsupported_settings(config: ModelConfig) -> list[str]:
    """Return the settings of the model that M2M100 does not support, each with its value."""
    unsupported = []
    for name, supported_values in _M2M100.items():
        value = getattr(config, name)
        if value not in supported_values:
            unsupported.append(f"{name} {value}")
    return unsupported


def write_for_hugging_face(model: Transformer, folder: Path) -> None:
    """Write the files that `bench_hugging_face.py` reads."""
    folder.mkdir(parents=True)
    config = model.config.model_dump_json()
    (folder / "shape.json").write_text(config, encoding="utf-8")
    parameters = model.state_dict()
    weights = {name: value for name, value in parameters.items() if "positions" not in name}
    embeddings = {"encoder": model.source_embedding, "decoder": model.target_embedding}
    for stack, embedding in embeddings.items():
        table = _position_table(model.config, embedding.positions)
        weights[f"{stack}_positions"] = table.clone()
    save_file(weights, folder / "weights.safetensors")


def _position_table(config: ModelConfig, positions: torch.nn.Module | None) -> Tensor:
    """Return the vector of each position (P, D). ``positions`` matters if they are learned."""
    if isinstance(positions, LearnedPositions):
        return positions.weight.detach()
    layout = config.positions
    assert layout in ("sinusoidal", "sinusoidal-halves")
    return sinusoids(_NUM_POSITIONS, config.model_dim, layout)


@contextmanager
def _hugging_face(python: Path, folder: Path, kind: str) -> Iterator[Callable[[int], Run]]:
    """Start a process with the model; yield a function: number of threads -> `Run`."""
    script = Path(__file__).with_name("bench_hugging_face.py")
    command = [str(python), str(script), str(folder), "--dtype", kind]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        requests = cast(IO[str], process.stdin)
        answers = cast(IO[str], process.stdout)
        greeting = json.loads(answers.readline())
        print(f"Hugging Face transformers {greeting['version']}, {kind}")

        def with_threads(threads: int) -> Run:
            def run(batches: Sequence[Ids], options: DecodingConfig) -> tuple[float, Ids]:
                max_lengths = []  # Of the outputs of each batch.
                for batch in batches:
                    longest_source = max(map(len, batch))
                    max_lengths.append(limits_of(longest_source, options).longest)
                request = {
                    "batches": batches,
                    "longest": max_lengths,
                    "beam_size": options.beam_size,
                    "length_penalty": options.length_penalty,
                    "threads": threads,
                }
                requests.write(json.dumps(request) + "\n")
                requests.flush()
                answer = json.loads(answers.readline())
                return answer["seconds"], [tuple(ids) for ids in answer["outputs"]]

            return run

        yield with_threads
        requests.close()
