"""Run folders: their files, and whether a configuration may resume the run."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.checkpoint.files import list_checkpoints, new_run, newest_checkpoint, read_state
from nmt.config.loader import CONFIG, dump_config, read_settings, settings_of
from nmt.config.migration import NewerFormatError
from nmt.config.run import RunConfig
from nmt.config.section import bound_values
from nmt.data.prepared import PreparedManifest
from nmt.errors import CheckpointError, ConfigError, DataError, shell_command
from nmt.files.atomic import atomic_folder, write_errors, write_text
from nmt.text.tokenizer import tokenizer_hash

if TYPE_CHECKING:
    import torch

Identity = Mapping[str, Any]  # What `identity` returns.
_HASH_LENGTH = 64  # Digits of a SHA-256.
_MAX_LISTED_KEYS = 4  # Maximum number of keys in an error message.
_OPTIONAL_SECTIONS = ("filters", "budget")  # Sections of an `identity` that can be empty.
_OF_DATA = ("data.train", "data.valid", "tokenizer.", "filters.")  # Keys of settings of the data.
_FIX = "Set run_dir to a folder you can write to, or free disk space."


def identity(
    config: RunConfig, *, data_hash: str, vocab_hash: str, num_processes: int = 1
) -> dict[str, Any]:
    """Return the settings and hashes that must not change when a run is resumed, as JSON data.

    `nmt.config.section.Binds` marks these fields of the configuration. All other settings, such as
    reporting, saving, decoding and paths, may change between two starts of a run. The ``budget``
    may change, too, but that changes the learning rates.

    Args:
        config: The configuration.
        data_hash: Hash of the prepared training pairs.
        vocab_hash: Hash of the tokenizer.
        num_processes: Number of training processes.
    """
    budget = {}
    # Such a schedule decays until the end, or its warm-up is a share of the updates. So the
    # learning rate depends on the number of updates.
    if config.training.schedule.needs_budget:
        budget = bound_values(config, "budget")
    filters = {}
    has_noise = any(corpus.noise.rates for corpus in config.data.train)
    if config.batch.bpe_dropout or has_noise or config.data.glossary.share:
        # BPE-dropout, noise and terms can make pairs longer than the filters allow.
        filters["max_length"] = config.filters.max_length
    return {
        **bound_values(config, "run"),
        "filters": filters,
        "budget": budget,
        "num_processes": num_processes,
        "data_hash": data_hash,
        "vocab_hash": vocab_hash,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Return properties of the machine and torch that bit-exact results depend on, as JSON data."""
    import torch  # noqa: PLC0415 - finding a model must not import torch

    device_name = device.type
    if device_name == "cuda":
        device_name = torch.cuda.get_device_name(device)
    is_deterministic = torch.are_deterministic_algorithms_enabled() or device.type == "cpu"
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": device_name,
        "deterministic": is_deterministic,
        "architecture": platform.machine(),
    }


def changed_settings(was: Any, now: Any, path: str = "") -> list[str]:
    """Compare JSON data, such as two results of `identity`.

    Args:
        was: The old value.
        now: The new value.
        path: Dotted key of the values; empty for the top level.

    Returns:
        ``key: was ..., is ...`` for each difference.
    """
    changes = list[str]()
    if isinstance(was, list) and isinstance(now, list):
        has_sections = any(isinstance(item, Mapping) for item in (*was, *now))
        # Lists of sections, such as corpora, are compared as far as both go. Other lists are
        # compared item by item if they have the same length, and as one value if not.
        if len(was) == len(now) or has_sections:
            if len(was) != len(now):
                changes.append(f"{path}: was a list of {len(was)}, is a list of {len(now)}")
            num_common = min(len(was), len(now))
            was = dict(enumerate(was[:num_common]))
            now = dict(enumerate(now[:num_common]))
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        # All keys, in order. A missing key counts as None.
        for key in dict.fromkeys((*was, *now)):
            path_of_key = f"{path}.{key}" if path else str(key)
            changes += changed_settings(was.get(key), now.get(key), path_of_key)
    elif was != now:
        changes.append(f"{path}: was {_as_text(was)}, is {_as_text(now)}")
    return changes


def _as_text(value: Any) -> str:
    """Format a value as in YAML; shorten hashes."""
    if isinstance(value, Mapping):
        return "{...}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    if len(text) == _HASH_LENGTH:
        return f"{text[:12]}..."
    return text


def check_resumable(
    recorded: Mapping[str, Any], present: Mapping[str, Any], *, run_dir: Path, exact: bool
) -> list[str]:
    """Check that a run can be resumed; return warnings.

    Args:
        recorded: ``identity`` and ``machine`` in the checkpoint.
        present: ``identity`` and ``machine`` of this process.
        run_dir: The run folder, for messages.
        exact: Raise an error instead of warnings if the result would not be bit-exact.

    Raises:
        CheckpointError: A setting has changed that must not change, or ``exact`` is set and the
            result would not be bit-exact.
    """
    was = recorded["identity"]
    now = present["identity"]
    refuse_changed_settings(was, now, run_dir)
    # What keeps the result from being bit-exact.
    changes = changed_settings(recorded["machine"], present["machine"])
    for change in changed_settings(was["budget"], now["budget"]):
        changes.append(f"{change}; the learning rate now follows the schedule of the new length")
    if _division(was) != _division(now):  # each process draws its own random numbers
        difference = f"was {_division(was)}, is {_division(now)}"
        changes.append(f"processes x batch.gradient_accumulation: {difference}")
    # Without deterministic kernels, even two runs on one machine differ.
    if not (recorded["machine"]["deterministic"] or present["machine"]["deterministic"]):
        changes.append("training.deterministic: is false")
    if changes and exact:
        listed = "\n  ".join(changes)
        raise CheckpointError(
            f"Resuming would not be bit-exact on this machine:\n  {listed}",
            fix="Use the same machine type, torch version and settings, or remove `exact`.",
        )
    return [f"resuming is not bit-exact: {change}" for change in changes]


def _division(run: Identity) -> str:
    """Return how an update is divided: number of processes x batches of a process, ``2 x 4``."""
    return f"{run['num_processes']} x {run['batch']['gradient_accumulation']}"


def reshared(recorded: Mapping[str, Any], num_processes: int) -> int:
    """Return the number of batches per update for each process, for a new number of processes.

    Args:
        recorded: State of a checkpoint, possibly with a different number of processes.
        num_processes: Number of processes now.

    Raises:
        CheckpointError: The processes cannot share the batches of an update evenly.
    """
    old_processes = recorded["identity"]["num_processes"]
    num_batches = old_processes * recorded["batch"]["gradient_accumulation"]
    if num_batches % num_processes:
        cannot = f"which cannot be shared evenly by {num_processes} processes"
        command = shell_command("train", "CONFIG", devices=_usable(num_processes, num_batches))
        raise CheckpointError(
            f"An update of this run has {num_batches} batches, {cannot}.",
            fix=f"Resume with a number of processes that divides {num_batches}: `{command}`.",
        )
    return num_batches // num_processes


def _usable(num_processes: int, num_batches: int) -> int:
    """Return the largest number of processes up to a limit that share batches evenly."""
    return max(n for n in range(1, num_processes + 1) if num_batches % n == 0)


def refuse_changed_settings(
    recorded: Identity, present: Identity, run_dir: Path, data_changes: Sequence[str] = ()
) -> None:
    """Raise an error if a setting has changed that must stay the same when a run is resumed.

    The length of training may change. The number of processes may change if the product of
    processes and ``batch.gradient_accumulation`` stays the same.

    Args:
        recorded: `identity` in the checkpoint.
        present: `identity` of this process.
        run_dir: The run folder, for messages.
        data_changes: Changed settings of the data, for messages.

    Raises:
        CheckpointError: A setting, the data or the tokenizer has changed.
    """
    refuse_other_keys(recorded, present, run_dir)
    # Copies in which the values that may change are None, so that they are equal.
    was = {**recorded, "budget": None}
    now = {**present, "budget": None}
    if _batches_per_update(was) == _batches_per_update(now):
        for settings in (was, now):
            settings["num_processes"] = None
            settings["batch"] = {**settings["batch"], "gradient_accumulation": None}
    changes = changed_settings(was, now)
    if not changes:
        return
    changes += data_changes
    differences = sorted(filter(None, parts_of(changes)))
    fix = f"To resume, restore these settings from {run_dir / CONFIG}. "
    num_batches = _batches_per_update(recorded)
    if now["num_processes"] != was["num_processes"] and num_batches:
        num_processes = _usable(now["num_processes"], num_batches)
        accumulation = f"batch.gradient_accumulation={num_batches // num_processes}"
        command = shell_command("train", "CONFIG", devices=num_processes, set_=accumulation)
        fix = f"To resume with the same number of batches per update, run `{command}`. "
    fix += f"{new_run(run_dir, differences)} To start without these weights, set a new run_dir."
    listed = "\n  ".join(changes)
    raise CheckpointError(f"{run_dir} was trained with other settings:\n  {listed}", fix=fix)


def _batches_per_update(run: Identity) -> int | None:
    """Return the batches per update of all processes.

    None if the batch size is measured (``auto``): the number of batches may then change.
    """
    batch = run["batch"]
    if batch["max_tokens"] == "auto":
        return None
    return run["num_processes"] * batch["gradient_accumulation"]


def refuse_other_keys(recorded: Identity, present: Identity, run_dir: Path) -> None:
    """Raise a `CheckpointError` if the run was trained by a version of nmt with different keys.

    Args:
        recorded: `identity` in the checkpoint.
        present: `identity` of this process.
        run_dir: The run folder, for messages.
    """
    differences = _key_paths(recorded) ^ _key_paths(present)  # in only one of them
    if differences:
        # If a whole section is in only one of them, list the section without its keys.
        names = sorted(".".join(path) for path in differences if path[:-1] not in differences)
        listed = ", ".join(names[:_MAX_LISTED_KEYS])
        if len(names) > _MAX_LISTED_KEYS:
            listed += f" and {len(names) - _MAX_LISTED_KEYS} more"
        problem = f"{run_dir} was trained by a different version of nmt."
        problem += f" Configuration keys that only one of the versions has: {listed}."
        raise CheckpointError(problem, fix=f"{new_run(run_dir)} Or set a new run_dir.")


def _key_paths(section: Mapping[str, Any], parent: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the paths of all keys in an `identity`, such as ``("batch", "max_tokens")``.

    Args:
        section: The identity, or a section of it.
        parent: Path of the section.
    """
    paths = set[tuple[str, ...]]()
    for key, value in section.items():
        path = (*parent, key)
        paths.add(path)
        if isinstance(value, Mapping) and key not in _OPTIONAL_SECTIONS:
            paths |= _key_paths(value, path)
    return paths


def data_check(
    config: RunConfig, recorded: Identity | None, num_processes: int
) -> Callable[[PreparedManifest], None]:
    """Return a function that checks whether training on prepared data can resume a run.

    Args:
        config: The configuration.
        recorded: Result of `recorded_identity`.
        num_processes: Number of processes.
    """

    def check(manifest: PreparedManifest) -> None:
        if not recorded:
            return
        present = identity(
            config,
            data_hash=manifest.data_hash,
            vocab_hash=manifest.vocab_hash,
            num_processes=num_processes,
        )
        changes = changed_settings(recorded_settings(config.run_dir), settings_of(config))
        data_changes = [change for change in changes if change.startswith(_OF_DATA)]
        refuse_changed_settings(recorded, present, config.run_dir, data_changes)

    return check


def recorded_identity(run_dir: Path) -> dict[str, Any] | None:
    """Return the `identity` in the newest intact checkpoint; None if the run has no checkpoint.

    Raises:
        CheckpointError: All checkpoints are damaged.
    """
    newest = newest_checkpoint(run_dir)
    if newest is None:
        return None
    return read_state(newest).get("identity")


def recorded_settings(run_dir: Path) -> dict[str, Any]:
    """Return the whole configuration of the run that training would resume, not validated.

    Empty if there is no checkpoint, or if config.yaml is damaged: `write_run_files` replaces it.
    """
    if not list_checkpoints(run_dir):
        return {}
    try:
        return read_settings(run_dir / CONFIG)
    except NewerFormatError:
        raise
    except ConfigError:
        return {}


def has_data_settings(config: RunConfig) -> bool:
    """Whether training would resume a run whose data were prepared with the same settings.

    Keys that the run does not know do not count.
    """
    recorded = recorded_settings(config.run_dir)
    return bool(recorded) and _agrees(recorded, bound_values(config, "data"))


def _agrees(recorded: Any, now: Any) -> bool:
    """Whether settings have the recorded values, as far as they are recorded.

    Args:
        recorded: Settings as a user writes them: a section may stand for a list with this section.
        now: Validated settings.
    """
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        common_keys = recorded.keys() & now.keys()
        return all(_agrees(recorded[key], now[key]) for key in common_keys)
    if isinstance(now, list):
        if isinstance(recorded, Mapping):
            recorded = [recorded]
        if isinstance(recorded, list) and len(recorded) == len(now):
            return all(map(_agrees, recorded, now))
    return bool(recorded == now)


def trained_on(run_dir: Path, prepared_dir: Path) -> PreparedManifest | None:
    """Return the manifest of the data of a run; None if the data were deleted or replaced."""
    try:
        prepared = PreparedManifest.read(prepared_dir)
        recorded = recorded_identity(run_dir) or {}
    except (DataError, CheckpointError):
        return None
    if recorded.get("data_hash") != prepared.data_hash:
        return None
    return prepared


def parts_of(changes: Iterable[str]) -> set[str]:
    """Return what `training.init_differences` must contain for changed settings.

    >>> sorted(parts_of(["tokenizer.kind: was bpe, is char", "model.ff_dim: was 1, is 2"]))
    ['', 'vocabulary']

    Args:
        changes: As returned by `changed_settings`.

    Returns:
        The parts; an empty text stands for settings that cannot differ.
    """
    parts = set()
    for change in changes:
        part = ""
        if change.startswith("tokenizer."):
            part = "vocabulary"
        elif "_layers: " in change:
            part = "layers"
        parts.add(part)
    return parts


def differing(config: RunConfig, *parts: str) -> str:
    """Return the command of a start in which more parts differ from `training.init_from`.

    In backticks, for messages.
    """
    listed = ", ".join((*config.training.init_differences, *parts))
    command = shell_command("train", "CONFIG", set_=f"training.init_differences=[{listed}]")
    return f"`{command}`"


def changes_since(run_dir: Path, config: RunConfig) -> list[str]:
    """Return ``key: was ..., is ...`` for each setting changed since the last start of a run."""
    path = run_dir / CONFIG
    try:
        now = settings_of(config)
        was = read_settings(path) if path.is_file() else now  # no changes at the first start
        return changed_settings(was, now)
    except NewerFormatError:
        raise
    except ConfigError as error:
        return [f"{path} is invalid and is replaced: {error.problem}"]


def write_run_files(run_dir: Path, config: RunConfig, tokenizer_dir: Path) -> list[str]:
    """Write the resolved configuration and the tokenizer into a run folder.

    Args:
        run_dir: The run folder; created if missing.
        config: The configuration.
        tokenizer_dir: Tokenizer folder of the prepared data.

    Returns:
        Result of `changes_since`, which the new configuration replaces.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    copy = run_dir / "tokenizer"
    with write_errors(run_dir, CheckpointError, fix=_FIX):
        run_dir.mkdir(parents=True, exist_ok=True)
        # The copy may be old, if the data were prepared again before the first checkpoint.
        if not copy.is_dir() or tokenizer_hash(copy) != tokenizer_hash(tokenizer_dir):
            with atomic_folder(copy, replace=True) as temporary:
                for file in tokenizer_dir.iterdir():  # copytree would hide the cause of an error
                    shutil.copyfile(file, temporary / file.name)
        changes = changes_since(run_dir, config)
        write_text(run_dir / CONFIG, dump_config(config))
    return changes
