"""What is inspected: a model or configuration, and what the options choose of it.

Everything is loaded when it is first read: `parameters` of a configuration needs no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint.model_folder import (
    CONFIG,
    TOKENIZER,
    is_ctranslate2,
    load_folder_config,
    load_model,
    readable,
)
from nmt.commands.config import load_config
from nmt.config.loader import change_options, refuse_idle
from nmt.config.model import DecodingConfig
from nmt.config.run import RunConfig
from nmt.data.prepared import MANIFEST, PreparedData
from nmt.errors import CheckpointError, ConfigError, NmtError
from nmt.extras.inspection.options import InspectOptions, Need
from nmt.inference.guard import GuardLimits, Output, check
from nmt.inference.segment import Segment
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer, build_model
from nmt.packed import Packed
from nmt.search.hypothesis import Hypothesis
from nmt.text import BOS_ID, EOS_ID, PAD_ID
from nmt.text.tokenizer import Tokenizer, Tokenizers, load_tokenizers, tokenizer_hash

# Source ids and options -> hypotheses, best first.
Search = Callable[[list[int], DecodingConfig], Sequence[Hypothesis]]
MAX_TOKENS = 100  # Of a sentence; a longer one is refused: its page would be many megabytes.
_SPECIAL = {PAD_ID: "PAD", BOS_ID: "BOS", EOS_ID: "EOS"}


class Subject:
    """A run folder, model folder or configuration, and what is chosen of it.

    Attributes raise:
        ConfigError: A configuration has no such thing, or the options name what the model has not.
        CheckpointError: The folder has no such thing, or it is damaged.
    """

    def __init__(self, place: Path, choice: InspectOptions | None = None) -> None:
        self.place, self.choice = place, choice or InspectOptions()
        self.is_folder = place.is_dir()
        if self.is_folder:
            refuse_idle(self.choice.set_, ("decoding",))

    @cached_property
    def has_weights(self) -> bool:
        """Whether `model` can be loaded: a run or model folder that is not for CTranslate2."""
        return self.is_folder and not is_ctranslate2(self.place)

    @cached_property
    def config(self) -> RunConfig:
        """The whole configuration; the model section is ``config.model``."""
        if not self.is_folder:
            return load_config(self.place, self.choice.set_)
        saved = load_folder_config(self.place)  # says what is wrong with a folder
        return load_config(self.place / CONFIG, self.choice.set_) if self.choice.set_ else saved

    @property
    def _tokenizer_folder(self) -> Path:
        return (self.place if self.is_folder else self.config.prepared_dir) / TOKENIZER

    @property
    def has_tokenizers(self) -> bool:
        """Whether the subject has a vocabulary: a configuration has it with prepared data."""
        return self.is_folder or self._tokenizer_folder.is_dir()

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """Of a configuration, those of its prepared data."""
        with readable():
            return load_tokenizers(self._tokenizer_folder)

    @cached_property
    def prepared(self) -> PreparedData | None:
        """The data it is trained on; None where they are gone or were made anew."""
        if not (self.config.prepared_dir / MANIFEST).is_file():
            return None
        data = PreparedData.open(self.config.prepared_dir)
        is_same = data.manifest.vocab_hash == tokenizer_hash(self._tokenizer_folder)
        return data if is_same else None

    @cached_property
    def vocab_sizes(self) -> tuple[int, int]:
        """Of source and target: of the tokenizers, else as the configuration says."""
        of_config = self.config.tokenizer.vocab_sizes
        return self.tokenizers.vocab_sizes if self.has_tokenizers else of_config

    @cached_property
    def structure(self) -> Transformer:
        """A model with names and shapes: of a configuration, without values (meta device)."""
        if self.has_weights:
            return self.model
        with torch.device("meta"):
            return build_model(self.config.model, *self.vocab_sizes)

    @cached_property
    def model(self) -> Transformer:
        """The model of the last chosen checkpoint: CPU, float32, evaluation mode."""
        return self.load(self.choice.checkpoint[-1] if self.choice.checkpoint else "best")

    def load(self, checkpoint: str) -> Transformer:
        """Load a checkpoint by its name; ``untrained`` builds the model with the run's seed."""
        if checkpoint == "untrained":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.config.training.seed)
                return build_model(self.config.model, *self.vocab_sizes).eval()
        return load_model(self.place, checkpoint).model

    @cached_property
    def source_ids(self) -> list[int]:
        """Of the source sentence, as the encoder reads it: with tag and EOS, BOS if it is given."""
        ids = self._encode(self.choice.source or "", self.tokenizers.source, "source")
        return [BOS_ID] * self.config.model.source_bos + [*self.tag_ids, *ids, EOS_ID]

    @cached_property
    def tag_ids(self) -> tuple[int, ...]:
        """The id of the tag, if one is chosen."""
        tag = self.choice.tag
        return () if tag is None else (self.tokenizers.source.tag_id(tag),)

    @cached_property
    def target_ids(self) -> list[int]:
        """Of the target, without BOS and EOS; the model's own translation if none is chosen."""
        if self.choice.target is not None:
            return self._encode(self.choice.target, self.tokenizers.target, "target")
        engine = TorchEngine(self.model)
        found = self.translate(lambda ids, options: engine.search([ids], options)[0])
        return list(found.hypotheses[0].ids)

    def translate(self, search: Search) -> Output:
        """Search as `nmt translate` does: with the guard, which may have it search again."""
        start, options = int(self.config.model.source_bos), self.config.decoding
        ids = self.source_ids[start:-1]
        segment = Segment(0, ids[len(self.tag_ids) :], self.tag_ids)

        def again(_: object, changes: Mapping[str, Any]) -> list[Sequence[Hypothesis]]:
            return [search(ids, change_options(options, changes))]

        first = [search(ids, options)]
        (output,) = check([segment], first, self.tokenizers, options, GuardLimits(), again)
        return output

    @property
    def source_labels(self) -> list[str]:
        """A label for each of ``source_ids``: its piece, with the word border visible."""
        return labels(self.tokenizers.source, self.source_ids)

    @property
    def read_labels(self) -> list[str]:
        """A label for each decoder input: BOS and the target."""
        return labels(self.tokenizers.target, [BOS_ID, *self.target_ids])

    @property
    def target_labels(self) -> list[str]:
        """A label for each decoder position: the token read and the token predicted, ``I > am``."""
        return moved(self.read_labels, labels(self.tokenizers.target, [*self.target_ids, EOS_ID]))

    @cached_property
    def source(self) -> Packed:
        """``source_ids`` as the model's input: one sentence."""
        return Packed.from_rows([self.source_ids])

    @cached_property
    def target(self) -> Packed:
        """BOS and ``target_ids`` as the decoder's input: one sentence."""
        return Packed.from_rows([[BOS_ID, *self.target_ids]])

    def layers(self, num_layers: int) -> list[int]:
        """Return the chosen layers of a stack, from 1: one, or all, or none."""
        layer = self.choice.layer
        return [n for n in range(1, num_layers + 1) if layer in (None, n)]

    @property
    def heads(self) -> list[int]:
        """The chosen heads, from 1."""
        return list(self.choice.head) or list(range(1, self.config.model.num_heads + 1))

    def check(self) -> None:
        """Check that the model has the chosen layer, heads and tag.

        Raises:
            ConfigError: It does not have them.
        """
        model = self.config.model
        num_layers = max(model.encoder_layers, model.decoder_layers)
        chosen = [("layer", self.choice.layer or 1, num_layers)]
        chosen += [("head", head, model.num_heads) for head in self.choice.head]
        for name, number, count in chosen:
            if not 1 <= number <= count:
                fix = f"Set `{name}` to 1 to {count}, or leave it out."
                raise ConfigError(f"There is no {name} {number}.", fix=fix)
        _ = self.tag_ids

    def missing(self, need: Need, name: str) -> NmtError | None:
        """Return why a view cannot be made, before anything is loaded; None if it can."""
        if need in ("model", "sentence") and not self.has_weights:
            kind = "exported for CTranslate2" if self.is_folder else "a configuration"
            return (CheckpointError if self.is_folder else ConfigError)(
                f"{name} needs a trained model with weights of torch, and {self.place} is {kind}.",
                fix="Pass a run; parameters, diagram, positions, vocabulary and shift work here.",
            )
        if need == "vocabulary" and not self.has_tokenizers:
            return ConfigError(
                f"{name} needs a vocabulary, and the data of {self.place} are not prepared.",
                fix=f"Run `nmt prepare {self.place}` first, or pass a trained model.",
            )
        if need in ("sentence", "vocabulary") and not (self.choice.source or "").strip():
            return ConfigError(
                f"{name} needs a sentence, and `source` has no text.",
                fix='Pass one with `source`, such as "Guten Morgen!"',
            )
        return None

    def _encode(self, text: str, tokenizer: Tokenizer, option: str) -> list[int]:
        ids, most = tokenizer.encode(text), min(MAX_TOKENS, self.config.filters.max_length)
        if not 0 < len(ids) <= most:
            count = f"{len(ids):,} tokens; figures are drawn of at most {most}"
            raise ConfigError(
                f"`{option}` has {count if ids else 'no tokens'}.",
                fix=f"Pass a {'shorter' if ids else 'longer'} sentence.",
            )
        return ids


def labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return what to write for each id: its piece, or PAD, BOS, EOS."""
    return [_SPECIAL.get(index) or tokenizer.piece(index) for index in ids]


def moved(read: Sequence[str], predicted: Sequence[str]) -> list[str]:
    """Return a label for each decoder position from the token it reads and the one it predicts."""
    return [f"{a} \N{RIGHTWARDS ARROW} {b}" for a, b in zip(read, predicted, strict=True)]
