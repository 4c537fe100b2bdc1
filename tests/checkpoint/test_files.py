"""Checkpoints are complete or do not exist, and nothing unverified is read."""

from __future__ import annotations

import errno
import os
import pickle
import random
import resource
import shutil
import struct
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.checkpoint import files
from nmt.checkpoint.files import (
    ADAPTER,
    AdapterRecord,
    Checkpoint,
    adapter_record,
    checkpoint_dir,
    checkpoint_name,
    clean_partial,
    host_copies,
    list_checkpoints,
    load_checkpoint,
    load_tensors,
    newest_checkpoint,
    read_best,
    read_state,
    save_checkpoint,
    set_damaged_aside,
    write_best,
)
from nmt.errors import CheckpointError
from nmt.files.json_file import FORMAT_VERSION, Manifest
from tests.checkpoint.faults import contents, fail_writes, flip_bit
from tests.training.small import full_disk

FLAT = torch.arange(12.0)
# Views of one buffer, and a transposed tensor.
MODEL = {"a": FLAT[:4].view(2, 2), "b": FLAT[4:].view(2, 4), "c": torch.ones(2, 3).t()}
STATE = {"epoch": 2, "names": ["ä", "b"], "nested": {"x": 0.1}}
CLAIM = b'{"a":{"dtype":"F32","shape":[2684354560],"data_offsets":[0,10737418240]}}'
GOLDEN = Path(__file__).parent / "golden"


def save(run_dir: Path, step: int, model: dict[str, Tensor] | None = None) -> Path:
    optimizer = {"random/cpu": torch.arange(9, dtype=torch.uint8), "step": torch.tensor([4.0])}
    return save_checkpoint(run_dir, step, model=model or MODEL, optimizer=optimizer, state=STATE)


def test_a_checkpoint_reads_back_as_it_was_saved_and_gives_the_same_bytes(tmp_path: Path) -> None:
    """And holds safetensors and JSON alone."""
    first = save(tmp_path / "a", 40)
    found = load_checkpoint(first)
    tensors = {"model": found.model, "optimizer": found.optimizer}
    second = save_checkpoint(tmp_path / "b", 40, **tensors, state=found.state)
    assert (found.step, found.state) == (40, STATE)
    assert found.model.keys() == MODEL.keys()
    assert all(torch.equal(found.model[name], MODEL[name]) for name in MODEL)
    assert found.optimizer["random/cpu"].dtype == torch.uint8
    assert contents(first) == contents(second)
    names = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert sorted(path.name for path in first.iterdir()) == names
    assert [path.name for path in first.parent.iterdir()] == ["step-00000040"]


def test_weights_of_adapters_are_marked_as_such(tmp_path: Path) -> None:
    """Loading them without the base model would be a mistake."""
    record: AdapterRecord = {"base": 64 * "a", "scale": 0.5}
    tensors = {"model": {"a": torch.ones(2)}, "optimizer": {"step": torch.ones(1)}}
    folder = save_checkpoint(tmp_path, 1, **tensors, state={ADAPTER: record})
    assert adapter_record(folder / "model.safetensors") == record
    assert adapter_record(folder / "optimizer.safetensors") is None
    for other in ({}, {ADAPTER: None}):
        folder = save_checkpoint(tmp_path, 2, **tensors, state=other)
        assert adapter_record(folder / "model.safetensors") is None


def test_host_copies_are_equal_independent_and_copied_per_buffer() -> None:
    whole, other = torch.randn(60), torch.arange(6, dtype=torch.int64)
    tensors = {"a": whole[:12].view(3, 4), "b": whole[20:50].view(5, 6).T, "c": other[2:3]}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    copies = host_copies(tensors)
    for buffer in (whole, other):
        buffer.zero_()
    for name, tensor in expected.items():
        assert torch.equal(copies[name], tensor)
    storages = {tensor.untyped_storage().data_ptr() for tensor in copies.values()}
    assert len(storages) == 2


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Path]]:
    """By step: runs with step 1, whose process was killed at each point of saving that step."""
    folder = tmp_path_factory.mktemp("kills")
    command = [sys.executable, str(Path(__file__).with_name("kills.py")), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, timeout=100)
    return {step: sorted((folder / str(step)).iterdir()) for step in (1, 2)}


def version_of(run_dir: Path) -> str:
    """Which version the newest checkpoint is, after checking that all its parts agree."""
    newest = newest_checkpoint(run_dir, strict=True)
    assert newest is not None
    found = load_checkpoint(newest)
    version = str(found.state["is"])
    for tensors in (found.model, found.optimizer):
        assert tensors["weight"].unique().tolist() == [1.0 if version == "old" else 2.0]
    return version


def test_a_kill_at_any_point_of_saving_leaves_the_previous_or_the_new_checkpoint(
    killed_runs: dict[int, list[Path]],
) -> None:
    """FAULTS 4, 5 and 6: before the rename, between the files, before the pointer.

    The pointer is a hint that may be behind; the next start removes what the process left.
    """
    runs = killed_runs[2]
    versions = [version_of(run_dir) for run_dir in runs]
    assert versions == sorted(versions, reverse=True)
    assert versions.count("old") >= 8
    assert versions.count("new") >= 3
    renamed = [run_dir for run_dir in runs if list_checkpoints(run_dir)[-1][0] == 2]
    assert any(read_best(run_dir) == checkpoint_dir(run_dir, 1) for run_dir in renamed)
    left = [run_dir for run_dir in runs if [*run_dir.rglob(".*.tmp-*")]]
    assert len(left) >= 8
    for run_dir in left:
        whole = contents(checkpoint_dir(run_dir, 1))
        clean_partial(run_dir)
        assert not [*run_dir.rglob(".*.tmp-*")]
        assert contents(checkpoint_dir(run_dir, 1)) == whole


def test_a_kill_while_the_only_checkpoint_is_replaced_leaves_one_of_the_two(
    killed_runs: dict[int, list[Path]],
) -> None:
    """FAULTS 4 and 7: a run stopped where a validation was due saves the same step once more."""
    aside = 0
    for run_dir in killed_runs[1]:
        version = version_of(run_dir)
        aside += not checkpoint_dir(run_dir, 1).exists()
        clean_partial(run_dir)
        assert version_of(run_dir) == version
        assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-00000001"]
    assert aside == 1


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_checkpoint_is_named_and_skipped(
    tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULT 10."""
    older, newer = save(tmp_path, 10), save(tmp_path, 20)
    path = newer / name
    if damage == "flipped":
        flip_bit(path)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-7])
    else:
        path.unlink()
    assert newest_checkpoint(tmp_path) == older
    (message,) = caplog.messages
    assert str(path) in message
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(newer)
    with pytest.raises(CheckpointError, match=name) as caught:
        newest_checkpoint(tmp_path, strict=True)
    assert "`strict_resume`" in caught.value.fix
    assert caught.value.exit_code == 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("whole"), 10)


@given(data=st.data())
def test_a_bit_flipped_anywhere_is_found(whole: Path, data: Any) -> None:
    """FAULT 10."""
    path = whole / data.draw(st.sampled_from(["model.safetensors", "state.json"]))
    position = data.draw(st.integers(0, path.stat().st_size - 1))
    flip_bit(path, position)
    with pytest.raises(CheckpointError, match=path.name):
        load_checkpoint(whole)
    flip_bit(path, position)
    load_checkpoint(whole)


def test_when_all_are_damaged_every_file_is_listed_and_nothing_changes(tmp_path: Path) -> None:
    """FAULT 11."""
    for step in (10, 20, 30):
        flip_bit(save(tmp_path, step) / "model.safetensors")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        newest_checkpoint(tmp_path)
    assert caught.value.exit_code == 4
    for step in (10, 20, 30):
        assert f"step-{step:08d}/model.safetensors" in caught.value.problem
    assert contents(tmp_path) == before


def test_a_checkpoint_of_a_newer_format_is_not_skipped(tmp_path: Path) -> None:
    """FAULT 16."""
    save(tmp_path, 10)
    newer = save(tmp_path, 20)
    manifest = Manifest(FORMAT_VERSION + 1, "9.8.7", 20, Manifest.read(newer).files)
    (newer / "manifest.json").write_text(manifest.text())
    with pytest.raises(CheckpointError, match="format version: 2"):
        newest_checkpoint(tmp_path)
    save(tmp_path / "renamed", 10).rename(checkpoint_dir(tmp_path / "renamed", 99))
    with pytest.raises(CheckpointError, match="contains step 10"):
        newest_checkpoint(tmp_path / "renamed")


def test_a_checkpoint_of_the_first_release_loads() -> None:
    """FAULT 16: written once by release 0.1.0, and never again."""
    assert newest_checkpoint(GOLDEN, strict=True) == checkpoint_dir(GOLDEN, 12)
    found = load_checkpoint(checkpoint_dir(GOLDEN, 12))
    assert found.step == 12
    assert found.state["names"] == ["ä", "b"]
    assert found.model["weight"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert found.optimizer["random/cpu"].tolist() == list(range(9))


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.witness),)


def test_a_pickle_under_the_name_of_tensors_is_refused_and_not_executed(tmp_path: Path) -> None:
    """FAULT 17."""
    witness, path = tmp_path / "executed", tmp_path / "model.safetensors"
    torch.save({"weight": torch.ones(2)}, path)
    for content in (path.read_bytes(), pickle.dumps(Malicious(witness))):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model\.safetensors is not a valid safetensors"):
            load_tensors(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    "content",
    [
        *(struct.pack("<Q", claim) + b'{"a":{"dtype":"F32"}}' for claim in (2**33, 2**63, 9**8)),
        *(random.Random(size).randbytes(size) for size in (0, 1, 7, 8, 9, 100, 5000)),
        struct.pack("<Q", len(CLAIM)) + CLAIM,
    ],
    ids=len,
)
def test_a_header_that_claims_too_much_is_refused_at_once(tmp_path: Path, content: bytes) -> None:
    """FAULT 17: of a header or a shape."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a valid safetensors"):
        load_tensors(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def assert_only_the_first_is_left(run_dir: Path, before: dict[str, bytes]) -> None:
    assert contents(run_dir) == before
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-00000010"]


def test_lack_of_space_is_reported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULT 8: for weights of 1 MiB, moments of 2 MiB and a margin of 1 MiB."""
    save(tmp_path, 10)
    before = contents(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 9, 3 * 2**20))
    model, optimizer = ({"weight": torch.zeros(count * 2**18)} for count in (1, 2))
    with pytest.raises(CheckpointError, match=r"needs 4\.0 MiB, 3\.0 MiB are free") as caught:
        save_checkpoint(tmp_path, 20, model=model, optimizer=optimizer, state=STATE)
    assert "Free disk space" in caught.value.fix
    assert_only_the_first_is_left(tmp_path, before)


@pytest.mark.parametrize(
    ("number", "call"),
    [*((errno.ENOSPC, call) for call in (0, 1, 3, 4, 5)), (errno.EDQUOT, 1), (errno.EIO, 3)],
)
def test_a_failing_write_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: int
) -> None:
    """FAULT 8: the disk fills up at any point of the write."""
    save(tmp_path, 10)
    before = contents(tmp_path)
    fail_writes(monkeypatch, call, number)
    with pytest.raises(CheckpointError, match="step-00000020 was not written") as caught:
        save(tmp_path, 20)
    if call == 5:  # the new one was in its place already: whole, if not surely on the disk
        assert newest_checkpoint(tmp_path) == checkpoint_dir(tmp_path, 20)
        return
    assert os.strerror(number) in caught.value.problem
    assert ("Free disk space" in caught.value.fix) == (number != errno.EIO)
    assert_only_the_first_is_left(tmp_path, before)


def test_a_full_disk_reported_by_safetensors_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 8, for real: files may not grow beyond a few bytes, as under a quota."""
    save(tmp_path, 10)
    before = contents(tmp_path)
    monkeypatch.setattr(files, "_DISK_FULL", (errno.EFBIG,))
    with full_disk(100), pytest.raises(CheckpointError, match=r"not written: .*too large") as at:
        save(tmp_path, 20)
    assert "Free disk space" in at.value.fix
    assert_only_the_first_is_left(tmp_path, before)


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    flip_bit(save(tmp_path, 10) / "model.safetensors")
    folder = save(tmp_path, 10)
    assert isinstance(load_checkpoint(folder), Checkpoint)
    assert [*(tmp_path / "checkpoints").iterdir()] == [folder]


def test_read_best_returns_an_existing_checkpoint_or_average_or_none(tmp_path: Path) -> None:
    assert read_best(tmp_path) is None
    folder = save(tmp_path, 10)
    write_best(tmp_path, checkpoint_name(10))
    assert read_best(tmp_path) == folder
    assert (tmp_path / "best").read_text() == "step-00000010\n"
    for missing in (checkpoint_name(20), "average"):
        write_best(tmp_path, missing)
        assert read_best(tmp_path) is None
    average = tmp_path / "average"
    average.mkdir()
    assert read_best(tmp_path) == average
    for text in ("../../etc", "step-00000010/..", "", "\x00"):
        (tmp_path / "best").write_text(text)
        assert read_best(tmp_path) is None


def test_checkpoints_after_the_one_to_resume_from_are_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else they would count as the newest, and those that follow would expire before them."""
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    folder = tmp_path / "checkpoints"
    older = folder / "damaged-step-00000030"  # of an earlier start
    older.mkdir()
    (older / "old").touch()
    set_damaged_aside(tmp_path, 20)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [10, 20]
    aside = {path.name for path in folder.glob("damaged-*")}
    assert aside == {"damaged-step-00000030", "damaged-step-00000040"}
    assert load_checkpoint(older).step == 30
    assert not (older / "old").exists()
    assert len(caplog.messages) == 2


def test_the_state_of_a_newer_version_is_refused_and_of_an_older_one_is_read(
    tmp_path: Path,
) -> None:
    folder = save_checkpoint(tmp_path, 10, model={}, optimizer={}, state={"counters": {"a": 1}})
    assert read_state(folder) == {"counters": {"a": 1}}
    (folder / files.STATE).write_text('{"counters": {"a": 2}}')  # version 0.1 wrote no format
    state = read_state(folder)
    assert (state["counters"], state["progress"]) == ({"a": 2}, {})
    (folder / files.STATE).write_text('{"format": 99, "counters": {}}')
    with pytest.raises(CheckpointError, match="format 99") as caught:
        read_state(folder)
    assert "version of nmt" in str(caught.value.fix)
