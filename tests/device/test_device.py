"""Choice of the device, its memory, precision and processes."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from nmt.checkpoint.run import machine
from nmt.device import device as memory
from nmt.device import is_one_of_torchrun, own_cores
from nmt.device import precision as precision_module
from nmt.device.device import (
    choose_device,
    choose_device_queue,
    deterministic,
    free_bytes,
    is_out_of_memory,
    measure_peak,
    prefetch,
    prepare_process,
    random_state,
    restore_random_state,
    seed_rank,
)
from nmt.device.distributed import (
    PeerLostError,
    PendingSum,
    Processes,
    ProcessGroup,
    interleave,
    join,
)
from nmt.device.precision import LossScale, choose_precision, has_fast_bf16, kind_of_machine
from nmt.errors import DeviceError
from tests.process import LIMIT

CPU = torch.device("cpu")


def test_a_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    assert choose_device("cpu") == CPU
    for name in ("cuda", "cuda:0", "cuda:1"):
        with pytest.raises(DeviceError, match="torch cannot find a GPU") as caught:
            choose_device(name)
        assert caught.value.exit_code == 2


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """What stands for a GPU: chosen, and never used."""
    for name, answer in {"is_available": True, "device_count": 1, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield choose_device("auto")
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_number_chooses_one_of_the_gpus(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceError, match="cuda:1 does not exist; torch finds 1 GPUs"):
        choose_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # it plans anew for each shape
    assert torch.backends.cuda.flash_sdp_enabled()
    assert choose_device("cuda:1") == torch.device("cuda", 1) == chosen[0]
    assert choose_device("cuda:0") == choose_device("cuda") == gpu == torch.device("cuda", 0)
    assert choose_device("cpu") == CPU
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(DeviceError, match="2 processes cannot share cuda:1"):
        choose_device("cuda:1")


def test_deterministic_kernels_are_on_inside_the_context_and_a_missing_one_is_reported(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_NVLS_ENABLE"):
        monkeypatch.setenv(name, "restored")
        monkeypatch.delenv(name)
    is_on = torch.are_deterministic_algorithms_enabled
    settings: Any = torch.utils.deterministic
    for device, wanted in ((CPU, True), (gpu, False)):
        with deterministic(device, wanted=wanted):
            assert not is_on()
    with deterministic(gpu, wanted=True):
        assert is_on()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert os.environ["NCCL_NVLS_ENABLE"] == "0"
        assert not settings.fill_uninitialized_memory
    assert (is_on(), settings.fill_uninitialized_memory) == (False, True)
    text = "histc_cuda does not have a deterministic implementation, but you set\nmore"
    with (
        pytest.raises(DeviceError, match="histc_cuda does not have") as caught,
        deterministic(gpu, wanted=True),
    ):
        raise RuntimeError(text)
    assert "training.deterministic to false" in caught.value.fix
    with pytest.raises(RuntimeError, match="other"), deterministic(gpu, wanted=True):
        raise RuntimeError("other")
    assert not is_on()


def test_out_of_memory_errors_are_recognised() -> None:
    for error, is_it in (
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: an illegal memory access"), False),
        (ValueError("can't allocate memory"), False),
    ):
        assert is_out_of_memory(error) is is_it, error


def test_only_a_gpu_has_queued_updates() -> None:
    cpu, gpu = (choose_device_queue(each) for each in (CPU, torch.device("cuda", 1)))
    items = iter([1])
    assert (cpu.max_inflight_updates, cpu.uses_threads) == (1, False)
    assert (gpu.max_inflight_updates > 1, gpu.uses_threads) == (True, True)
    with cpu.stream(items) as stream:
        assert stream is items
    with gpu.stream(iter([1, 2, 3])) as stream:
        assert list(stream) == [1, 2, 3]


def test_prefetch_computes_one_item_in_a_thread_and_raises_its_error_in_order() -> None:
    made, is_ahead = list[int](), threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(3):
            assert threading.current_thread() is not threading.main_thread()
            made.append(number)
            if number == 1:
                is_ahead.set()
            yield number
        raise ValueError("no more")

    with prefetch(numbers()) as stream:
        assert next(stream) == 0
        assert is_ahead.wait(60)  # while 0 is used
        assert made == [0, 1]  # and no more
        assert [next(stream), next(stream)] == [1, 2]
        with pytest.raises(ValueError, match="no more"):
            next(stream)
    with suppress(KeyError), prefetch(itertools.count()) as stream:
        next(stream)
        raise KeyError
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]


def test_apple_gpus_are_chosen_by_name_and_use_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its selection alone: no test here can run on one."""
    mps = torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="No mps device"):
        choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("mps") == mps
    assert choose_device("auto") == CPU
    precision, pace = choose_precision("auto", mps), choose_device_queue(mps)
    assert (precision.dtype, precision.weight_dtype) == (torch.float32, torch.float32)
    assert (pace.max_inflight_updates, pace.uses_threads) == (1, False)
    with pytest.raises(DeviceError, match="mps does not support bfloat16"):
        choose_precision("bfloat16", mps)
    assert machine(mps)["device"] == "mps"


def test_a_gpu_is_waited_for_and_its_unused_memory_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the wait, the time of an update would be that of queueing it."""
    calls: list[object] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", calls.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    gpu = torch.device("cuda", 1)
    for device in (CPU, gpu):
        queue = choose_device_queue(device)
        for finish in (queue.wait, queue.release_memory):
            finish()
    assert calls == [gpu, "emptied"]


def test_memory_that_torch_reserved_on_a_gpu_and_does_not_use_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {"mem_get_info": (100, 1000), "memory_reserved": 70, "memory_allocated": 30}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, answer=answer: answer)
    assert free_bytes(torch.device("cuda")) == 100 + 70 - 30


MEBIBYTE = 2**20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups, one inside the other, with this process in the inner one."""
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/elsewhere\n0::/outer/inner\n")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_GROUP", own)
    (tmp_path / "groups" / "outer" / "inner").mkdir(parents=True)
    return tmp_path / "groups"


def limit(group: Path, limit: str, used: int) -> None:
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used + MEBIBYTE}\n")
    (group / "memory.stat").write_text(f"active_file 3\ninactive_file {MEBIBYTE}\n")


def test_the_smallest_limit_of_the_control_groups_counts(groups: Path) -> None:
    unlimited = free_bytes(CPU)
    limit(groups / "outer", "max", 3)
    assert free_bytes(CPU) == pytest.approx(unlimited, rel=0.2)
    limit(groups, str(9 * MEBIBYTE), MEBIBYTE)
    limit(groups / "outer" / "inner", str(7 * MEBIBYTE), MEBIBYTE)
    assert free_bytes(CPU) == 6 * MEBIBYTE
    limit(groups / "outer", str(5 * MEBIBYTE), 6 * MEBIBYTE)
    assert free_bytes(CPU) == 0


def test_the_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = tmp_path / "statm"
    sizes.write_text("100 50 3 0 0 0 0\n")
    monkeypatch.setattr(memory, "_OWN_SIZES", sizes)
    used, limits = 100 * mmap.PAGESIZE, tmp_path / "limits"
    monkeypatch.setattr(memory, "_OWN_LIMITS", limits)
    limits.write_text(
        "Limit  Soft Limit  Hard Limit\nMax address space  unlimited  unlimited  bytes\n"
    )
    assert free_bytes(CPU) > 5 * MEBIBYTE
    for limit, free in ((used + 5 * MEBIBYTE, 5 * MEBIBYTE), (used - 1, 0)):
        limits.write_text(
            f"Max stack size  8 8 bytes\nMax address space  {limit}  unlimited  bytes\n"
        )
        assert free_bytes(CPU) == free


def test_without_the_files_of_linux_half_of_the_memory_counts_and_windows_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("_MEMINFO", "_OWN_GROUP", "_OWN_SIZES", "_OWN_LIMITS"):
        monkeypatch.setattr(memory, name, tmp_path / "missing")
    assert free_bytes(CPU) == os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2
    monkeypatch.delattr(os, "sysconf")

    def fill(status: Any) -> bool:
        """As GlobalMemoryStatusEx: MEMORYSTATUSEX, whose first member is its size in bytes."""
        values = struct.unpack("<IIQQQQQQQ", bytes(status))
        assert values[0] == struct.calcsize("<IIQQQQQQQ")
        new = struct.pack("<IIQQQQQQQ", values[0], 50, 16 << 30, 7 << 30, 1, 2, 3, 4, 5)
        ctypes.memmove(status, new, len(new))
        return True

    kernel = SimpleNamespace(GlobalMemoryStatusEx=fill)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert free_bytes(CPU) == 7 << 30


def test_the_peak_counts_tensors_that_exist_at_the_same_time() -> None:
    held = torch.ones(1000)
    views: list[Tensor] = []

    def work() -> None:
        first = torch.empty(100)  # 400 bytes
        second = held + 1  # 4,000: together the peak
        views.extend((first[:50], held[:10]))  # nothing new
        held.add_(1)
        del first, second, views[:]
        torch.empty(1000).neg_()  # 4,000 again, alone

    assert measure_peak(work, CPU) == (None, 4_400)
    result, peak = measure_peak(lambda: held.mul_(2).view(20, 50), CPU)
    assert (result.shape, peak) == ((20, 50), 0)


def test_compiled_code_is_measured_uncompiled() -> None:
    def work(values: torch.Tensor) -> torch.Tensor:
        return (values + 1).sum()

    compiled = torch.compile(work, backend="eager", fullgraph=True)
    values = torch.zeros(1000)
    found = [measure_peak(partial(run, values), CPU) for run in (compiled, work)]
    assert [(total.item(), peak) for total, peak in found] == [(1000.0, 4_004)] * 2


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="has no huge pages to give"
)
def test_huge_pages_take_addresses_and_no_memory() -> None:
    """The flag ``hg`` of Linux marks mappings that it backs with huge pages."""
    program = (
        "from nmt.device.device import prepare_process\n"
        "from nmt.device.device import use_huge_pages\n"
        "prepare_process(1); use_huge_pages(); print(open('/proc/self/smaps').read())"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=LIMIT
    )
    mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", found.stdout.decode())
    marked = [each for each in mappings if re.search(r"VmFlags:.* hg\b", each)]
    sizes, resident = (
        sum(int(re.findall(rf"{name}: *(\d+) kB", each)[0]) for each in marked)
        for name in ("Size", "Rss")
    )
    assert sizes * 1024 > 2**31 - 2**24
    assert resident * 1024 < 2**25


def test_auto_precision_follows_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instructions of a CPU, and the capability of a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for has_it, name, kind in (
        ("avx512_bf16", "bfloat16", "CPU with bfloat16"),
        ("amx_bf16", "bfloat16", "CPU with AMX"),
        ("", "float32", "CPU without bfloat16"),
    ):
        found = {has_it: True, "avx512_bw": True}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert has_fast_bf16(CPU) is bool(has_it)
        assert choose_precision("auto", CPU).name == name
        assert kind_of_machine() == kind
    names = {(6, 1): "float32", (7, 0): "float16", (7, 5): "float16", (8, 0): "bfloat16"}
    for capability, name in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, at=capability: at)
        assert choose_precision("auto", torch.device("cuda")).name == name


def test_bf16_keeps_bf16_weights_on_a_cpu_and_casts_elsewhere() -> None:
    on_cpu, on_gpu = (choose_precision("bfloat16", torch.device(name)) for name in ("cpu", "cuda"))
    assert (on_cpu.weight_dtype, on_gpu.weight_dtype) == (torch.bfloat16, torch.float32)
    with on_cpu.autocast():
        assert not torch.is_autocast_enabled("cpu")


@given(
    outcomes=st.lists(st.booleans(), max_size=60),
    first=st.sampled_from([1.0, 2.0, 1024.0, 2.0**126]),
)
def test_the_scale_halves_at_each_overflow_and_doubles_after_many_good_updates(
    outcomes: list[bool], first: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision_module, "_GROWTH_INTERVAL", 7)
        scale, expected, good = LossScale(CPU), first, 0
        scale.load_counters({"loss_scale": first, "good_in_a_row": 0})
        for skipped in outcomes:
            scale.adapt(torch.tensor(float(skipped)))
            good = 0 if skipped else good + 1
            if skipped:
                expected = max(expected / 2, 1.0)
            elif good % 7 == 0:
                expected = min(expected * 2, 2.0**127)
            assert scale.factor == expected
            other = LossScale(CPU)  # resumed here
            other.load_counters(scale.counters())
            scale = other
    scale = LossScale(CPU)
    scale.load_counters({})  # of another precision
    assert scale.counters() == {"loss_scale": 2.0**15, "good_in_a_row": 0}


class Peers(Processes):
    """Of one of several processes: earlier ones gather ``others``."""

    def __init__(self, rank: int, others: list[Any]) -> None:
        self.rank = rank
        self._others = others

    @override
    def gather(self, value: Any) -> list[Any]:
        return [*self._others, value]


def test_each_process_resumes_with_its_own_random_numbers() -> None:
    before = torch.get_rng_state()
    try:
        drawn: list[float] = []
        states: list[dict[str, Tensor]] = []
        for rank in range(2):
            torch.manual_seed(1)
            seed_rank(1, rank)
            states.append({"random/cpu": torch.get_rng_state()})
            drawn.append(torch.rand(1).item())
        assert drawn[0] != drawn[1]
        torch.set_rng_state(states[1]["random/cpu"])
        saved = random_state(CPU, Peers(1, states[:1]))
        for rank in range(2):
            restore_random_state(saved, CPU, Peers(rank, []))
            assert torch.rand(1).item() == drawn[rank]
        torch.manual_seed(7)  # one more process than before keeps its own
        state = torch.get_rng_state()
        restore_random_state(saved, CPU, Peers(2, []))
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_rng_state(before)


@pytest.mark.parametrize(("num_processes", "expected"), [(1, 6), (4, 1), (2, 3), (9, 1)])
def test_processes_share_the_cores_that_they_may_use(
    monkeypatch: pytest.MonkeyPatch, num_processes: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(num_processes))
    assert own_cores() == expected


def test_the_number_of_threads_is_set_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1")  # so that the heap of the tests stays
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    for threads in (3, None):
        prepare_process(threads)
    assert given == [3]


@given(values=st.lists(st.integers()), size=st.integers(1, 6))
def test_interleave_restores_the_order(values: list[int], size: int) -> None:
    assert interleave([]) == []
    assert interleave([values[rank::size] for rank in range(size)]) == values


@pytest.mark.parametrize(
    ("run_id", "size", "expected"),
    [("a run", "2", True), ("a run", "1", False), (None, "2", False)],
)
def test_a_process_of_torchrun_is_recognised(
    monkeypatch: pytest.MonkeyPatch, run_id: str | None, size: str, expected: bool
) -> None:
    """A WORLD_SIZE alone may be left over from something else."""
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if run_id is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    assert is_one_of_torchrun() == expected


@pytest.mark.parametrize("name", ["MASTER_ADDR", "RANK", "MASTER_PORT"])
def test_environments_without_peers_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """FAULT 74: a WORLD_SIZE that was left over from something else, for example."""
    place = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    place |= {"MASTER_PORT": "none"} if name == "MASTER_PORT" else {}
    for each, value in place.items():
        monkeypatch.setenv(each, value)
    if name != "MASTER_PORT":
        monkeypatch.delenv(name)
    with pytest.raises(DeviceError, match="The 2 processes cannot connect") as caught:
        join()
    assert "`devices`" in caught.value.fix
    # Before anything that may take minutes; processes of torchrun find each other at once.
    waiting = "waiting for all processes: WORLD_SIZE is 2; unset it to use one"
    assert caplog.messages.count(waiting) == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(DeviceError):
        join()
    assert caplog.messages.count(waiting) == 1


class Group:
    """Stands in for torch.distributed: the calls and groups of rank 1 of 3, or a lost peer."""

    def __init__(self, error: str | None = None) -> None:
        self.calls: list[tuple[str, object]] = []
        self._error = error

    def _call(self, name: str, group: object) -> None:
        self.calls.append((name, group))
        if self._error is not None:
            raise RuntimeError(self._error)

    def all_reduce(self, tensor: Tensor, *, async_op: bool) -> SimpleNamespace:
        assert async_op
        self.calls.append(("all_reduce", None))
        return SimpleNamespace(wait=lambda: self._finish(tensor))

    def _finish(self, tensor: Tensor) -> None:
        self._call("wait", None)
        tensor.mul_(3)

    def all_gather_object(self, found: list[Any], value: int, group: object) -> None:
        self._call("all_gather_object", group)
        found[:] = [value + rank for rank in range(len(found))]

    def broadcast_object_list(self, box: list[Any], src: int, group: object) -> None:
        self._call("broadcast_object_list", group)
        box[0] = f"of rank {src}"

    def barrier(self, group: object) -> None:
        self._call("barrier", group)


def joined(peers: Group, monkeypatch: pytest.MonkeyPatch) -> ProcessGroup:
    monkeypatch.setattr(ProcessGroup, "__init__", lambda _: None)
    processes = ProcessGroup()
    processes.rank, processes.size = 1, 3
    vars(processes).update(_distributed=peers, _patient="patient")
    return processes


def test_processes_exchange_values_in_the_order_of_their_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the sum of gradients may not wait for seven days."""
    peers = Group()
    processes = joined(peers, monkeypatch)
    tensor = torch.ones(2)
    PendingSum.wait(processes.begin_sum(tensor))
    assert tensor.tolist() == [3, 3]
    assert processes.gather(7) == [7, 8, 9]
    assert processes.share("own") == "of rank 0"
    ProcessGroup.wait(processes)
    names = ["all_gather_object", "broadcast_object_list", "barrier"]
    patient = [(name, "patient") for name in names]
    assert peers.calls == [("all_reduce", None), ("wait", None), *patient]


@pytest.mark.parametrize(
    "call",
    [
        lambda processes: PendingSum.wait(processes.begin_sum(torch.ones(2))),
        lambda processes: processes.gather(7),
        lambda processes: processes.share(7),
        ProcessGroup.wait,
    ],
)
def test_a_lost_peer_is_told_with_the_first_line_of_its_cause(
    call: Callable[[ProcessGroup], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = joined(Group("Connection closed [10.0.0.7]\nat frame 3"), monkeypatch)
    with pytest.raises(PeerLostError, match=r"Connection closed \[10\.0\.0\.7\]") as caught:
        call(processes)
    assert "frame" not in str(caught.value)
    assert caught.value.exit_code == 75


@pytest.mark.parametrize(("count", "expected"), [(1, True), (2, False), (None, False)])
def test_only_the_first_process_to_fail_prints_its_error(
    count: int | None, monkeypatch: pytest.MonkeyPatch, *, expected: bool
) -> None:
    def add(key: str, amount: int) -> int:
        assert amount == 1
        if count is None:
            raise RuntimeError(f"no store for {key}")
        return count

    assert Processes().is_first_to_fail()
    processes = joined(Group(), monkeypatch)
    vars(processes).update(_store=SimpleNamespace(add=add))
    assert processes.is_first_to_fail() == expected
