"""Model folders: find, verify, read and write them, and average the weights of checkpoints.

A run folder is also a model folder; its weights are in its checkpoints. Finding and verifying a
model does not import torch.

Averaged weights usually translate better than each single checkpoint, at no cost in decoding
(Vaswani et al. 2017, section 6.1; Popel and Bojar 2018).
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open

from nmt.checkpoint import files as stored
from nmt.checkpoint.run import changed_settings
from nmt.config.data import DataConfig
from nmt.config.inference import InferenceConfig
from nmt.config.loader import dump_inference, load_config, load_inference
from nmt.config.migration import NewerFormatError
from nmt.config.model import ModelConfig
from nmt.config.section import FOLDER
from nmt.errors import (
    CheckpointError,
    ConfigError,
    NmtError,
    TokenizerError,
    nearest_word,
    shell_command,
)
from nmt.files.atomic import atomic_folder, write_bytes, write_errors, write_json
from nmt.files.json_file import Manifest, field, read_json, what_is_wrong
from nmt.registry import load_attribute
from nmt.text.identification import NO_PROFILES, LanguageProfiles
from nmt.text.tokenizer import Tokenizers, load_tokenizers, tokenizer_hash
from nmt.version import __version__

if TYPE_CHECKING:  # finding a model must not import torch
    from torch import Tensor

    from nmt.model.transformer import Transformer


CONFIG = "config.yaml"
_HF_CONFIG = "config.json"
TOKENIZER = "tokenizer"
CARD = "README.md"
SHORTLIST = "shortlist.safetensors"
CONFIDENCE = "confidence.json"
PROFILES = "languages.json"
# Files that a completed run has. The shortlist and the profiles of languages depend only on the
# data. The confidence scores are calibrated on translations of the
# best checkpoint.
EXTRAS = (SHORTLIST, CONFIDENCE, PROFILES)
# File in a folder of averaged weights: ``steps`` of the checkpoints, and ``score`` and ``problem``
# of a validation, if there was one.
RECORD = "average.json"
_EXPORTED = "model.bin"
_MERGED_MODEL = "nmt.extras.adaptation.lora:merged_model"
_RESTORE = "Restore the config.yaml and the tokenizer that `nmt train` wrote with these weights."
_OTHER_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".npz")
_MAX_LISTED_MODELS = 5
_PASS_A_RUN = "Pass a run folder created by `nmt train`"
_MAX_DEPTH = 2  # Depth of a checkpoint in its run folder.
_MAX_DIGITS = 15  # Maximum digits of a step.
_MAX_SHOWN = 40  # Maximum characters of a wrong value in an error message.

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFiles:
    """A verified model whose weights have not been read yet."""

    config: InferenceConfig  # What translating needs.
    # The whole configuration of the training, not validated. Empty if nmt did not train the model.
    record: Mapping[str, Any]
    tokenizers: Tokenizers  # Tokenizers of both languages.
    step: int  # Updates made.
    folder: Path  # Folder of the weights.
    manifest: Manifest  # Manifest of that folder.

    @property
    def sha256(self) -> str:
        """SHA-256 of the weights file."""
        return self.manifest.files[stored.MODEL].sha256


@dataclass(frozen=True)
class ModelBundle(ModelFiles):
    """A model with its weights, ready to translate."""

    model: Transformer  # On the CPU, float32, in evaluation mode.


@contextmanager
def readable() -> Iterator[None]:
    """Raise system errors and tokenizer errors as `CheckpointError`."""
    try:
        yield
    except TokenizerError as error:
        raise CheckpointError(error.problem, fix=_RESTORE) from error
    except OSError as error:
        if error.filename is None:  # not a file of the model, such as a library that fails to load
            raise
        raise CheckpointError(
            f"{error.filename} cannot be read: {error.strerror or error}.",
            fix="Make the files readable (chmod), or copy the folder again.",
        ) from error


def is_ctranslate2(folder: Path) -> bool:
    """Whether a folder contains a model exported to CTranslate2, which torch cannot read."""
    return (folder / _EXPORTED).is_file()


def _is_model(folder: Path) -> bool:
    if not (folder / CONFIG).is_file():
        return False
    return stored.checkpoints_dir(folder).is_dir() or (folder / stored.MODEL).is_file()


def _models_in(*folders: Path) -> str:
    """Return the first model folders directly inside ``folders``, separated by commas."""
    models = set[str]()
    for folder in folders:
        for path in folder.glob(f"*/{CONFIG}"):
            if _is_model(path.parent):
                models.add(str(path.parent))
    return ", ".join(sorted(models)[:_MAX_LISTED_MODELS])


def _no_model(folder: Path) -> NmtError:
    """Return the error for a path without config.yaml; its fix says what to do instead."""
    # A part of a model, such as a checkpoint?
    for parent in list(folder.parents)[:_MAX_DEPTH]:
        if not _is_model(parent):
            continue
        # A value of `checkpoint` as a folder, as in ``runs/mine/best``.
        if re.fullmatch(rf"step-\d+|{stored.BEST}|last|{stored.AVERAGE}", folder.name):
            return CheckpointError(
                f"{folder} is a checkpoint of the model {parent}.",
                fix=f"Pass {parent} with `checkpoint` {folder.name}.",
            )
        return CheckpointError(f"{folder} is a part of the model {parent}.", fix=f"Pass {parent}.")
    if folder.suffix in _OTHER_CHECKPOINTS:
        problem = f"{folder} is a checkpoint of a different tool."
        origin = "a run folder of `nmt train` or a model folder of `nmt import`"
        fix = f"Use nmt translate RUN FILE, where RUN is {origin}."
        return ConfigError(problem, fix=fix)
    hugging_face = folder / _HF_CONFIG
    if hugging_face.is_file() and b"model_type" in hugging_face.read_bytes():
        command = shell_command("import", folder, output=f"models/{folder.name}")
        problem = f"{folder} is a model of Hugging Face Transformers, not of nmt."
        return CheckpointError(problem, fix=f"Convert it: {command}")
    if is_ctranslate2(folder):
        return CheckpointError(
            f"{folder} is a CTranslate2 model that nmt has not exported.",
            fix="Import the model that it was converted from (`nmt import`).",
        )
    if folder.is_dir():
        fix = _PASS_A_RUN
        models = _models_in(folder)
        if models:
            fix += f", such as {models}"
        return CheckpointError(
            f"{folder} is not a model folder: config.yaml is missing.", fix=f"{fix}."
        )
    if folder.is_file() and folder.suffix in (".yaml", ".yml"):
        return _config_as_model(folder, f"{folder} is a configuration, not a model")
    # Two words with a slash may be a model of the Hub: surely so after ``hub:``; and probably so if
    # the first one is neither like a usual folder of nmt nor another folder here.
    hub = re.fullmatch(r"(hub:|)([\w.-]+/[\w.-]+)", str(folder))
    if hub is not None:
        prefix, model = hub.groups()
        is_folder = nearest_word(folder.parts[0], ("runs", "models")) or folder.parent.exists()
        if prefix or not is_folder:
            pull = shell_command("pull", model, output=f"models/{folder.name}")
            return CheckpointError(
                f"{folder} does not exist here.",
                fix=f"To download it from the Hugging Face Hub, run: {pull}",
            )
    models = _models_in(folder.parent, Path("runs"))
    if models:
        fix = f"{_PASS_A_RUN}, such as {models}"
    else:
        fix = "Train a model first: `nmt train CONFIG`"
    if not folder.is_absolute():
        fix += ". Relative paths start at the working directory"
    state = "is not a folder" if folder.exists() else "does not exist"
    return CheckpointError(f"{folder} {state}.", fix=f"{fix}.")


def _config_as_model(path: Path, problem: str) -> CheckpointError:
    """Return the error for a configuration passed as a model; the fix has the run folder."""
    run_dir = load_config(path).run_dir
    fix = f"Train first: `nmt train {path}`."
    if _is_model(run_dir):
        fix = f"Pass the run folder: {run_dir}"
    return CheckpointError(f"{problem}. Its run folder is {run_dir}.", fix=fix)


def load_folder_config(folder: Path) -> InferenceConfig:
    """Load what translating needs from the configuration of a run or model folder.

    Raises:
        CheckpointError: The configuration is missing or invalid.
    """
    config, _ = load_folder_document(folder)
    return config


@readable()
def load_folder_document(folder: Path) -> tuple[InferenceConfig, Mapping[str, Any]]:
    """Load the configuration of a run or model folder.

    Returns:
        What translating needs, and the record of the training; see `ModelFiles`.

    Raises:
        CheckpointError: The configuration is missing or invalid.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise _no_model(folder)
    path.open("rb").close()  # an unreadable file is an `OSError` here, not a `ConfigError` below
    try:
        return load_inference(path)
    except NewerFormatError as error:
        raise CheckpointError(error.problem, fix=error.fix) from error
    except ConfigError as error:
        raise CheckpointError(
            f"{path} was edited, or written by a different version of nmt:\n{error.problem}",
            fix=_RESTORE,
        ) from error


def recorded_data(record: Mapping[str, Any], folder: Path) -> DataConfig | None:
    """Return the corpora and test sets in the record of a training; None if there is no record.

    Args:
        record: See `ModelFiles`.
        folder: The run or model folder.

    Raises:
        CheckpointError: The section is invalid, or was written by another version of nmt.
    """
    if "data" not in record:
        return None
    try:
        context = {FOLDER: project_of(record, folder)}
        return DataConfig.model_validate(record["data"], context=context)
    except ValidationError as error:
        problem = f"{folder / CONFIG}: this version of nmt cannot read the corpora of the training"
        raise CheckpointError(
            f"{problem}: {what_is_wrong(error)}.",
            fix="Pass files or a published test set instead of a test set of the model.",
        ) from error


def project_of(record: Mapping[str, Any], folder: Path) -> Path:
    """Return the folder in which a run was trained, also if it was moved with the run.

    The working directory, if the run folder has another name or place than in training.

    Args:
        record: See `ModelFiles`.
        folder: The run folder.
    """
    run_dir = Path(str(recorded_value(record, "run_dir"))).parts
    for place in (folder, folder.absolute()):
        if place.parts[-len(run_dir) :] == run_dir:
            return Path(*place.parts[: -len(run_dir)])
    return Path()


def recorded_value(record: Mapping[str, Any], key: str) -> Any:
    """Return a value in the record of a training, such as ``training.seed``; None if missing."""
    value: Any = record
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


@readable()
def find_model(folder: Path, checkpoint: str = "best") -> ModelFiles:
    """Find and verify a model without reading its weights or importing torch.

    Args:
        folder: The run or model folder.
        checkpoint: Which checkpoint of a run folder; see `load_model`.

    Raises:
        CheckpointError: A file is missing or damaged, or weights and configuration do not match.
        ConfigError: ``checkpoint`` has an invalid value.
    """
    config, record = load_folder_document(folder)
    weights_dir = _weights_dir(folder, checkpoint)
    if weights_dir == folder / stored.AVERAGE:  # a model folder with its own configuration
        return find_model(weights_dir)
    # Verify everything but the weights: `read_weights` verifies them.
    manifest = Manifest.read(weights_dir)
    if weights_dir == folder:
        small_files = [name for name in manifest.files if name != stored.MODEL]
        manifest.verify(folder, small_files)
    else:
        manifest.verify(weights_dir, (stored.STATE,))
        _check_run_files(folder, weights_dir, config)
    tokenizers = load_tokenizers(folder / TOKENIZER)
    if stored.MODEL not in manifest.files:
        raise CheckpointError(
            f"{weights_dir / stored.MODEL} is missing.", fix="Use another checkpoint."
        )
    return ModelFiles(config, record, tokenizers, manifest.step, weights_dir, manifest)


def find_start(folder: Path) -> ModelFiles:
    """Find the model of `training.init_from`.

    Raises:
        CheckpointError: It is missing or damaged. The message says how to set the key.
    """
    try:
        return find_model(folder)
    except CheckpointError as error:
        fix = error.fix.replace("Pass ", "Set training.init_from to ")
        fix = re.sub(" with `checkpoint` .*", ", for its best weights.", fix)
        run = folder.parent.parent
        if stored.checkpoints_dir(run) == folder.parent:
            step = folder.name.removeprefix("step-")
            average = shell_command("average", run, step=step, output="FOLDER")
            fix = f"Set training.init_from to {run}, for its best weights; or run `{average}`, and "
            fix += "set it to FOLDER."
        elif not folder.exists():
            fix += " `nmt import` writes pretrained models."
        raise CheckpointError(f"training.init_from: {error.problem}", fix=fix) from error


def load_model(folder: Path, checkpoint: str = "best") -> ModelBundle:
    """Load a model to the CPU, in float32.

    Args:
        folder: A run folder, or a model folder with weights, config.yaml and tokenizer.
        checkpoint: Which checkpoint of a run folder: ``best``, ``last``, ``step-N`` or ``average``.

    Raises:
        CheckpointError: A file is missing or damaged, or weights and configuration do not match.
        ConfigError: ``checkpoint`` has an invalid value.
    """
    return read_weights(find_model(folder, checkpoint))


def read_weights(files: ModelFiles) -> ModelBundle:
    """Verify and read the weights of a model that `find_model` returned.

    Raises:
        CheckpointError: The weights are missing or damaged, or do not match the configuration; or
            they are adapters (`training.lora`), and those of the base model are missing or changed.
    """
    path = files.folder / stored.MODEL
    with readable():
        files.manifest.verify(files.folder, (stored.MODEL,))
        adapter = stored.adapter_record(path)
        if adapter:  # an extra merges the adapters into the base model
            model = load_attribute(_MERGED_MODEL)(files, adapter)
        else:
            model = _read_model(files, path)
    return ModelBundle(**vars(files), model=model)


def _read_model(files: ModelFiles, path: Path) -> Transformer:
    """Build the model of a configuration, and read its weights from a file that contains all."""
    from nmt.model.transformer import build_model  # noqa: PLC0415 - loads torch

    config = files.config.model
    _check_widths(path, config)
    try:
        model = build_model(config, *files.tokenizers.vocab_sizes)
    except ValueError as error:
        raise CheckpointError(
            f"config.yaml and tokenizer of {files.folder} do not match: {error}.", fix=_RESTORE
        ) from error
    weights = stored.load_tensors(path)
    problems = stored.tensor_differences(weights, model.state_dict())
    if problems:
        raise CheckpointError(
            f"{path} does not match config.yaml and tokenizer:\n  {problems}", fix=_RESTORE
        )
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model.eval()


def _check_widths(path: Path, config: ModelConfig) -> None:
    """Check the widths in the configuration, so that a wrong width does not allocate memory.

    Each width must be a size of at least one tensor in the file. Reads only the file's header.
    """
    tensor_sizes = set[int]()
    with stored.tensor_errors(path), safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118
            tensor_sizes.update(file.get_slice(name).get_shape())
    keys = ["model_dim", "decoder_model_dim", "ff_dim", "decoder_ff_dim"]
    if config.positions == "learned":
        keys.append("max_positions")
    num_stacked = 2 if config.activation == "swiglu" else 1  # SwiGLU stacks two matrices in one
    wrong_widths = []
    for key in keys:
        width = getattr(config, key)
        if width is not None and tensor_sizes.isdisjoint((width, num_stacked * width)):
            wrong_widths.append(f"model.{key} is {width:,}")
    if wrong_widths:
        problem = f"config.yaml does not match {path}: {', '.join(wrong_widths)}"
        raise CheckpointError(f"{problem}, but no tensor has that size.", fix=_RESTORE)


def _check_run_files(folder: Path, weights_dir: Path, config: InferenceConfig) -> None:
    """Compare languages, model settings and tokenizer with the record in the checkpoint.

    The manifest does not cover these files, because some settings of a run may change. The
    tokenizers are verified before they are parsed.
    """
    recorded = stored.read_state(weights_dir).get("identity", {})
    present = config.model_dump(mode="json")
    changes = []
    for name in ("model", "source_language", "target_language"):
        if name in recorded:
            was = recorded[name]
            now = present[name]
            if name == "model":  # compare the common keys: a renamed key cannot be compared
                now = {key: value for key, value in now.items() if key in was}
                was = {key: was[key] for key in now}
            changes += changed_settings(was, now, name)
    if changes:
        listed = "\n  ".join(changes)
        raise CheckpointError(
            f"{folder / CONFIG} does not match the weights in {weights_dir}:\n  {listed}",
            fix=_RESTORE,
        )
    recorded_hash = recorded.get("vocab_hash")
    tokenizer_dir = folder / TOKENIZER
    if recorded_hash is None or not tokenizer_dir.is_dir():
        return
    if tokenizer_hash(tokenizer_dir) != recorded_hash:
        raise CheckpointError(
            f"{tokenizer_dir} is not the tokenizer of this model.",
            fix="Restore the tokenizer folder of the run; the prepared data contain a copy.",
        )


def _weights_dir(folder: Path, checkpoint: str) -> Path:
    """Return the folder of the weights: a checkpoint, the average, or the model folder itself."""
    checkpoints = stored.checkpoints_dir(folder)
    if not checkpoints.is_dir():
        if not _is_model(folder):
            problem = f"{folder} has {CONFIG}, but neither {stored.MODEL} nor checkpoints"
            raise _config_as_model(folder / CONFIG, problem)
        if checkpoint != "best":
            text = "%s contains a single model: `checkpoint` %s has no effect"
            logger.warning(text, folder, checkpoint)
        return folder
    step_match = re.fullmatch(rf"(?:step-)?(\d{{1,{_MAX_DIGITS}}})", checkpoint)
    # `problem` and `fix` are for the case that `weights_dir` does not exist.
    if step_match:
        weights_dir = stored.checkpoint_dir(folder, int(step_match[1]))
        names = sorted(path.name for path in checkpoints.glob("step-*"))
        listed = ", ".join(names) or "no checkpoints"
        problem = f"{folder} has no checkpoint {weights_dir.name}; it has {listed}."
        fix = "Set `checkpoint` to best, last or a listed step."
    elif checkpoint == stored.AVERAGE:
        weights_dir = folder / stored.AVERAGE
        problem = f"{folder} has no averaged weights."
        fix = "Run `nmt average`, or set training.average_last and train to the end."
    elif checkpoint in ("best", "last"):
        return _best_or_last(folder, checkpoint)
    else:
        raise ConfigError(
            f"`checkpoint` is {checkpoint[:_MAX_SHOWN]!r}.",
            fix="Set `checkpoint` to best, last, step-N or average.",
        )
    if not weights_dir.is_dir():
        raise CheckpointError(problem, fix=fix)
    return weights_dir


def _best_or_last(folder: Path, checkpoint: str) -> Path:
    """Return the folder of the best or the newest weights; the newest if the best are missing."""
    if checkpoint == "best":
        best = stored.read_best(folder)
        if best:
            return best
    newest = stored.newest_checkpoint(folder, names=(stored.MODEL, stored.STATE))
    if newest is None:
        raise CheckpointError(
            f"{folder} has no checkpoint yet.", fix="Train first: `nmt train CONFIG`."
        )
    if checkpoint == "best" and (folder / stored.BEST).is_file():
        text = "the best checkpoint of %s does not exist any more; using the newest, %s"
        logger.warning(text, folder, newest.name)
    return newest


def read_extra(path: Path, kind: type[T], *, fix: str) -> T | None:
    """Read a JSON file of `EXTRAS`; return None if the file does not exist.

    Args:
        path: The file.
        kind: Dataclass whose fields are the keys of the JSON object.
        fix: How to fix a damaged file, for the error message.

    Raises:
        CheckpointError: The file is damaged.
    """
    try:
        values = field(read_json(path, finite=True), kind=dict)
        return TypeAdapter(kind).validate_python(values)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {what_is_wrong(error)}.", fix=fix) from error


def read_profiles(folder: Path) -> LanguageProfiles:
    """Read the profiles of the languages of a run or model folder; empty if it has none.

    Raises:
        CheckpointError: The file is damaged.
    """
    fix = "Copy the folder again, or delete this file: languages are then detected by script."
    return read_extra(folder / PROFILES, LanguageProfiles, fix=fix) or NO_PROFILES


def write_extra(path: Path, content: bytes) -> None:
    """Write a file of `EXTRAS` atomically.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    fix = "Free disk space or make the folder writable, then run the same command again."
    with write_errors(path, CheckpointError, fix=fix):
        write_bytes(path, content)


def check_new_folder(folder: Path, source: Path) -> None:
    """Check that `new_model_folder` can create ``folder``, before any slow work.

    Args:
        folder: The folder to create.
        source: The run folder. ``folder`` must not be among its checkpoints.

    Raises:
        ConfigError: The folder is not empty, is among the checkpoints, or cannot be written.
    """
    fix = "Set `output` to a folder that you can write to."
    with write_errors(folder, ConfigError, fix=fix):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"{folder} already exists; nmt does not overwrite it.",
                fix="Set `output` to a new folder.",
            )
        checkpoints = stored.checkpoints_dir(source).resolve()
        if folder.resolve().is_relative_to(checkpoints):
            raise ConfigError(
                f"{folder} is among the checkpoints of the run.",
                fix="Set `output` to a folder outside of the checkpoints.",
            )


@contextmanager
def new_model_folder(folder: Path, source: Path | None, step: int) -> Iterator[Path]:
    """Write a model folder atomically: yield a temporary folder, and add the manifest at the end.

    The caller writes the weights and all other files into the temporary folder.

    Args:
        folder: Folder to create; must not exist or must be empty.
        source: Run or model folder from which to copy configuration, tokenizer and `EXTRAS`; None
            if the caller writes these files.
        step: Updates that the model was trained for.

    Raises:
        CheckpointError: ``folder`` is not empty, or cannot be written.
    """
    try:
        with atomic_folder(folder) as temporary:  # fails if the folder is not empty
            if source is not None:
                (temporary / TOKENIZER).mkdir()
                write_folder_config(temporary, *load_folder_document(source))
                extras = [source / name for name in EXTRAS]
                for path in (*extras, *(source / TOKENIZER).iterdir()):
                    if path.is_file():
                        shutil.copyfile(path, temporary / path.relative_to(source))
            yield temporary
            # All files, also those that the caller has written.
            paths = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
            for path in paths:  # safetensors writes files that only their owner can read
                shutil.copymode(temporary / CONFIG, path)
            names = [path.relative_to(temporary).as_posix() for path in paths]
            Manifest.of(temporary, names, step).write(temporary)
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(
            f"{folder} was not written: {reason}.",
            fix="Choose an empty, writable folder on a disk with enough free space.",
        ) from error


def write_folder_config(folder: Path, config: InferenceConfig, record: Mapping[str, Any]) -> None:
    """Write config.yaml of a model folder; see `ModelFiles`."""
    text = dump_inference(config, record)
    (folder / CONFIG).write_text(text, encoding="utf-8", newline="\n")


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of several checkpoints, by parameter name.

    The weights are summed in float64 and rounded to float32 only once. For n checkpoints with
    weights w, the result differs from the exact mean by at most half a unit in the last place plus
    n * 2**-53 * mean(abs(w)). The mean of equal weights is exact.

    Needs memory for the float64 sums and for one checkpoint, whatever the number of checkpoints.

    Args:
        paths: Checkpoint folders of one run.

    Returns:
        Float32 tensors on the CPU.

    Raises:
        CheckpointError: A checkpoint is missing or damaged, contains a weight that is not finite,
            or has names or shapes that differ from the first checkpoint.
    """
    sums: dict[str, Tensor] = {}  # Float64, by parameter name.
    for path in paths:
        Manifest.read(path).verify(path, (stored.MODEL,))
        weights = stored.load_tensors(path / stored.MODEL)
        for name, weight in weights.items():
            if not weight.isfinite().all():
                raise CheckpointError(
                    f"{path / stored.MODEL}: {name} contains values that are not finite.",
                    fix="Remove this checkpoint: its training diverged.",
                )
        problems = stored.tensor_differences(weights, sums)
        if sums and problems:  # the first checkpoint has no other to match
            raise CheckpointError(
                f"{path} does not match {paths[0]}:\n  {problems}",
                fix="Average only checkpoints of one run.",
            )
        for name in list(weights):
            weight = weights.pop(name)  # frees the memory before the next checkpoint is read
            if name in sums:
                sums[name] += weight
            else:
                sums[name] = weight.double()
    means = {}
    for name in list(sums):
        means[name] = sums.pop(name).div_(len(paths)).float()
    return means


def write_average(
    folder: Path,
    run_dir: Path,
    paths: Sequence[Path],
    validation: Mapping[str, Any] | None = None,
) -> None:
    """Average checkpoints, and write the result atomically as a model folder.

    The folder also contains the configuration and tokenizer of the run, and `RECORD`. Averaging the
    same checkpoints again gives the same bytes.

    Args:
        folder: Folder to create; must not exist or must be empty.
        run_dir: The run folder, from which configuration and tokenizer are copied.
        paths: Checkpoint folders of that run.
        validation: Validation of the averaged weights, for the record: ``score`` and ``problem``.

    Raises:
        CheckpointError: A checkpoint cannot be averaged (see `average_weights`), or ``folder`` is
            not empty or cannot be written.
    """
    manifests = [Manifest.read(path) for path in paths]
    steps = [manifest.step for manifest in manifests]
    hashes = [manifest.files[stored.MODEL].sha256 for manifest in manifests]
    steps_and_hashes = zip(steps, hashes, strict=True)
    record = dict(validation or {})
    record["package_version"] = __version__
    record["steps"] = steps
    record["checkpoints"] = [{"step": step, "sha256": sha256} for step, sha256 in steps_and_hashes]

    with new_model_folder(folder, run_dir, max(steps)) as temporary:
        adapter = stored.adapter_record(paths[0] / stored.MODEL)
        stored.save_tensors(average_weights(paths), temporary / stored.MODEL, adapter)
        write_json(temporary / RECORD, record)


def recorded_problem(model: ModelFiles) -> str | None:
    """Return what was wrong with the translations of the last validation; "" if nothing was.

    None if the model has no record of a validation.
    """
    if (model.folder / stored.STATE).is_file():
        state = stored.read_state(model.folder)
        return recorded_value(state, "progress.problem")
    if (model.folder / RECORD).is_file():
        record = stored.read_object(model.folder / RECORD)
        return recorded_value(record, "problem")
    return None


def log_next_commands(folder: Path) -> None:
    """Log the commands to run next with a new model."""
    commands = [shell_command("translate", folder, input="FILE", output="FILE")]
    _, record = load_folder_document(folder)
    if recorded_value(record, "data.test"):
        commands.insert(0, shell_command("evaluate", folder))
    logger.info("next: %s", ", ".join(commands))
