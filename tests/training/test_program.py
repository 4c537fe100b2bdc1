"""`training.validation.command`: a user's program scores the validations."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from nmt.checkpoint.files import ValidationScore, list_checkpoints, read_best, read_state
from nmt.commands.average import average
from nmt.commands.options import AverageOptions
from nmt.commands.train import fit
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError, NmtError
from nmt.extras.planning.dry_run import estimate
from nmt.metrics.program import score_by_program
from nmt.training.checkpoints import Progress
from tests.training.runs import Run, codes
from tests.training.toy import make_config, write_corpus

# Appends the numbers of lines and the score to calls.txt; each call has a lower score.
SCORER = """
import os, sys, time
from pathlib import Path
counts = [len(Path(path).read_text(encoding="utf-8").splitlines()) for path in sys.argv[1:]]
calls = Path("calls.txt")
number = len(calls.read_text().splitlines()) if calls.exists() else 0
calls.open("a").write(f"{counts} {os.environ.get('RANK')}\\n")
if Path("broken").exists() and number:
    sys.exit("line 1\\n" * 9 + "no more\\nquota left")
print("score of", counts[0], "lines:", 10 - number)
"""


@pytest.fixture
def scorer(tmp_path: Path) -> list[str]:
    write_corpus(tmp_path)
    Path("score.py").write_text(SCORER)
    return [sys.executable, "score.py", "{source}", "{hypothesis}", "{reference}"]


def lines(config: RunConfig, kind: str = "validation") -> list[dict[str, Any]]:
    found = map(json.loads, (config.run_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if line["kind"] == kind]


def test_the_score_selects_the_best_checkpoint_and_is_reported(scorer: list[str]) -> None:
    """The first call has the references as translations: an error would stop the start."""
    config = make_config(
        validation={"command": scorer, "metric": "command", "max_sentences": 8}, keep_last=9
    )
    summary = fit(config)
    assert [line["command"] for line in lines(config)] == [9, 8]
    assert Path("calls.txt").read_text() == "[8, 8, 8] None\n" * 3
    best = read_best(config.run_dir)
    assert best is not None
    assert best.name == "step-00000005"
    assert summary.as_text().endswith("step-00000005 (validation command 9.00, beam size 1)")
    assert "command 9.00 (" in (config.run_dir / "log.txt").read_text()
    page = (config.run_dir / "report.html").read_text()
    assert "<h3>command</h3>" in page
    assert re.search(r"Best command.{,40}9.00", page, re.DOTALL)


@pytest.mark.parametrize("metric", ["bleu", "command"])
def test_a_program_that_fails_later_is_a_warning_with_its_last_words(
    scorer: list[str], metric: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path("broken").touch()  # from the second call on
    config = make_config(validation={"command": scorer, "metric": metric, "max_sentences": 8})
    fit(config)
    told = [each.message for each in caplog.records if "command has no score" in each.message]
    log = (config.run_dir / "log.txt").read_text()
    assert log.count("command failed") == len(told)
    assert "command nan" not in log
    assert log.count("no validation has a score") == (metric == "command")
    scores = {"bleu": [10, None], "command": [None, None]}[metric]
    assert [line["command"] for line in lines(config)] == scores
    assert len(told) == scores.count(None)
    assert told[0].endswith(
        "failed with status 1:\n" + "    line 1\n" * 3 + "    no more\n    quota left."
    )
    assert [step for step, _ in list_checkpoints(config.run_dir)][-1] == 10
    Path("broken").unlink()
    fit(config)  # a checkpoint without scores can be resumed


def test_validations_without_a_score_neither_stop_training_nor_are_best(scorer: list[str]) -> None:
    """Nor does a resumed run differ; the average of the last checkpoints has no score either."""
    Path("broken").touch()
    validation = {"command": scorer, "metric": "command", "max_sentences": 8}
    settings: dict[str, Any] = {"validation": validation, "patience": 1, "validate_every": 2}
    first, again = make_config(**settings, average_last=2, max_steps=6), make_config(**settings)
    summary = fit(first)
    assert (summary.reason, summary.step, summary.best) == ("budget", 6, "step-00000006")
    assert summary.as_text().endswith("step-00000006 (validation command no score)")
    assert read_best(first.run_dir) is None
    with pytest.raises(CheckpointError, match="has no scores"):
        average(AverageOptions(run=first.run_dir, output=Path("mean"), best=1))
    Path("calls.txt").unlink()  # so that the trial succeeds
    assert fit(again).step == 10
    state = read_state(list_checkpoints(again.run_dir)[-1][1])
    history = Progress.from_dict(state["progress"]).history
    assert list(history) == [2, 4, 6, 8, 10]
    history.update({4: ValidationScore(1.0), 6: ValidationScore(0.5)})  # two among failures
    stops = [history.should_stop(patience, after=0, has_limit=True) for patience in (1, 2)]
    assert (history.best, stops) == (4, [True, False])


@pytest.mark.parametrize(("command", "problem"), [
    (["./missing"], "there is no program ./missing"),
    ([sys.executable, "-c", "raise SystemExit(3)"], "failed with status 3:"),
    ([sys.executable, "-c", "print('5.0 points')"], "did not print a number"),
    ([sys.executable, "-c", "print('nan')"], "printed nan"),
])  # fmt: skip
def test_a_program_without_a_score_ends_the_start_if_it_selects_the_best(
    command: list[str], problem: str, scorer: list[str]
) -> None:
    del scorer
    config = make_config(validation={"command": [*command, "{hypothesis}"], "metric": "command"})
    with pytest.raises(NmtError, match=re.escape(problem)):
        fit(config)
    assert not list_checkpoints(config.run_dir)


@pytest.mark.parametrize(("changes", "problem"), [
    ({"validation": {"command": "./missing {hypothesis}"}}, "there is no program ./missing"),
    ({"trackers": ["wandb"]}, "needs wandb"),
])  # fmt: skip
@pytest.mark.parametrize("start", [fit, estimate])
def test_missing_tools_are_reported_before_data_are_prepared(
    changes: dict[str, Any], problem: str, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(Path())
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = make_config(**changes)
    with pytest.raises(ConfigError, match=problem):
        start(config)
    assert not config.prepared_dir.exists()


def test_a_program_gets_all_references_of_each_set() -> None:
    """A word is repeated for each of them; the other words are not."""
    write_corpus(Path())
    lines_of_target = Path("valid.en").read_text()
    Path("upper.en").write_text(lines_of_target.upper())
    Path("save.py").write_text(
        "import json, sys\n"
        "texts = [[name, *open(path).read().splitlines()]\n"
        "         for name, _, path in (word.partition('=') for word in sys.argv[1:])]\n"
        "open('calls.txt', 'a').write(json.dumps(texts) + '\\n')\n"
        "print(7)\n"
    )
    words = ["save.py", "source={source}", "reference={reference}", "hypothesis={hypothesis}"]
    config = make_config(
        validation={"command": [sys.executable, *words], "metric": "command"}, max_steps=5
    )
    both = {"source": (Path("valid.de"),), "target": (Path("valid.en"), Path("upper.en"))}
    several = config.data.valid[0].model_copy(update={"name": "several", **both})
    data = config.data.model_copy(update={"valid": (*config.data.valid, several)})
    fit(config.model_copy(update={"data": data}))
    calls = [json.loads(line) for line in Path("calls.txt").read_text().splitlines()]
    names = [[name for name, *_ in call] for call in calls]
    one = ["source", "reference", "hypothesis"]
    two = ["source", "reference", "reference", "hypothesis"]
    assert names == [one, two, one, two]  # the trial, and a validation
    targets = lines_of_target.splitlines()
    for call in calls[1::2]:
        assert [lines for _, *lines in call[1:3]] == [targets, [line.upper() for line in targets]]


def test_the_last_word_is_the_score_and_no_shell_reads_the_command() -> None:
    texts = {"source": [["ä b"]], "hypothesis": [["$HOME", "x\u2028y"]]}
    show = "import sys; print(open(sys.argv[2], 'rb').read(), sys.argv[1], '-1.5e1')"
    assert score_by_program([sys.executable, "-c", show, "$(id)", "{hypothesis}"], texts) == -15


@pytest.mark.long
def test_the_first_of_two_processes_runs_the_program_as_a_program_of_its_own(run: Run) -> None:
    (run.server.folder / "score.py").write_text(SCORER)
    command = f"{sys.executable} score.py {{source}} {{hypothesis}} {{reference}}"
    validation = {"command": command, "max_sentences": 7}
    calls = run.server.folder / "calls.txt"
    calls.unlink(missing_ok=True)
    assert codes(run.start(validation=validation)) == [0, 0]
    assert calls.read_text() == "[7, 7, 7] None\n" * len(run.lines("validation"))
    assert [line["command"] for line in run.lines("validation")] == [10, 9, 8]


@pytest.mark.long
def test_a_signal_stops_a_program_and_the_resumed_run_repeats_the_validation(
    run: Run, whole: Run
) -> None:
    marker = run.server.folder / "started"
    marker.unlink(missing_ok=True)
    source = f"import time; open({str(marker)!r}, 'a').write('x'); time.sleep(600)"
    validation = {"command": [sys.executable, "-c", source, "{hypothesis}"], "max_sentences": 8}
    arguments = run.arguments(validation=validation)
    stopped = run.server.train(*arguments, stop_when=marker, stop_by=signal.SIGTERM)
    assert codes(stopped) == [143]
    assert run.steps()[-1] == 10
    run.finish(validation={"max_sentences": 8, "command": []})
    assert run.hashes() == whole.hashes()
