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
        runs = {dtype: _as_is}
        if (model / SHORTLIST).is_file():
            runs[f"{dtype}, shortlist"] = _with_shortlist
        for kind, change in runs.items():
            run = change(_all_at_once(engine, threads))
            yield Contender("nmt", kind, threads, False, run)
            for count in sorted({1, threads}):
                run = change(_one_by_one(engine, count))
                yield Contender("nmt", kind, count, True, run)


def _as_is(run: Run) -> Run:
    return run


def _with_shortlist(run: Run) -> Run:
    def with_shortlist(batches: Sequence[Ids], options: DecodingConfig) -> tuple[float, Ids]:
        listed = options.model_copy(update={"shortlist": True})
        return run(batches, listed)

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
        changes = {"CTranslate2": _as_is}
        if (folder / VOCABULARY_MAP).is_file():
            changes["CTranslate2 with the list"] = _with_shortlist
        for family, change in changes.items():
            engine = CTranslate2Engine(folder, device="cpu", threads=threads)
            run = change(_all_at_once(engine, threads))
            yield Contender(cast(Family, family), kind, threads, False, run)
            for count in sorted({1, threads}):
                alone = CTranslate2Engine(folder, device="cpu", threads=1)
                if count > 1:  # CTranslate2Engine uses threads only for several batches
                    alone._model = package.Translator(
                        str(folder), device="cpu", inter_threads=1, intra_threads=count
                    )
                run = change(_one_by_one(alone, count))
                yield Contender(cast(Family, family), kind, count, True, run)


def _all_at_once(engine: Engine, threads: int) -> Run:
    def run(batches: Sequence[Ids], options: DecodingConfig) -> tuple[float, Ids]:
        torch.set_num_threads(threads)
        start = perf_counter()
        tasks = [SearchTask(batch) for batch in batches]
        found = list(engine.search_all(tasks, options))
        seconds = perf_counter() - start
        results = chain.from_iterable(found)
        return seconds, [hypotheses[0].ids for hypotheses in results]

    return run


def _one_by_one(engine: Engine, threads: int) -> Run:
    def run(batches: Sequence[Ids], options: DecodingConfig) -> tuple[float, Ids]:
        torch.set_num_threads(threads)
        start = perf_counter()
        found = [engine.search(batch, options) for batch in batches]
        seconds = perf_counter() - start
        results = chain.from_iterable(found)
        return seconds, [hypotheses[0].ids for hypotheses in results]

    return run


@contextmanager
def hugging_face_contenders(
    python: Path, bundle: ModelBundle, place: Path, threads: int
) -> Iterator[list[Contender]]:
    """Yield the contenders of Hugging Face, each a process of ``python`` inside the context."""
    faults = hugging_face_faults(bundle.config.model)
    if faults:
        print(f"note: skipping Hugging Face: M2M100 does not support {', '.join(faults)}")
        yield []
        return
    write_for_hugging_face(bundle.model, place / "hugging-face")
    kinds = ["float32"]
    if has_fast_bf16(torch.device("cpu")):
        kinds.append("bf16")
    with ExitStack() as stack:
        contenders = []
        for kind in kinds:
            ask = stack.enter_context(_hugging_face(python, place / "hugging-face", kind))
            run = ask(threads)
            contenders.append(Contender("Hugging Face", kind, threads, False, run))
            for count in sorted({1, threads}):
                run = ask(count)
                contenders.append(Contender("Hugging Face", kind, count, True, run))
        yield contenders


def hugging_face_faults(config: ModelConfig) -> list[str]:
    """Return the settings of the model that M2M100 does not support."""
    faults = []
    for name, values in _M2M100.items():
        value = getattr(config, name)
        if value not in values:
            faults.append(f"{name} {value}")
    return faults


def write_for_hugging_face(model: Transformer, folder: Path) -> None:
    """Write the files that `bench_hugging_face.py` reads."""
    folder.mkdir(parents=True)
    shape = model.config.model_dump_json()
    (folder / "shape.json").write_text(shape, encoding="utf-8")
    parameters = model.state_dict()
    weights = {name: value for name, value in parameters.items() if "positions" not in name}
    embeddings = {"encoder": model.source_embedding, "decoder": model.target_embedding}
    for side, embedding in embeddings.items():
        table = _position_table(model.config, embedding.positions)
        weights[f"{side}_positions"] = table.clone()
    save_file(weights, folder / "weights.safetensors")


def _position_table(config: ModelConfig, positions: torch.nn.Module | None) -> Tensor:
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
                longest = []
                for batch in batches:
                    width = max(map(len, batch))
                    longest.append(limits_of(width, options).longest)
                request = {
                    "batches": batches,
                    "longest": longest,
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
