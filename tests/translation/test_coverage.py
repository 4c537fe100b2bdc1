"""How much of a source an output speaks of."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from nmt.checkpoint.model_folder import SHORTLIST as NAME
from nmt.data.lexicon import likely_translations
from nmt.data.store import ParallelStore, StoreWriter
from nmt.files.lines import read_lines
from nmt.runtime.shortlist import shortlist_bytes
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.translation.coverage import SourceCoverage
from nmt.translation.guard import GuardedLine, alarms, calibrate


def test_what_stands_in_nearly_every_output_covers_nothing() -> None:
    common = list(range(100, 160))
    coverage = SourceCoverage(common, [[100, 4], [149], [150], [-1, -1]])

    assert coverage.share([0], [100]) == 1 / 2
    assert coverage.share([0], [4]) == 1
    assert coverage.share([1, 3, 3], [149]) == 1  # nothing is known of them
    assert coverage.share([2], [150]) == 1  # the 51st is not too common


def test_only_the_likeliest_translations_count() -> None:
    coverage = SourceCoverage([], [list(range(4, 30))])

    assert coverage.share([0], [13]) == 1
    assert coverage.share([0], [14]) == 1 / 2
    assert coverage.share([], []) == coverage.share([], [7]) == 1


def test_the_lists_come_from_the_file_of_a_model(tmp_path: Path) -> None:
    assert SourceCoverage.load(ShortlistFile(tmp_path, (2, 10))) is None
    candidates = torch.tensor([[-1, -1], [7, 9]], dtype=torch.int32)
    (tmp_path / NAME).write_bytes(shortlist_bytes(torch.tensor([9]), candidates))
    coverage = SourceCoverage.load(ShortlistFile(tmp_path, (2, 10)))

    assert coverage is not None
    assert [coverage.share([1], [token]) for token in (7, 9)] == [1, 1 / 2]


def test_sentences_about_something_else_are_found_in_real_text(
    shared_data: Path, tmp_path: Path
) -> None:
    """Captions are much alike; their words are the tokens here. Learned from 8,000 pairs."""
    folder = shared_data / "multi30k" / "lc_norm_tok"
    sides = [
        [line.split() for line in read_lines(folder / f"train.lc.norm.tok.{language}.gz")[:9000]]
        for language in ("de", "en")
    ]
    ids: list[list[list[int]]] = []
    for side in sides:
        numbers: dict[str, int] = {}
        ids.append([[numbers.setdefault(word, len(numbers)) for word in line] for line in side])
    sizes = [1 + max(max(line) for line in side if line) for side in ids]
    with StoreWriter(tmp_path / "store", max(sizes)) as writer:
        writer.append(ids[0][:8000], ids[1][:8000], 0, range(8000))
    store = ParallelStore.open(tmp_path / "store")
    common = np.argsort(-store.token_counts("target", sizes[1]), kind="stable")[:200]
    table = likely_translations(store, (sizes[0], sizes[1]), 20)
    coverage = SourceCoverage(common.tolist(), table.tolist())

    def lines(outputs: list[list[int]]) -> list[GuardedLine]:
        return [
            GuardedLine("a", "a", source, output, coverage.share(source, output))
            for source, output in zip(ids[0][8000:], outputs, strict=True)
        ]

    right = lines(ids[1][8000:])
    limits = calibrate(right[:500])
    wrong = lines(random.Random(1).sample(ids[1][8000:], 1000))
    caught = sum("coverage" in alarms(line, limits) for line in wrong)
    disturbed = sum("coverage" in alarms(line, limits) for line in right[500:])
    assert caught > 400
    assert disturbed <= 5
