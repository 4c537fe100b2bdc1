"""A translation does not depend on other lines."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import nmt
from nmt.inference.translator import Translator
from tests.extras.exchange.exported import (
    needs_ctranslate2,
    run_config,
    write_run,
    write_shortlist,
)
from tests.inference.conftest import sentences
from tests.inference.models import train_tokenizer

pytestmark = needs_ctranslate2
LINES = sentences(30, seed=11)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("independent")
    write_run(folder / "run", train_tokenizer(folder / "tokenizer"), run_config({}))
    write_shortlist(folder / "run")
    return folder / "run"


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        ("ctranslate2", "float32"),
        ("ctranslate2", "int8"),
        pytest.param("torch", "float32", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("shortlist", [False, True])
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.long
def test_a_line_has_one_translation_alone_in_a_file_and_in_every_batch(
    engine: str, dtype: str, shortlist: bool, beam_size: int, run_dir: Path, tmp_path: Path
) -> None:
    chosen: dict[str, Any] = {"engine": engine, "dtype": dtype, "beam_size": beam_size}
    translator = Translator.load(run_dir, device="cpu", threads=1, shortlist=shortlist, **chosen)
    alone = [translator.translate([line])[0].text for line in LINES]
    for batch_tokens, rows in itertools.product(
        (1, 40, "auto"), (slice(None), slice(None, None, -3))
    ):
        changed = translator.with_options(batch_tokens=batch_tokens)
        assert [result.text for result in changed.translate(LINES[rows])] == alone[rows]
    (tmp_path / "in").write_text("\n".join(LINES), "utf-8")
    overrides = (f"decoding.shortlist={str(shortlist).lower()}",)
    nmt.translate(
        nmt.TranslateOptions(
            model=run_dir, input=tmp_path / "in", output=tmp_path / "out", device="cpu", threads=1,
            set_=overrides, **chosen,
        )
    )  # fmt: skip
    assert (tmp_path / "out").read_text("utf-8").splitlines() == alone


def test_both_engines_use_the_shortlist_of_a_sentence_alone(run_dir: Path) -> None:
    ours, theirs = (
        Translator.load(
            run_dir, engine=engine, shortlist=True, device="cpu", threads=1, guard=False
        )
        for engine in ("torch", "ctranslate2")
    )
    texts = [result.text for result in ours.translate(LINES)]
    assert [result.text for result in theirs.translate(LINES)] == texts
    whole = theirs.with_options(shortlist=False).translate(LINES)
    assert [result.text for result in whole] != texts


@pytest.mark.parametrize("beam_size", [1, 4])
def test_other_lines_do_not_change_a_bit_of_a_score_in_int8(beam_size: int, run_dir: Path) -> None:
    """Differences of rounding would become other texts of a few lines."""
    translator = Translator.load(
        run_dir, dtype="int8", beam_size=beam_size, device="cpu", threads=1, guard=False
    )
    together = [result.score for result in translator.translate(LINES)]
    assert together == [translator.translate([line])[0].score for line in LINES]
