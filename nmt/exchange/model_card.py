"""The README of a model folder: what the model is, what it was made of and how to use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import read_state
from nmt.checkpoint.model_folder import ModelBundle
from nmt.checkpoint.retention import RECORD
from nmt.checkpoint.run import trained_on
from nmt.config.run import RunConfig
from nmt.data.corpus import corpus_names
from nmt.files.json_file import parse_json
from nmt.model.transformer import count_parameters
from nmt.version import __version__

NAME = "README.md"
_METRICS = "metrics.jsonl"


def model_card(bundle: ModelBundle, source: Path, *, form: str, size_bytes: int) -> str:
    """Return the card.

    Args:
        bundle: The model.
        source: Run or model folder it was loaded from.
        form: What the weights are stored as, in words.
        size_bytes: Bytes of the stored weights.
    """
    config = bundle.config
    languages = config.source_language, config.target_language
    tags = "\n".join(f"- {language}" for language in languages)
    return f"""---
language:
{tags}
pipeline_tag: translation
library_name: nmt
---

# {config.name}

Translates {languages[0]} to {languages[1]}. Trained for {bundle.step:,} updates and exported with \
nmt {__version__}.

| | |
|---|---|
{_table(_shape(bundle, form, size_bytes))}

## Use

```sh
nmt translate FOLDER < in.{languages[0]} > out.{languages[1]}
```

```python
import nmt

translator = nmt.Translator.load("FOLDER")
print(translator.translate(["..."])[0].text)
```

FOLDER is the folder of this file. It is complete: weights, configuration, tokenizer and a manifest
with the sha256 of every file, which is compared when the model is loaded.

## Training data

{"".join(_data(config, source))}
## Scores

{"".join(_scores(bundle, source))}"""


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(f"| {name} | {value} |" for name, value in rows.items())


def _shape(bundle: ModelBundle, form: str, size_bytes: int) -> dict[str, str]:
    model, config = bundle.config.model, bundle.config
    widths = f"width {model.model_dim}, inner width {model.ff_dim}"
    decoder = f"width {model.decoder_dim}, inner width {model.decoder_ff}"
    sizes = bundle.tokenizers.vocab_sizes
    kind = config.tokenizer.kind
    vocabulary = f"{sizes[0]:,} and {sizes[1]:,} entries ({kind})"
    if config.tokenizer.joint:
        vocabulary = f"{sizes[0]:,} entries ({kind}, joint)"
    return {
        "parameters": f"{sum(count_parameters(bundle.model).values()):,}",
        "encoder": f"{model.encoder_layers} layers, {widths}, {model.num_heads} heads",
        "decoder": f"{model.decoder_layers} layers, {decoder}, {model.num_heads} heads",
        "vocabulary": vocabulary,
        "longest line": f"{config.filters.max_length:,} subwords; longer ones are cut and joined",
        "weights": f"{form}, {size_bytes / 2**20:,.1f} MiB",
    }


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
        score = read_state(bundle.folder, RECORD).get("score")
        found: dict[str, float] = {} if score is None else {validation.metric: score}
    else:
        found = _recorded(source / _METRICS, bundle.step)
    if not found:
        yield "None is recorded.\n"
        return
    search = "greedy search" if validation.beam_size == 1 else f"beam {validation.beam_size}"
    yield f"Validation set, {search} (`loss` is in nats per subword):\n\n| metric | value |\n"
    yield "|---|---|\n"
    for name, value in found.items():
        yield f"| {name} | {value:.2f} |\n"


def _recorded(path: Path, step: int) -> dict[str, float]:
    """The validation after ``step``, as the run has noted it."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # the last may be half a line
        events: list[dict[str, Any]] = [parse_json(line) for line in lines]
    except (OSError, ValueError):
        return {}
    for event in reversed(events):
        if event.get("kind") == "validation" and event.get("step") == step:
            names = ("loss", "perplexity", "bleu", "chrf")
            return {name: event[name] for name in names if event.get(name) is not None}
    return {}
