"""The README of a model folder: what hubs read at its top, and what people read below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import read_state
from nmt.checkpoint.model_folder import RECORD, ModelBundle
from nmt.checkpoint.run import trained_on
from nmt.config.loader import dump_document
from nmt.config.run import RunConfig
from nmt.data.corpus import corpus_names
from nmt.errors import DataError, shell_command
from nmt.files.json_file import parse_json, read_json
from nmt.version import __version__

_FENCE = "---\n"


def model_card(config: RunConfig, origin: str, facts: Mapping[str, str], sections: str = "") -> str:
    """Return the card of a model.

    Args:
        config: Of the model.
        origin: Sentences that say where the model is from.
        facts: Rows of the table.
        sections: What follows.
    """
    source, target = config.source_language, config.target_language
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""{front_matter(config)}
# {config.name}

Translates {source} to {target}. {origin} Written by nmt {__version__}.

| | |
|---|---|
{rows}

## Use

```sh
nmt translate FOLDER < in.{source} > out.{target}
```

```python
import nmt
print(nmt.Translator.load("FOLDER").translate(["..."])[0].text)
```

FOLDER is the folder of this file; its manifest has the sha256 of every file, which is compared.
{sections}"""


def front_matter(config: RunConfig, **values: Any) -> str:
    """Return what hubs read, with more ``values`` such as ``license``; None is left out."""
    whole: dict[str, Any] = {"language": [config.source_language, config.target_language]}
    whole |= {"pipeline_tag": "translation", "library_name": "nmt", "tags": ["nmt"], **values}
    given = {key: value for key, value in whole.items() if value is not None}
    return f"{_FENCE}{dump_document(given)}{_FENCE}"


def without_front_matter(card: str) -> str:
    """Return what people read of a card."""
    return card.partition(f"\n{_FENCE}")[2] if card.startswith(_FENCE) else card


def training_sections(bundle: ModelBundle, source: Path) -> str:
    """Return what a run folder tells about the data and the scores of its model."""
    data, scores = "".join(_data(bundle.config, source)), "".join(_scores(bundle, source))
    return f"\n## Training data\n\n{data}\n## Scores\n\n{scores}"


def _data(config: RunConfig, source: Path) -> Iterator[str]:
    """Names of the corpora, and if the prepared data are still there, counts and hashes."""
    prepared = trained_on(source, config)
    for name in corpus_names(config.data.train):
        counts = prepared.counts.get(name, {}) if prepared else {}
        pairs = f": {counts['kept']:,} of {counts['read']:,} pairs" if counts else ""
        yield f"- {name}{pairs}\n"
    if prepared is None:
        yield "\nThe prepared data were not there at the export: hashes are not known.\n"
        return
    if prepared.sources:
        yield "\n| file | sha256 |\n|---|---|\n"
    for path, facts in prepared.sources.items():
        yield f"| {Path(path).name} | `{facts['sha256']}` |\n"
    yield f"\nsha256 of all token ids: `{prepared.data_hash}`\n"


def _scores(bundle: ModelBundle, source: Path) -> Iterator[str]:
    """What was measured on the validation set of these weights."""
    validation = bundle.config.training.validation
    if (bundle.folder / RECORD).is_file():
        found = {validation.metric: read_state(bundle.folder, RECORD).get("score")}
    else:
        found = _recorded(source / "metrics.jsonl", bundle.step)
    rows = [f"| {name} | {value:.2f} |\n" for name, value in found.items() if value is not None]
    if not rows:
        yield "None is recorded.\n"
        return
    search = "greedy search" if validation.beam_size == 1 else f"beam {validation.beam_size}"
    yield f"Validation set, {search} (`loss` is in nats per subword):\n\n| metric | value |\n"
    yield "|---|---|\n"
    yield from rows


def _recorded(path: Path, step: int) -> dict[str, float | None]:
    """The validation after ``step``, as the run has noted it."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # the last may be half a line
        events: list[dict[str, Any]] = [parse_json(line) for line in lines]
    except (OSError, ValueError):
        return {}
    for event in reversed(events):
        if event.get("kind") == "validation" and event.get("step") == step:
            return {name: event.get(name) for name in ("loss", "perplexity", "bleu", "chrf")}
    return {}


def model_index(name: str, files: Sequence[Path]) -> list[dict[str, Any]] | None:
    """Return what hubs read about scores; None without any.

    Args:
        name: Of the model.
        files: What `nmt evaluate` printed as JSON.

    Raises:
        DataError: A file holds something else.
    """
    results = [result for path in files for result in _results(path)]
    return [{"name": name, "results": results}] if results else None


def _results(path: Path) -> Iterator[dict[str, Any]]:
    try:
        report = read_json(path)
        for part in report.get("evaluations", [report]):
            test_set = str(part.get("test_set") or path.stem)
            metrics = []
            for score in part["systems"][0]["scores"]:
                name, value = score["metric"], float(score["value"])
                args = {"signature": score["signature"]}
                metrics.append({"type": name, "value": value, "name": name, "args": args})
            dataset = {"name": test_set, "type": test_set}
            yield {"task": {"type": "translation"}, "dataset": dataset, "metrics": metrics}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"{path} holds no scores that `nmt evaluate` printed as JSON."
        fix = f"Write them again: {shell_command('evaluate', 'MODEL', json=True)} > {path}"
        raise DataError(problem, fix=fix) from error
