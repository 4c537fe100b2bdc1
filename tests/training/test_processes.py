"""Several processes train and end like a single process."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch

from nmt.checkpoint.files import checkpoint_dir, load_checkpoint
from nmt.config.data import BatchConfig
from nmt.data.loader import Loader
from nmt.data.prepared import PreparedData
from nmt.device.distributed import PEER_LOST
from nmt.files.atomic import run_lock
from tests.process import LIMIT
from tests.training.runs import Harm, Result, Run, Server, all_stderr, assert_equal, codes

NEVER = 100_000
CRASH = 99
"""What the server makes of an unexpected error; a process of its own ends with 1."""


@pytest.fixture(scope="module")
def stopped(server: Server) -> Run:
    """A run of two processes, the second of which was interrupted in update 12."""
    found = Run(server, "stopped")
    results = found.start(harm=Harm("update", 12, (signal.SIGINT,), rank=1))
    assert codes(results) == [130, 130], all_stderr(results)
    assert found.steps()[-1] == 13  # the others learn of it when the next update begins
    return found


def num_batches(server: Server, batch: dict[str, Any], epoch: int) -> int:
    """Count the batches of an epoch that all ranks share."""
    store = PreparedData.open(server.folder / "prepared").train
    return len(Loader(store, BatchConfig(**batch), weights=[1.0], seed=1).plan(epoch))


@pytest.mark.long
def test_uneven_shards_give_every_process_the_same_number_of_updates(
    server: Server, whole_of_two: Run
) -> None:
    """FAULT 27: of 65 batches, one process has 33 and the other 32."""
    batch = {"max_tokens": 80, "length_noise": 0, "gradient_accumulation": 4}
    odd = num_batches(server, batch, epoch=0)
    assert odd % 2 == 1
    settings = [f"batch.{key}={value}" for key, value in batch.items()]
    settings += ["training.max_steps=null", "training.max_epochs=2", "run_dir=runs/odd"]
    results = server.script(
        f"""
import nmt
from nmt.commands.train import fit
print(fit(nmt.load_config({str(whole_of_two.config)!r}, {settings})).step)
"""
    )
    assert codes(results) == [0, 0], all_stderr(results)
    # Accumulation leaves the last update of an epoch with one batch a process.
    assert (odd + 1) // 2 % 4 == 1
    expected = 2 * ((odd + 1) // 2 // 4 + 1)
    assert [int(result.stdout) for result in results] == [expected, expected]


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.long)])
def test_when_one_process_fails_all_end_and_one_error_is_printed(run: Run, rank: int) -> None:
    """FAULT 28: the first of them takes the store with it by which they talk."""
    results = run.start(harm=Harm("update", 7, message="a cable broke", rank=rank))
    assert results[rank].code == CRASH
    assert results[1 - rank].code == PEER_LOST
    assert all_stderr(results).count("RuntimeError: a cable broke") == 1
    assert all_stderr(results).count("Traceback") == 1
    assert "Another process" not in all_stderr(results)
    assert run.steps() == [5]


@pytest.mark.long
def test_a_kill_a_signal_and_another_launcher_keep_the_result(run: Run, server: Server) -> None:
    """FAULTS 19, 29 and 31: ``--devices`` goes on after a kill; torchrun ends it, to the bit."""
    rare: dict[str, Any] = {"save_every": NEVER, "validate_every": NEVER}
    settings: dict[str, Any] = {**rare, "log_every": NEVER, "save_every": 1}
    killed = run.launch(harm=Harm("update", 12, (signal.SIGKILL,), rank=1), **settings)
    assert killed.code == PEER_LOST
    assert re.search(r"Process 1 of 2 \(pid \d+\) was killed by SIGKILL", killed.stderr)
    assert "Traceback" not in killed.stderr
    stopped = run.launch("--exact", stop_by=signal.SIGTERM, **rare, log_every=1, max_steps=NEVER)
    assert stopped.code == 143, stopped.stderr
    assert "resuming at step 11" in stopped.stderr
    updates = [line["step"] for line in run.lines("update")]
    assert updates == [*range(12, updates[-1] + 1)]
    assert run.steps()[-1] == updates[-1]
    assert "Traceback" not in stopped.stderr
    assert "error: " not in stopped.stderr
    last = run.steps()[-1] + 5
    settings = {**rare, "max_steps": last, "log_every": 1}
    arguments = run.arguments("--exact", "--strict-resume", **settings)
    script = f"""
import runpy, sys
sys.argv = ["torchrun", "--nproc-per-node", "2", "-m", "nmt", "train", *{arguments}]
runpy.run_module("torch.distributed.run", run_name="__main__")
"""
    (result,) = server.script(script, num=None)
    assert result.code == 0, result.stderr
    uninterrupted = Run(server, "uninterrupted")
    uninterrupted.finish(num=2, **settings)
    assert result.stdout.count(f"{last} steps") == 1
    assert run.hashes(last) == uninterrupted.hashes(last)
    assert run.lines("validation") == uninterrupted.lines("validation")


@pytest.mark.usefixtures("whole_of_two")  # has prepared the data
@pytest.mark.long
def test_processes_follow_the_plan_of_one_and_repeat_it(server: Server, run: Run) -> None:
    minutes: dict[str, Any] = {"max_steps": None, "max_minutes": 0.05}
    minutes |= {"validate_every": 5, "save_every": 3}
    run.start(**minutes, harm=Harm("save", 2, (signal.SIGKILL,)))
    run.finish(num=2, **minutes)
    plans = (run.folder / "plans.jsonl").read_bytes()
    assert len(plans.splitlines()) > 1
    again = Run(server, f"{run.folder.name}-again")
    again.folder.mkdir(parents=True)
    (again.folder / "plans.jsonl").write_bytes(plans)
    again.finish(num=2, **minutes)
    assert (again.folder / "plans.jsonl").read_bytes() == plans
    last = run.steps()[-1]
    assert again.steps()[-1] == last
    assert again.hashes(last)["model.safetensors"] == run.hashes(last)["model.safetensors"]
    assert again.metrics() == run.metrics()


@pytest.mark.usefixtures("whole_of_two")  # has prepared the data
def test_processes_make_the_same_updates_as_one_process_that_accumulates(server: Server) -> None:
    """FAULT 30: float32 loss and gradient norm within 1e-5 of their size, in every update.

    Weights within 1e-5, but for the biases of keys: additions in another order change last bits,
    and softmax ignores these biases, so that their gradient is nothing but rounding, which Adam
    makes steps of. A third run goes on in other processes, over the end of an epoch; so many
    repeat no batch there.
    """
    batch = {"max_tokens": 240, "length_noise": 0}
    assert num_batches(server, batch, epoch=0) % 4 == 0
    flags = [f"--set=batch.{key}={value}" for key, value in batch.items()]
    flags += ["--set=model.dropout=0", "--json"]
    settings: dict[str, Any] = {"log_every": 1, "save_every": NEVER}
    one, two, moved = (Run(server, name) for name in ("one", "two", "moved"))
    one.finish(*flags, "--set=batch.gradient_accumulation=4", max_steps=10, **settings)
    two.finish(*flags, "--set=batch.gradient_accumulation=2", max_steps=10, num=2, **settings)
    results: list[Result] = []
    for num, steps in ((2, 3), (None, 5), (4, 10)):
        share = f"--set=batch.gradient_accumulation={4 // (num or 1)}"
        results = moved.finish(*flags, share, num=num, max_steps=steps, **settings)
    share = "--set=batch.gradient_accumulation=2"
    refused = moved.start(*flags, share, "--exact", num=2, **settings)
    warning = "not bit-exact: processes x batch.gradient_accumulation: was 1 x 4, is 4 x 1"
    assert warning in results[0].stderr
    assert sorted(codes(refused)) == [4, PEER_LOST]
    updates = one.lines("update")
    assert len(updates) == 10
    assert updates[-1]["epoch"] >= 1
    for run, keys, tolerance in ((two, ("loss", "gradient_norm"), 1e-5), (moved, ("loss",), 1e-4)):
        for key in keys:
            expected = pytest.approx([line[key] for line in updates], rel=tolerance)
            assert [line[key] for line in run.lines("update")] == expected
    losses = [run.lines("validation")[-1]["loss"] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    found = two.weights()
    for name, weight in one.weights().items():
        if not name.endswith("key_value.bias"):
            np.testing.assert_allclose(found[name], weight, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize(
    ("place", "call", "steps", "times"),
    [
        # After the processes have told each other whether they wish to stop.
        ("update.Updater._sum_gradients", 7, [5, 8], 1),
        # The other has done its part. Once more, in the validation that makes up for it.
        ("validation.Validator._sum_losses", 1, [5, 10], 2),
    ],
)
@pytest.mark.long
def test_a_signal_to_one_process_interrupts_the_work_of_all(
    server: Server,
    whole_of_two: Run,
    run: Run,
    *,
    place: str,
    call: int,
    steps: list[int],
    times: int,
) -> None:
    """FAULTS 19 and 20."""
    source = f"""
import os, signal
import nmt
from nmt.commands.train import fit
from nmt.training import update, validation
work, calls = {place}, 0
def interrupted(*arguments, **options):
    global calls
    calls += 1
    if calls == {call} and os.environ["RANK"] == "1":
        signal.raise_signal(signal.SIGTERM)
    return work(*arguments, **options)
{place} = interrupted
fit(nmt.load_config({str(whole_of_two.config)!r}, ["run_dir={run.folder}"]))
"""
    for _ in range(times):
        results = server.script(source)
        assert codes(results) == [143, 143], all_stderr(results)
        assert run.steps() == steps
        assert run.lines("validation") == []
    run.finish("--exact", "--strict-resume", num=2)
    assert_equal(run, whole_of_two)


def test_another_number_of_processes_is_refused(stopped: Run) -> None:
    """FAULT 31."""
    before = stopped.contents()
    fewer, more = stopped.start(num=1), stopped.start(num=3)
    for results, number in ((fewer, 1), (more, 3)):
        assert sorted(codes(results)) == [4] + [PEER_LOST] * (number - 1)
        assert all_stderr(results).count(f"num_processes: was 2, is {number}") == 1
        assert all_stderr(results).count("error: ") == 1
    assert stopped.contents() == before


def test_a_signal_to_one_process_stops_all_and_they_resume_exactly(
    stopped: Run, whole_of_two: Run, run: Run
) -> None:
    """FAULTS 20 and 31: with dropout, whose random numbers differ between the processes."""
    shutil.copytree(stopped.folder, run.folder)
    saved = load_checkpoint(checkpoint_dir(run.folder, 13)).optimizer
    generators = [torch.Generator().set_state(saved[f"random/cpu{rank}"]) for rank in ("", "/1")]
    assert generators[0].initial_seed() != generators[1].initial_seed()
    run.finish("--exact", "--strict-resume", num=2)
    assert_equal(run, whole_of_two)


@pytest.mark.long
def test_a_request_to_save_in_one_process_saves_in_all(whole_of_two: Run, run: Run) -> None:
    """FAULT 66: they agree at the start of the next update."""
    run.start(harm=Harm("update", 12, (signal.SIGUSR1,), rank=1))
    saved = re.findall(r"saved step-(\d+)", run.log())
    assert [int(step) for step in saved] == [5, 10, 13, 15, 20, 25, 30]
    assert_equal(run, whole_of_two)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGKILL, -9)])
@pytest.mark.long
def test_a_launcher_that_ends_takes_its_processes_along(run: Run, number: int, code: int) -> None:
    """FAULTS 66 and 75: they save, and release the lock."""
    rare: dict[str, Any] = dict.fromkeys(["save_every", "validate_every", "max_steps"], NEVER)
    result = run.launch("--exact", stop_by=number, log_every=1, **rare)
    assert result.code == code, result.stderr
    deadline = time.monotonic() + LIMIT
    while not run.steps() and time.monotonic() < deadline:
        time.sleep(0.1)
    last = run.steps()[-1]
    time.sleep(1)
    with run_lock(run.folder):
        assert run.steps() == [last]
    assert f"stopped at step {last:,}" in run.log()


@pytest.mark.long
def test_two_processes_get_the_same_validation_scores_as_one(server: Server) -> None:
    """The same translations, so the same BLEU and chrF; the loss within 1e-6 of its size."""
    # One process learns pairs by heart; two go on from there, without a step that would be felt.
    data: dict[str, Any] = {"train.0.max_pairs": 30, "valid.max_pairs": 15}
    data |= {"valid.source": "train.de", "valid.target": "train.en"}
    old = "source: valid.de, target: valid.en, max_pairs: 7"
    data |= {"replay.train": f"[{{{old}}}]", "replay.valid": f"{{{old}, name: old}}"}
    flags = [f"--set=data.{key}={value}" for key, value in data.items()]
    flags += ["--set=prepared_dir=by-heart", "--set=model.dropout=0", "--set=batch.max_tokens=66"]
    settings = {"validation.max_sentences": 15, "validate_every": NEVER, "save_every": NEVER}
    one, two = Run(server, "one-validates"), Run(server, "two-validate")
    one.finish(*flags, num=1, **settings, max_steps=80, **{"schedule.peak_lr": 0.01})
    still: dict[str, Any] = {"init_from": str(one.folder), "schedule.peak_lr": 1e-30}
    two.finish(*flags, num=2, **settings, **still, max_steps=1)
    for name, weight in one.weights().items():
        np.testing.assert_allclose(two.weights()[name], weight, atol=1e-20, rtol=0)
    first, found = two.lines("validation")
    assert (first["step"], found["step"]) == (0, 1)  # before the first update, to see forgetting
    expected = one.lines("validation")[-1]
    assert expected["bleu"] > 5
    assert expected["chrf"] > 30
    for name in ("valid", "old"):
        same = expected["sets"][name]
        for scores in (first["sets"][name], found["sets"][name]):
            assert scores["loss"] == pytest.approx(same["loss"], rel=1e-6)
            for key in ("bleu", "chrf", "samples"):
                assert scores[key] == same[key]


def test_processes_exchange_values_and_notice_a_lost_peer(server: Server) -> None:
    """FAULT 29."""
    results = server.script(
        """
import json, os
import torch
from nmt.device.distributed import PeerLostError, join
me = join()
numbers = torch.tensor([1, 10 ** me.rank])
me.begin_sum(numbers).wait()
first = me.gather(me.is_first_to_fail())
told = [numbers.tolist(), me.gather("ab"[me.rank]), me.share(f"of {me.rank}"), sorted(first)]
me.wait()
print(json.dumps([me.rank, me.size, *told]), flush=True)
if me.rank == 1:
    os._exit(0)
for call in (
    lambda: me.begin_sum(torch.ones(1)).wait(),
    lambda: me.gather(1), lambda: me.share(1), lambda: me.wait(),
):
    try:
        call()
    except PeerLostError as error:
        print(error)
"""
    )
    assert codes(results) == [0, 0], all_stderr(results)
    for rank, result in enumerate(results):
        told = json.loads(result.stdout.splitlines()[0])
        assert told == [rank, 2, [2, 11], ["a", "b"], "of 0", [False, True]]
    assert results[0].stdout.count("Another process has ended") == 4
