"""What an export is made of: weights in the form of a program, and a README about the model.

A new target of `nmt export --to NAME` is a class in a file of its own and an entry in
`EXPORT_TARGETS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from nmt.checkpoint.files import MODEL, read_state
from nmt.checkpoint.model_folder import ModelBundle
from nmt.checkpoint.retention import RECORD
from nmt.checkpoint.run import trained_on
from nmt.config.decoding import DecodingConfig
from nmt.config.run import RunConfig
from nmt.data.corpus import corpus_names
from nmt.extras.exchange.ctranslate2 import CTranslate2Target, ShortlistParts
from nmt.files.json_file import parse_json
from nmt.model.transformer import count_parameters
from nmt.version import __version__


class ExportTarget(Protocol):
    """Writes the weights of a model in the form of some program."""

    weights_name: str
    """Name of the file of the weights."""
    dtypes: Sequence[str]
    """Types that weights can be written in; the first is taken where none is named."""

    def check(self, config: RunConfig) -> None:
        """Find out before anything is loaded whether the model can be written.

        Raises:
            ConfigError: It cannot.
        """
        ...

    def decoding(self, options: DecodingConfig) -> DecodingConfig:
        """Return the part of ``options`` that the program can follow."""
        ...

    def write(
        self, folder: Path, bundle: ModelBundle, dtype: str, shortlist: ShortlistParts | None
    ) -> None:
        """Write the weights, and what else the program reads, into ``folder``.

        Configuration, tokenizer, model card and manifest are written by the caller.

        Args:
            folder: Where to write; it is there.
            bundle: The model.
            dtype: One of `dtypes`.
            shortlist: Which target tokens a source token may become, if the model has such lists.
        """
        ...


class SafetensorsTarget:
    """Exports for this program: the weights as they were trained. See `ExportTarget`."""

    weights_name = MODEL
    dtypes: Sequence[str] = ("float32",)

    def check(self, config: RunConfig) -> None:
        """Every model can be written."""

    def decoding(self, options: DecodingConfig) -> DecodingConfig:
        """Return all options."""
        return options

    def write(
        self,
        folder: Path,
        bundle: ModelBundle,
        dtype: str,  # noqa: ARG002 - there is one
        shortlist: ShortlistParts | None,  # noqa: ARG002 - its file is copied
    ) -> None:
        """Copy the file of the weights."""
        shutil.copyfile(bundle.folder / MODEL, folder / MODEL)


EXPORT_TARGETS: dict[str, ExportTarget] = {
    "safetensors": SafetensorsTarget(),
    "ctranslate2": CTranslate2Target(),
}


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
{_shape(bundle, form, size_bytes)}

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


def _shape(bundle: ModelBundle, form: str, size_bytes: int) -> str:
    model, config = bundle.config.model, bundle.config
    widths = f"width {model.model_dim}, inner width {model.ff_dim}"
    decoder = f"width {model.decoder_dim}, inner width {model.decoder_ff}"
    sizes = bundle.tokenizers.vocab_sizes
    kind = config.tokenizer.kind
    vocabulary = f"{sizes[0]:,} and {sizes[1]:,} entries ({kind})"
    if config.tokenizer.joint:
        vocabulary = f"{sizes[0]:,} entries ({kind}, joint)"
    rows = {
        "parameters": f"{sum(count_parameters(bundle.model).values()):,}",
        "encoder": f"{model.encoder_layers} layers, {widths}, {model.num_heads} heads",
        "decoder": f"{model.decoder_layers} layers, {decoder}, {model.num_heads} heads",
        "vocabulary": vocabulary,
        "longest line": f"{config.filters.max_length:,} subwords; longer ones are cut and joined",
        "weights": f"{form}, {size_bytes / 2**20:,.1f} MiB",
    }
    return "\n".join(f"| {name} | {value} |" for name, value in rows.items())


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
        found = _recorded(source / "metrics.jsonl", bundle.step)
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
