"""Terms that training shows to the model: words that are aligned in the training text."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.checkpoint.run import changed_settings, identity
from nmt.config.data import ANNOTATION
from nmt.config.run import RunConfig
from nmt.data.prepared import LINKS, PreparedData
from nmt.data.store import ParallelStore
from nmt.data.terms import TermAnnotator
from nmt.text.tokenizer import load_tokenizers
from tests.commands.preparing import ENGLISH, NUMBERS, config_for, prepare
from tests.examples import FEW

Read = Callable[..., list[str]]
TERM = re.compile(f"{ANNOTATION[0]} ([^{ANNOTATION[1]}]*){ANNOTATION[1]}")


def config_with_terms(folder: Path, **changes: Any) -> RunConfig:
    config = config_for(folder, tokenizer={"vocab_size": 70, "byte_fallback": False}, **changes)
    data = config.data.model_dump(mode="json") | {"glossary": {"share": 0.5}}
    return RunConfig.model_validate(config.model_dump(mode="json") | {"data": data})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Numbers in German and English words, one by one."""
    config = config_with_terms(tmp_path_factory.mktemp("numbers"))
    prepare(config)
    return PreparedData.open(config.prepared_dir)


def annotator(prepared: PreparedData, share: float, longest: int = 200) -> TermAnnotator:
    links = ParallelStore.open(prepared.folder / LINKS)
    tokenizers = load_tokenizers(prepared.tokenizer_dir)
    return TermAnnotator(tokenizers, links, share, seed=1, longest=longest)


@pytest.fixture(scope="module")
def read(prepared: PreparedData) -> Read:
    """Return the sources of rows in an epoch."""

    def read(annotate: TermAnnotator, epoch: int, rows: Sequence[int]) -> list[str]:
        places = np.array(rows)
        stored = prepared.train.source.ids(places), prepared.train.target.ids(places)
        sources, targets = annotate(epoch, places, stored)
        assert targets is stored[1]
        return [annotate.tokenizers.source.decode(ids) for ids in sources.rows()]

    return read


def test_terms_translate_the_words_in_their_place(prepared: PreparedData, read: Read) -> None:
    german = dict(zip(ENGLISH, NUMBERS, strict=True))
    rows = range(len(prepared.train))
    plain = read(annotator(prepared, 0.0), 0, rows)
    lengths = set[int]()
    numbers = Counter[int]()  # of terms in a source; a repeated word may have no link
    for source, text in zip(read(annotator(prepared, 1.0), 0, rows), plain, strict=True):
        matches = list(TERM.finditer(source))
        numbers[len(matches)] += 1
        for match in matches:
            term = match[1].split()
            lengths.add(len(term))
        words = TERM.sub(r"\1", source).split()
        assert " ".join(german.get(word, word) for word in words) == text
    assert lengths >= {1, 2}
    assert max(numbers) == 3
    assert numbers[0] < len(rows) / 10


def test_the_model_reads_in_training_what_it_reads_when_translating(
    prepared: PreparedData, read: Read
) -> None:
    annotate = annotator(prepared, 1.0)
    rows = np.arange(30)
    stored = prepared.train.source.ids(rows), prepared.train.target.ids(rows)
    sources, _ = annotate(0, rows, stored)
    texts = read(annotate, 0, rows.tolist())
    assert annotate.tokenizers.source.encode_batch(texts) == sources.rows()


@FEW
@given(rows=st.lists(st.integers(0, 99), min_size=1, max_size=12), epoch=st.integers(0, 3))
def test_the_terms_of_a_pair_depend_only_on_seed_epoch_and_row(
    prepared: PreparedData, read: Read, rows: list[int], epoch: int
) -> None:
    """In other processes, too."""
    annotate = annotator(prepared, 0.5)
    sent = pickle.loads(pickle.dumps(annotate))
    assert read(annotate, epoch, rows) == [read(sent, epoch, [row])[0] for row in rows]


def test_epochs_show_other_terms_in_a_share_of_the_pairs(
    prepared: PreparedData, read: Read
) -> None:
    rows = range(len(prepared.train))
    first, second = (read(annotator(prepared, 0.5), epoch, rows) for epoch in (0, 1))
    shares = [np.mean([ANNOTATION[0] in text for text in texts]) for texts in (first, second)]
    assert all(0.3 < share < 0.7 for share in shares)
    assert sum(a != b for a, b in zip(first, second, strict=True)) > len(rows) / 2


def test_a_source_that_would_be_too_long_stays(prepared: PreparedData, read: Read) -> None:
    rows = range(len(prepared.train))
    longest = int(prepared.train.source.lengths.max())
    texts = read(annotator(prepared, 1.0, longest), 0, rows)
    is_annotated = [ANNOTATION[0] in text for text in texts]
    assert any(is_annotated)
    assert not all(is_annotated)


def test_without_a_share_nothing_is_aligned(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    prepare(config)
    assert not (config.prepared_dir / LINKS).exists()
    symbols = load_tokenizers(config.prepared_dir / "tokenizer").source.symbols
    assert not symbols.keys() & set(ANNOTATION)


def test_another_share_is_another_training(tmp_path: Path) -> None:
    """The stored links are the same."""
    config = config_with_terms(tmp_path)
    data = config.data.model_dump(mode="json") | {"glossary": {"share": 0.3}}
    other = RunConfig.model_validate(config.model_dump(mode="json") | {"data": data})
    recorded, present = (identity(each, data_hash="", vocab_hash="") for each in (config, other))
    assert changed_settings(recorded, present) == ["data.glossary.share: was 0.5, is 0.3"]
    assert recorded["filters"] == {"max_length": config.filters.max_length}
