"""A run folder: its files, its identity, and whether a configuration may resume it."""

from __future__ import annotations

import json
import math
import platform
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.checkpoint.files import newest_checkpoint, read_state
from nmt.config.loader import dump_config, load_config
from nmt.config.run import RunConfig
from nmt.config.section import bound_values
from nmt.data.prepared import PreparedManifest
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.files.atomic import atomic_folder, write_errors, write_text
from nmt.text.tokenizer import tokenizer_hash

if TYPE_CHECKING:
    import torch

_HASH_LENGTH = 64
# A schedule that falls to its end depends on where the end is.
_ENDING_SCHEDULES = ("linear", "cosine", "wsd")
_FIX = "Set run_dir to a folder you can write to, or free disk space."


def identity(
    config: RunConfig, *, data_hash: str, vocab_hash: str, num_processes: int = 1
) -> dict[str, Any]:
    """Return the settings and hashes that must stay the same for a run to resume, as plain data.

    The fields of the configuration say which they are (`nmt.config.section.Binds`). Everything else
    (reporting, saving, stopping, decoding, paths) may change between two starts of a run. A changed
    ``budget`` is no other run, but the learning rates may be others.
    """
    schedule = config.training.schedule
    ends = schedule.shape in _ENDING_SCHEDULES or schedule.warmup_ratio is not None
    # With BPE-dropout or noise, pairs may get longer than those that the filters kept.
    is_redrawn = config.batch.bpe_dropout or any(x.noise.rates for x in config.data.train)
    return {
        **bound_values(config, "run"),
        "filters": {"max_length": config.filters.max_length} if is_redrawn else {},
        "budget": bound_values(config, "budget") if ends else {},
        "num_processes": num_processes,
        "data_hash": data_hash,
        "vocab_hash": vocab_hash,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Return what arithmetic to the last bit depends on besides the configuration."""
    import torch  # noqa: PLC0415 - finding a model needs none

    kind, is_deterministic = device.type, torch.are_deterministic_algorithms_enabled()
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if kind == "cuda" else kind,
        "deterministic": is_deterministic or kind == "cpu",
        "architecture": platform.machine(),
    }


def changed_settings(was: Any, now: Any, path: str = "") -> list[str]:
    """Compare plain data, such as two `identity`: ``key: was ..., is ...`` for each difference."""
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        was, now = dict(enumerate(was)), dict(enumerate(now))
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        found = []
        for key in dict.fromkeys((*was, *now)):
            where = f"{path}.{key}" if path else str(key)
            found += changed_settings(was.get(key), now.get(key), where)
        return found
    return [] if was == now else [f"{path}: was {_shown(was)}, is {_shown(now)}"]


def _shown(value: Any) -> str:
    """Format a value as YAML has it; of a hash, the first characters."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    return f"{text[:12]}..." if len(text) == _HASH_LENGTH else text


def check_resumable(
    recorded: Mapping[str, Any], present: Mapping[str, Any], *, run_dir: Path, exact: bool
) -> list[str]:
    """Check that a run can be resumed; return warnings.

    Args:
        recorded: Identity and machine in the checkpoint.
        present: The same of this process.
        run_dir: The run folder, for messages.
        exact: Refuse where the result would not be bit-exact.

    Raises:
        CheckpointError: The configuration makes another model or other updates.
    """
    identities = recorded["identity"], present["identity"]
    refuse_changed_settings(*identities, run_dir)
    found = changed_settings(recorded["machine"], present["machine"])
    new_length = "from here on the learning rate follows the schedule of the new length"
    budgets = changed_settings(*(each["budget"] for each in identities))
    found += [f"{change}; {new_length}" for change in budgets]
    shares = [_shares(each) for each in identities]
    if shares[0] != shares[1]:  # other processes draw other random numbers
        before, then = (f"{processes} x {batches}" for processes, batches in shares)
        found.append(f"processes x batch.gradient_accumulation: was {before}, is {then}")
    # Without it, two runs differ on one machine, too.
    if not any(each["machine"]["deterministic"] for each in (recorded, present)):
        found.append("training.deterministic: is False")
    if found and exact:
        listed, same = "\n  ".join(found), "training.threads, training.deterministic and budget"
        raise CheckpointError(
            f"Resuming would not be bit-exact on this machine:\n  {listed}",
            fix=f"Use the same machine type, torch, {same}, or drop `exact`.",
        )
    return [f"resumed run is not bit-exact: {difference}" for difference in found]


def _shares(of_run: Mapping[str, Any]) -> tuple[int, int]:
    """Return among how many processes an `identity` shares an update, and the batches of each."""
    return of_run["num_processes"], of_run["batch"]["gradient_accumulation"]


def reshared(recorded: Mapping[str, Any], num_processes: int) -> int:
    """Return batches of an update for each process, where ``recorded`` may have had another number.

    Raises:
        CheckpointError: The processes cannot share the update evenly.
    """
    total = recorded["identity"]["num_processes"] * recorded["batch"]["gradient_accumulation"]
    if total % num_processes:
        cannot = f"which {num_processes} processes cannot share evenly"
        fix = f"Resume with a number of processes that divides {total}."
        raise CheckpointError(f"An update of this run has {total} batches, {cannot}.", fix=fix)
    return total // num_processes


def refuse_changed_settings(
    recorded: Mapping[str, Any], present: Mapping[str, Any], run_dir: Path
) -> None:
    """Refuse to resume with another `identity`; a longer or shorter training is no other one.

    Another number of processes is allowed if processes x ``batch.gradient_accumulation`` is equal.

    Raises:
        CheckpointError: The configuration or the data make another model or other updates.
    """
    was, now = ({**each, "budget": None} for each in (recorded, present))
    # None where their size is measured: then there may be any number of them.
    batches = [
        None if each["batch"]["max_tokens"] == "auto" else math.prod(_shares(each))
        for each in (was, now)
    ]
    if batches[0] == batches[1]:
        for each in (was, now):
            batch = {**each["batch"], "gradient_accumulation": None}
            each |= {"num_processes": None, "batch": batch}
    if found := changed_settings(was, now):
        fix = f"Restore these settings to resume ({run_dir / 'config.yaml'} has them), "
        fix += "or set another run_dir to start again."
        if any(line.startswith("data_hash") for line in found):
            fix += " The data_hash is of the training pairs: of corpora, filters and tokenizer."
        listed = "\n  ".join(found)
        raise CheckpointError(f"{run_dir} was trained with other settings:\n  {listed}", fix=fix)


def data_check(
    config: RunConfig, num_processes: int | None = None
) -> Callable[[PreparedManifest], None]:
    """Return a check that prepared data match the run's recorded identity.

    It keeps new data from replacing those that the run needs when its settings are restored. The
    number of processes counts only if it is given.
    """

    def check(manifest: PreparedManifest) -> None:
        if recorded := recorded_identity(config.run_dir):
            hashes = {"data_hash": manifest.data_hash, "vocab_hash": manifest.vocab_hash}
            processes = num_processes or recorded["num_processes"]
            present = identity(config, num_processes=processes, **hashes)
            refuse_changed_settings(recorded, present, config.run_dir)

    return check


def recorded_identity(run_dir: Path) -> dict[str, Any] | None:
    """Return the `identity` in the newest whole checkpoint; None if there is none.

    Raises:
        CheckpointError: There are checkpoints, and none is whole.
    """
    newest = newest_checkpoint(run_dir)
    return None if newest is None else read_state(newest).get("identity")


def trained_on(run_dir: Path, config: RunConfig) -> PreparedManifest | None:
    """Return what the prepared data of a run hold, or None if they are gone or others by now."""
    try:
        prepared = PreparedManifest.read(config.prepared_dir)
        recorded = recorded_identity(run_dir) or {}
    except (DataError, CheckpointError):
        return None
    return prepared if recorded.get("data_hash") == prepared.data_hash else None


def write_run_files(run_dir: Path, config: RunConfig, tokenizer_dir: Path) -> list[str]:
    """Make a run folder a model folder: resolved configuration and tokenizer beside the weights.

    Returns:
        ``key: was ..., is ...`` for each key that differs from the last start of the run.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    path, tokenizer = run_dir / "config.yaml", run_dir / "tokenizer"
    with write_errors(run_dir, CheckpointError, fix=_FIX):
        run_dir.mkdir(parents=True, exist_ok=True)
        # A run that was started again after other data was prepared may hold an old tokenizer.
        if not tokenizer.is_dir() or tokenizer_hash(tokenizer) != tokenizer_hash(tokenizer_dir):
            with atomic_folder(tokenizer, replace=True) as temporary:
                for file in tokenizer_dir.iterdir():  # copytree would lose why it failed
                    shutil.copyfile(file, temporary / file.name)
        try:
            recorded = load_config(path) if path.is_file() else config
            was, now = (each.model_dump(mode="json") for each in (recorded, config))
            changes = changed_settings(was, now)
        except ConfigError as error:
            changes = [f"{path} could not be read and is replaced: {error.problem}"]
        write_text(path, dump_config(config))
    return changes
