"""A model folder: found, verified and read; and a new one, written whole or not at all.

A run folder is one, too: its checkpoints hold the weights. Finding and checking loads no torch.

The mean of the weights of several checkpoints is usually better than each of them, and costs
nothing when translating. Source: Vaswani et al. (2017), section 6.1; Popel and Bojar (2018).
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from nmt.checkpoint.files import (
    AVERAGE,
    BEST,
    MODEL,
    STATE,
    checkpoint_dir,
    checkpoints_dir,
    load_tensors,
    newest_checkpoint,
    read_best,
    read_state,
    save_tensors,
    tensor_differences,
    tensor_errors,
)
from nmt.checkpoint.run import changed_settings
from nmt.config.loader import load_config
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError, TokenizerError, shell_command
from nmt.files.atomic import atomic_folder, write_bytes, write_errors, write_json
from nmt.files.json_file import Manifest, field, read_json
from nmt.text.tokenizer import Tokenizers, load_tokenizers, tokenizer_hash
from nmt.version import __version__

if TYPE_CHECKING:  # what is found without loading weights needs no torch
    from torch import Tensor

    from nmt.model.transformer import Transformer


CONFIG, TOKENIZER, CARD = "config.yaml", "tokenizer", "README.md"
SHORTLIST, CONFIDENCE = "shortlist.safetensors", "confidence.json"
# Files that a finished run has. Shortlists depend on its data alone; confidence is fitted to the
# translations of its best checkpoint.
EXTRAS = (SHORTLIST, CONFIDENCE)
# In a model folder that is a mean: the ``steps`` of its checkpoints and, if known, ``score``.
RECORD = "average.json"
_EXPORTED = "model.bin"
_RESTORE = "Restore the config.yaml and the tokenizer that `nmt train` wrote with these weights."
_MAX_PLACES = 5
_MAX_DEPTH = 2  # Of a checkpoint in its run folder.
_MAX_DIGITS = 15  # Of the step of a checkpoint.
_MAX_SHOWN = 40  # Characters of a wrong name that its message repeats.

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The parts of a model, found and checked; the weights are not read yet."""

    config: RunConfig  # The configuration it was trained with.
    tokenizers: Tokenizers  # Of both languages.
    step: int  # Updates it was trained for.
    folder: Path  # Where the weights are.
    manifest: Manifest  # Of that folder.

    @property
    def sha256(self) -> str:
        """Of the weights."""
        return self.manifest.files[MODEL].sha256


@dataclass(frozen=True, slots=True)
class ModelBundle(ModelFiles):
    """Everything that translating needs."""

    model: Transformer  # On the CPU, in float32, in evaluation mode.


@contextmanager
def readable() -> Iterator[None]:
    """Turn errors of the system and of tokenizers while a model is read into `CheckpointError`."""
    try:
        yield
    except TokenizerError as error:
        raise CheckpointError(error.problem, fix=_RESTORE) from error
    except OSError as error:
        if error.filename is None:  # of a library that does not load, say
            raise
        problem = f"{error.filename} cannot be read: {error.strerror or error}."
        fix = "Let the files of the model be read by you, or copy the folder again."
        raise CheckpointError(problem, fix=fix) from error


def is_ctranslate2(folder: Path) -> bool:
    """Whether a folder holds a model that was exported for CTranslate2, which torch cannot read."""
    return (folder / _EXPORTED).is_file()


def _is_model(folder: Path) -> bool:
    has_weights = checkpoints_dir(folder).is_dir() or (folder / MODEL).is_file()
    return has_weights and (folder / CONFIG).is_file()


def _runs_in(*places: Path) -> str:
    """Name models in some folders."""
    configs = [path for place in places for path in place.glob(f"*/{CONFIG}")]
    return ", ".join(sorted({str(x.parent) for x in configs if _is_model(x.parent)})[:_MAX_PLACES])


def _no_model(folder: Path) -> CheckpointError:
    """Say what a place without config.yaml is, and what to name in its stead."""
    for parent in list(folder.parents)[:_MAX_DEPTH]:
        if _is_model(parent):  # as in ``runs/mine/best``
            part = re.fullmatch(rf"step-\d+|{BEST}|last|{AVERAGE}", folder.name)
            problem = f"{folder} is {'a checkpoint' if part else 'a part'} of the model {parent}."
            which = f" with `checkpoint` {folder.name}" if part else ""
            return CheckpointError(problem, fix=f"Name {parent}{which}.")
    name_it = "Name the run folder that `nmt train` wrote"
    if folder.is_dir():
        such_as = f", such as {inside}" if (inside := _runs_in(folder)) else ""
        problem = f"{folder} has no config.yaml, so it is no model folder."
        return CheckpointError(problem, fix=f"{name_it}{such_as}.")
    if folder.is_file() and folder.suffix in (".yaml", ".yml"):
        return _of_config(folder, f"{folder} is no model")
    hub = re.fullmatch(r"(hub:)?([\w.-]+/[\w.-]+)", str(folder))
    if hub and (hub[1] or not folder.parent.exists()):
        pull = shell_command("pull", f"hub:{hub[2]}", output=f"models/{folder.name}")
        fix = f"If it is a model on a hub, type: {pull}"
        return CheckpointError(f"{folder} does not exist here.", fix=fix)
    there = _runs_in(folder.parent, Path("runs"))
    such_as = f"there is {there}" if there else "no run is there yet: `nmt train CONFIG`"
    whence = "" if folder.is_absolute() else "; relative paths start at the working directory"
    what = "is not a folder" if folder.exists() else "does not exist"
    return CheckpointError(f"{folder} {what}.", fix=f"{name_it}; {such_as}{whence}.")


def _of_config(path: Path, problem: str) -> CheckpointError:
    """Name the run folder of a configuration that was given in its place."""
    run = load_config(path).run_dir
    fix = f"Name {run}." if _is_model(run) else f"Train first: `nmt train {path}`."
    return CheckpointError(f"{problem}; the run folder of this configuration is {run}.", fix=fix)


@readable()
def load_folder_config(folder: Path) -> RunConfig:
    """Load the configuration that a model was trained with.

    Raises:
        CheckpointError: It is missing or was changed.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise _no_model(folder)
    path.open("rb").close()
    try:
        return load_config(path)
    except ConfigError as error:
        problem = f"{path} was changed or comes from another release:\n{error.problem}"
        raise CheckpointError(problem, fix=_RESTORE) from error


@readable()
def find_model(folder: Path, checkpoint: str = "best") -> ModelFiles:
    """Find and check all of a model but its weights. Loads no torch. Arguments as of `load_model`.

    Raises:
        CheckpointError: A part is missing or damaged, or weights and configuration disagree.
        ConfigError: ``checkpoint`` is none of these.
    """
    config = load_folder_config(folder)
    weights_dir = _weights_dir(folder, checkpoint)
    if weights_dir == folder / AVERAGE:
        return find_model(weights_dir)
    manifest = Manifest.read(weights_dir)
    if weights_dir == folder:
        manifest.verify(folder, (name for name in manifest.files if name != MODEL))
    else:
        manifest.verify(weights_dir, (STATE,))
        _check_run_files(folder, weights_dir, config)
    tokenizers = load_tokenizers(folder / TOKENIZER)
    if MODEL not in manifest.files:
        raise CheckpointError(f"{weights_dir / MODEL} is missing.", fix="Use another checkpoint.")
    return ModelFiles(config, tokenizers, manifest.step, weights_dir, manifest)


def load_model(folder: Path, checkpoint: str = "best") -> ModelBundle:
    """Load a model from a run folder, or from a folder with weights, config.yaml and tokenizer.

    Args:
        folder: The run or model folder.
        checkpoint: In a run folder: ``best``, ``last``, ``step-N`` or ``average``.

    Raises:
        CheckpointError: A part is missing or damaged, or weights and configuration disagree.
        ConfigError: ``checkpoint`` is none of these.
    """
    return read_weights(find_model(folder, checkpoint))


def read_weights(files: ModelFiles) -> ModelBundle:
    """Build the model whose parts were found, after comparing its weights with their manifest.

    Raises:
        CheckpointError: The weights are missing or damaged, or of another configuration.
    """
    from nmt.model.transformer import build_model  # noqa: PLC0415 - loads torch

    path, config = files.folder / MODEL, files.config
    with readable():
        files.manifest.verify(files.folder, (MODEL,))
        _check_widths(path, config.model)
        try:
            model = build_model(config.model, *files.tokenizers.vocab_sizes)
        except ValueError as error:
            problem = f"config.yaml and tokenizer of {files.folder} do not fit each other: {error}."
            raise CheckpointError(problem, fix=_RESTORE) from error
        weights = load_tensors(path)
        if problems := tensor_differences(weights, model.state_dict()):
            problem = f"{path} does not fit config.yaml and tokenizer:\n  {problems}"
            raise CheckpointError(problem, fix=_RESTORE)
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    parts = config, files.tokenizers, files.step, files.folder, files.manifest
    return ModelBundle(*parts, model.eval())


def _check_widths(path: Path, config: ModelConfig) -> None:
    """Refuse a configuration of another width than the weights before memory is taken for it."""
    with tensor_errors(path), safe_open(path, framework="numpy") as file:
        found = {size for name in file.keys() for size in file.get_slice(name).get_shape()}  # noqa: SIM118
    names = ["model_dim", "decoder_model_dim", "ff_dim", "decoder_ff_dim"]
    names += ["max_positions"] if config.positions == "learned" else []
    widths = {name: width for name in names if (width := getattr(config, name)) is not None}
    gates = 2 if config.activation == "swiglu" else 1  # stand above the inner layer in one matrix
    if wrong := [name for name, width in widths.items() if not {width, gates * width} & found]:
        listed = ", ".join(f"model.{name} is {widths[name]:,}" for name in wrong)
        problem = f"config.yaml is not of {path}, whose weights have no such width: {listed}."
        raise CheckpointError(problem, fix=_RESTORE)


def _check_run_files(folder: Path, weights_dir: Path, config: RunConfig) -> None:
    """Compare configuration and tokenizers with the record in the checkpoint.

    No manifest holds their hashes, as a run's settings may change; but what the weights mean may
    not, and the tokenizers are compared before anything parses them.
    """
    recorded = read_state(weights_dir).get("identity", {})
    names = recorded.keys() & {"source_language", "target_language", "model"}
    present = config.model_dump(mode="json", include=names)
    if found := changed_settings({name: recorded[name] for name in present}, present):
        listed = "\n  ".join(found)
        problem = f"{folder / CONFIG} is not of these weights:\n  {listed}"
        raise CheckpointError(problem, fix=_RESTORE)
    expected, place = recorded.get("vocab_hash"), folder / TOKENIZER
    if expected is not None and place.is_dir() and tokenizer_hash(place) != expected:
        fix = "Restore the run's own tokenizer folder; a copy is in the prepared data."
        raise CheckpointError(f"{place} is not the tokenizer this model was trained with.", fix=fix)


def _weights_dir(folder: Path, checkpoint: str) -> Path:
    checkpoints = checkpoints_dir(folder)
    if not checkpoints.is_dir():
        if not _is_model(folder):
            problem = f"{folder} has a {CONFIG}, but neither {MODEL} nor checkpoints"
            raise _of_config(folder / CONFIG, problem)
        if checkpoint != "best":
            text = "%s holds one model: `checkpoint` %s changes nothing there."
            logger.warning(text, folder, checkpoint)
        return folder
    if step := re.fullmatch(rf"(?:step-)?(\d{{1,{_MAX_DIGITS}}})", checkpoint):
        chosen = checkpoint_dir(folder, int(step[1]))
        there = ", ".join(sorted(path.name for path in checkpoints.glob("step-*")))
        problem = f"{folder} has no checkpoint {chosen.name}; it has {there or 'none'}."
        fix = "Use `checkpoint` best, last or one of these."
    elif checkpoint == AVERAGE:
        chosen, problem = folder / AVERAGE, f"{folder} has no mean of checkpoints."
        fix = "Set training.average_last and train to the end, or use `nmt average`."
    elif checkpoint not in ("best", "last"):
        fix = "Use `checkpoint` best, last, step-N or average."
        raise ConfigError(f"checkpoint is {checkpoint[:_MAX_SHOWN]!r}.", fix=fix)
    elif checkpoint == "best" and (best := read_best(folder)):
        return best
    elif newest := newest_checkpoint(folder):
        if checkpoint == "best" and (folder / BEST).is_file():
            text = "the best checkpoint of %s is gone: %s, the newest, is used"
            logger.warning(text, folder, newest.name)
        return newest
    else:
        fix = "Train first: `nmt train CONFIG`."
        raise CheckpointError(f"{folder} has no checkpoint yet.", fix=fix)
    if not chosen.is_dir():
        raise CheckpointError(problem, fix=fix)
    return chosen


def read_extra(path: Path, kind: type[T], *, fix: str) -> T | None:
    """Read one of `EXTRAS` that is an object of JSON; None where it is missing.

    Args:
        path: The file.
        kind: What it holds: a dataclass whose fields are its keys.
        fix: What to do where it is damaged.

    Raises:
        CheckpointError: The file is damaged.
    """
    try:
        values = field(read_json(path, finite=True), kind=dict)
        return TypeAdapter(kind).validate_python(values)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problem: object = error
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointError(f"{path} cannot be used: {problem}.", fix=fix) from error


def write_extra(path: Path, content: bytes) -> None:
    """Write one of `EXTRAS`, whole or not at all.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    fix = "Free disk space, or make the folder writable; then start the same command again."
    with write_errors(path, CheckpointError, fix=fix):
        write_bytes(path, content)


def check_new_folder(folder: Path, source: Path) -> None:
    """Raise a ConfigError, early, where `write_model_folder` could not make ``folder``."""
    fix = "Name a folder with `output` where you can write."
    with write_errors(folder, ConfigError, fix=fix):
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            fix = "Name another folder with `output`, or remove this one first."
            raise ConfigError(f"{folder} is there already, and is not overwritten.", fix=fix)
        if folder.resolve().is_relative_to(checkpoints_dir(source).resolve()):
            fix = "Name a folder outside of it with `output`."
            raise ConfigError(f"{folder} is among the checkpoints of the run.", fix=fix)


def write_model_folder(
    folder: Path, source: Path | None, step: int, write: Callable[[Path], None]
) -> None:
    """Write a model folder: configuration and tokenizer, what ``write`` adds, then the manifest.

    Args:
        folder: Folder to make; missing or empty.
        source: Run or model folder whose configuration, tokenizer and `EXTRAS` are copied; None
            where ``write`` writes them.
        step: Updates the model was trained for.
        write: Writes the weights and all else into the folder it is given.

    Raises:
        CheckpointError: ``folder`` holds something, or cannot be written.
    """
    try:
        with atomic_folder(folder) as temporary:  # fails if somebody has put something there
            if source is not None:
                (temporary / TOKENIZER).mkdir()
                parts = [source / name for name in (CONFIG, *EXTRAS)]
                for path in (*parts, *(source / TOKENIZER).iterdir()):
                    if path.is_file():
                        shutil.copyfile(path, temporary / path.relative_to(source))
            write(temporary)
            paths = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
            for path in paths:  # safetensors keeps others from reading its files
                shutil.copymode(temporary / CONFIG, path)
            names = [path.relative_to(temporary).as_posix() for path in paths]
            Manifest.of(temporary, names, step).write(temporary)
    except (OSError, SafetensorError) as error:
        problem = f"{folder} was not written: {getattr(error, 'strerror', None) or error}."
        fix = "Choose an empty place that can be written, with free space on its disk."
        raise CheckpointError(problem, fix=fix) from error


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of checkpoints: float32, on the CPU.

    Every checkpoint is compared with its manifest before it is read. Sums are float64, and are
    rounded to float32 once, at the end: of n checkpoints with weights w, the mean found is at most
    half a unit in the last place, plus n * 2**-53 * mean(abs(w)), from the exact one. The mean of
    equal weights is that weight, bit by bit.

    Takes 8 bytes a weight for the sums and one checkpoint's weights, however many there are.

    Args:
        paths: Checkpoint folders of one run.

    Raises:
        CheckpointError: One is missing or damaged, holds a weight that is not finite, or has
            other names or shapes than the first.
    """
    sums: dict[str, Tensor] = {}
    for path in paths:
        Manifest.read(path).verify(path, (MODEL,))
        weights = load_tensors(path / MODEL)
        for name, weight in weights.items():
            if not weight.isfinite().all():
                problem = f"{path / MODEL}: {name} holds values that are not finite."
                fix = "Leave this checkpoint out: its training diverged."
                raise CheckpointError(problem, fix=fix)
        if sums and (problems := tensor_differences(weights, sums)):
            problem = f"{path} holds another model than {paths[0]}:\n  {problems}"
            fix = "Average checkpoints of one run, trained with one configuration."
            raise CheckpointError(problem, fix=fix)
        for name in list(weights):
            if name in sums:  # what is popped is gone before the next checkpoint is read
                sums[name] += weights.pop(name)
            else:
                sums[name] = weights.pop(name).double()
    return {name: sums.pop(name).div_(len(paths)).float() for name in list(sums)}


def write_average(
    folder: Path, run_dir: Path, paths: Sequence[Path], *, score: float | None = None
) -> None:
    """Write the mean of checkpoints as a model folder: whole, or not at all.

    Beside the weights it holds the run's configuration and tokenizer, and `RECORD`. The same
    checkpoints give the same bytes.

    Args:
        folder: Folder to make; missing or empty.
        run_dir: The run, for its configuration and tokenizer.
        paths: Checkpoint folders of that run.
        score: Validation score of the mean, for the record.

    Raises:
        CheckpointError: As `average_weights`; or ``folder`` holds something, or cannot be written.
    """
    manifests = [Manifest.read(path) for path in paths]
    steps = [manifest.step for manifest in manifests]
    made_of = [{"step": x.step, "sha256": x.files[MODEL].sha256} for x in manifests]
    record: dict[str, Any] = {} if score is None else {"score": score}
    record |= {"package_version": __version__, "steps": steps, "checkpoints": made_of}

    def write(place: Path) -> None:
        save_tensors(average_weights(paths), place / MODEL)
        write_json(place / RECORD, record)

    write_model_folder(folder, run_dir, max(steps), write)
