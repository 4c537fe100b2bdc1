"""The model or configuration to inspect, with the chosen sentence and checkpoint.

Every attribute is loaded on first use, so a view that needs no weights does not load weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from nmt.checkpoint.model_folder import (
    CONFIG,
    TOKENIZER,
    is_ctranslate2,
    load_folder_document,
    load_model,
    project_of,
    readable,
    recorded_value,
)
from nmt.commands.config import load_config
from nmt.commands.evaluation_set import ConfiguredSets
from nmt.config.inference import InferenceConfig
from nmt.config.loader import change_options, load_inference, settings_of
from nmt.config.model import DecodingConfig
from nmt.data.prepared import PreparedData
from nmt.device.device import choose_device
from nmt.errors import CheckpointError, ConfigError, NmtError
from nmt.extras.inspection.figure import isolated
from nmt.extras.inspection.options import InspectOptions, Need
from nmt.files.json_file import MANIFEST
from nmt.inference.engine import parse_device
from nmt.inference.guard import Guard, GuardLimits, Output
from nmt.inference.segment import Segment
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer, build_model
from nmt.packed import Packed
from nmt.search.hypothesis import Hypothesis
from nmt.text import BOS_ID, EOS_ID, NUM_SPECIAL, PAD_ID, UNK_ID
from nmt.text.tokenizer import Tokenizer, Tokenizers, load_tokenizers, tokenizer_hash

# Source ids and options -> hypotheses, best first.
Search = Callable[[list[int], DecodingConfig], Sequence[Hypothesis]]
MAX_TOKENS = 100  # Longest sentence; the page of a longer one would have many megabytes.
DECODED = "token read \N{RIGHTWARDS ARROW} token predicted"  # meaning of `step_labels`
_SPECIAL = {PAD_ID: "PAD", BOS_ID: "BOS", EOS_ID: "EOS"}
_NEEDS_WITHOUT_WEIGHTS = ("configuration", "vocabulary")


class Inspected:
    """A run folder, model folder or configuration, with the options of the command.

    Args:
        place: The folder, or the YAML file of a configuration.
        choice: Options of the command: sentence, checkpoint, layers and more.

    Attributes raise:
        ConfigError: A configuration cannot provide the attribute, or an option is wrong.
        CheckpointError: A file in the folder is missing or damaged.
    """

    def __init__(self, place: Path, choice: InspectOptions | None = None) -> None:
        self.place = place
        self.choice = choice or InspectOptions()
        self.is_folder = place.is_dir()
        self._device = choose_device(parse_device(self.choice.device))

    @cached_property
    def has_weights(self) -> bool:
        """Whether `model` can be loaded: only from a run or model folder, not from an export."""
        return self.is_folder and not is_ctranslate2(self.place)

    @cached_property
    def _document(self) -> tuple[InferenceConfig, Mapping[str, Any]]:
        """What translating needs, and all settings of the configuration: section -> values."""
        if not self.is_folder:
            config = load_config(self.place, self.choice.set_)
            return config.inference, settings_of(config)
        # First without the overrides, because this reports what is wrong with a folder.
        document = load_folder_document(self.place)
        if not self.choice.set_:
            return document
        return load_inference(self.place / CONFIG, self.choice.set_)

    @cached_property
    def config(self) -> InferenceConfig:
        """What translating needs; the model section is ``config.model``."""
        config, _ = self._document
        return config

    def recorded(self, key: str) -> Any:
        """Return a value of the whole configuration, such as ``training.seed``, or None."""
        _, settings = self._document
        return recorded_value(settings, key)

    @cached_property
    def sets(self) -> ConfiguredSets:
        """The validation and test sets in the configuration."""
        return ConfiguredSets.of(*self._document, self.place)

    @property
    def prepared_dir(self) -> Path:
        """Folder of the prepared data, which may not exist."""
        _, settings = self._document
        return project_of(settings, self.place) / str(self.recorded("prepared_dir"))

    @property
    def _tokenizer_folder(self) -> Path:
        folder = self.prepared_dir
        if self.is_folder:
            folder = self.place
        return folder / TOKENIZER

    @property
    def has_tokenizers(self) -> bool:
        """Whether there are saved tokenizers: in the folder, or in the prepared data."""
        return self.is_folder or self._tokenizer_folder.is_dir()

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers of the folder or of the prepared data; without data, words are tokens."""
        if self.has_tokenizers:
            with readable():
                return load_tokenizers(self._tokenizer_folder)
        # The words of both sentences are the vocabulary of both sides.
        words = f"{self.choice.source} {self.choice.target or ''}".split()
        return Tokenizers(*(_Words(words, size) for size in self.vocab_sizes))

    @cached_property
    def prepared(self) -> PreparedData | None:
        """The prepared data; None if missing, or if its vocabulary is not that of the model."""
        if not (self.prepared_dir / MANIFEST).is_file():
            return None
        data = PreparedData.open(self.prepared_dir)
        if data.manifest.vocab_hash != tokenizer_hash(self._tokenizer_folder):
            return None
        return data

    @cached_property
    def vocab_sizes(self) -> tuple[int, int]:
        """Vocabulary sizes of source and target: from the tokenizers or the configuration."""
        if self.has_tokenizers:
            return self.tokenizers.vocab_sizes
        return self.config.tokenizer.vocab_sizes

    @cached_property
    def structure(self) -> Transformer:
        """The model; for a configuration, without values (on torch's meta device)."""
        if self.has_weights:
            return self.model
        with torch.device("meta"):
            return build_model(self.config.model, *self.vocab_sizes)

    @cached_property
    def model(self) -> Transformer:
        """The model of the chosen checkpoint: chosen device, float32, evaluation mode."""
        return self.load(self.checkpoint)

    @property
    def checkpoint(self) -> str:
        """The checkpoint to show: the last in the option's list; ``untrained`` without a run."""
        if not self.is_folder:
            return "untrained"
        names = ["best", *self.choice.checkpoint]
        return names[-1]

    def load(self, checkpoint: str) -> Transformer:
        """Load a checkpoint by name; ``untrained`` has the random weights before training."""
        if checkpoint == "untrained":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                model = build_model(self.config.model, *self.vocab_sizes)
        else:
            model = load_model(self.place, checkpoint).model
        return model.eval().to(self._device)

    @property
    def seed(self) -> int:
        """Seed of the initial weights."""
        return int(self.recorded("training.seed") or 1)

    @property
    def label_smoothing(self) -> float:
        """Label smoothing of the training; 0 if it is not recorded."""
        return float(self.recorded("training.label_smoothing") or 0.0)

    @cached_property
    def source_ids(self) -> list[int]:
        """The source sentence as the encoder reads it: with tag and EOS, and BOS if configured."""
        ids = self._encode(self.choice.source or "", self.tokenizers.source, "source")
        ids = [*self.tag_ids, *ids, EOS_ID]
        if self.config.model.source_bos:
            ids.insert(0, BOS_ID)
        return ids

    @property
    def source_tokens(self) -> list[int]:
        """``source_ids`` without BOS and EOS: the tag and the sentence."""
        num_bos = int(self.config.model.source_bos)
        return self.source_ids[num_bos:-1]

    @cached_property
    def tag_ids(self) -> tuple[int, ...]:
        """The id of the chosen tag; empty without a tag."""
        if self.choice.tag is None:
            return ()
        index = self.tokenizers.source.tag_id(self.choice.tag)
        return (index,)

    @cached_property
    def target_ids(self) -> list[int]:
        """The target without BOS and EOS: that of the user, or the translation by the model.

        A configuration cannot translate, so the default is the source sentence.
        """
        text = self.choice.target
        if text is None and self.is_folder:
            return list(self.translation.ids)
        if text is None:
            text = self.choice.source or ""
        return self._encode(text, self.tokenizers.target, "target")

    @cached_property
    def translation(self) -> Hypothesis:
        """The translation by the model."""
        engine = TorchEngine(self.model)
        output = self.translate(lambda ids, options: engine.search([ids], options)[0])
        return output.hypotheses[0]

    def translate(self, search: Search) -> Output:
        """Translate with ``search`` and, if the output is suspicious, search again.

        The second search has other decoding options, as in ``nmt translate``.
        """
        options = self.config.decoding
        if self.choice.beam_size:
            change = {"beam_size": self.choice.beam_size}
            options = change_options(options, change)
        tagged_ids = self.source_tokens
        sentence_ids = tagged_ids[len(self.tag_ids) :]
        segment = Segment(0, sentence_ids, self.tag_ids)

        # Both searches return the hypotheses of each segment; there is one segment.
        def search_again(_: object, changes: Mapping[str, Any]) -> list[Sequence[Hypothesis]]:
            return [search(tagged_ids, change_options(options, changes))]

        first_results = [search(tagged_ids, options)]
        guard = Guard(self.tokenizers, options, GuardLimits(), search_again)
        (output,) = guard.check_outputs([segment], first_results)
        return output

    @property
    def source_labels(self) -> list[str]:
        """A label for each of ``source_ids``: the subword, with visible word borders."""
        return labels(self.tokenizers.source, self.source_ids)

    @property
    def read_labels(self) -> list[str]:
        """A label for each decoder input: BOS and the target."""
        ids = [BOS_ID, *self.target_ids]
        return labels(self.tokenizers.target, ids)

    @property
    def target_labels(self) -> list[str]:
        """A label for each decoder position: the token read and the token predicted."""
        ids = [*self.target_ids, EOS_ID]
        predicted = labels(self.tokenizers.target, ids)
        return step_labels(self.read_labels, predicted)

    @property
    def source(self) -> Packed:
        """``source_ids`` as the model's input: one sentence.

        Not cached: masks made in inference mode would be part of it, and `flow` needs gradients.
        """
        return Packed.from_rows([self.source_ids], self._device)

    @property
    def target(self) -> Packed:
        """BOS and ``target_ids`` as the decoder's input: one sentence."""
        return Packed.from_rows([[BOS_ID, *self.target_ids]], self._device)

    def layers(self, num_layers: int) -> list[int]:
        """Return the chosen layers of a stack, from 1: all layers if none is chosen.

        Empty if the stack has no layer with the chosen number.
        """
        layers = range(1, num_layers + 1)
        return [layer for layer in layers if self.choice.layer in (None, layer)]

    @property
    def heads(self) -> list[int]:
        """Numbers of the chosen heads, counted from 1: all heads if none is chosen."""
        all_heads = range(1, self.config.model.num_heads + 1)
        return list(self.choice.head or all_heads)

    def check(self) -> None:
        """Check that the model has the chosen layer, heads and tag.

        Raises:
            ConfigError: The layer, a head or the tag does not exist.
        """
        model = self.config.model
        num_layers = max(model.encoder_layers, model.decoder_layers)
        # Option, chosen number, and how many there are. Layer 1, which always exists, stands for no
        # chosen layer.
        chosen = [("layer", self.choice.layer or 1, num_layers)]
        chosen += [("head", head, model.num_heads) for head in self.choice.head]
        for option, number, count in chosen:
            if not 1 <= number <= count:
                fix = f"Set `{option}` to a number from 1 to {count}, or remove `{option}`."
                problem = f"{option.capitalize()} {number} does not exist."
                raise ConfigError(problem, fix=fix)
        _ = self.tag_ids  # raises an error for an unknown tag

    def missing(self, need: Need, name: str) -> NmtError | None:
        """Return the error that explains why a view cannot be shown; None if it can be shown.

        Loads no weights or tokenizers.

        Args:
            need: Requirement of the view, see `nmt.extras.inspection.options`.
            name: Name of the view, for the message.
        """
        needs_weights = need not in _NEEDS_WITHOUT_WEIGHTS
        if needs_weights and not self.has_weights:
            problem = f"{name} needs a trained model with torch weights, but {self.place} is"
            fix = "Pass a run folder, or choose a different view."
            if self.is_folder:
                return CheckpointError(f"{problem} exported for CTranslate2.", fix=fix)
            if need != "pass":  # for a pass, a configuration gets random weights
                return ConfigError(f"{problem} a configuration.", fix=fix)
        if need == "vocabulary" and not self.has_tokenizers:
            problem = f"{name} needs a vocabulary, but the data of {self.place} is not prepared."
            fix = f"Run `nmt prepare {self.place}` first, or pass a trained model."
            return ConfigError(problem, fix=fix)
        if needs_weights:
            tags = self.config.language_tags
            if tags in ("target", "both"):
                problem = f"{name} cannot draw models whose targets begin with a language tag."
                fix = "Choose another view, such as vocabulary."
                return ConfigError(problem, fix=fix)
            if tags == "source" and self.choice.tag is None:
                problem = f"{name} needs the tag of the target language."
                # Each tag once: several directions can have the same target.
                symbols = dict.fromkeys(f"<2{pair.target}>" for pair in self.config.directions)
                fix = f"Set `tag` to {', '.join(symbols)}."
                return ConfigError(problem, fix=fix)
        source = self.choice.source or ""
        if need in ("sentence", "pass", "vocabulary") and not source.strip():
            problem = f"{name} needs a source sentence."
            fix = 'Pass a sentence, such as `source` "Guten Morgen!"'
            return ConfigError(problem, fix=fix)
        return None

    def _encode(self, text: str, tokenizer: Tokenizer, option: str) -> list[int]:
        """Return the ids of the text of an option; raise an error if it is empty or too long."""
        ids = tokenizer.encode(text)
        max_tokens = min(MAX_TOKENS, self.config.max_length)
        if not ids:
            problem = f"`{option}` has no tokens."
            raise ConfigError(problem, fix="Pass a longer sentence.")
        if len(ids) > max_tokens:
            problem = f"`{option}` has {len(ids):,} tokens; at most {max_tokens} can be shown."
            raise ConfigError(problem, fix="Pass a shorter sentence.")
        return ids


def labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return a label for each id: the subword, or PAD, BOS or EOS."""
    return [_SPECIAL.get(index) or tokenizer.piece(index) for index in ids]


def step_labels(read: Sequence[str], predicted: Sequence[str]) -> list[str]:
    """Return a label for each decoder position: the token read, and the token predicted."""
    pairs = zip(map(isolated, read), map(isolated, predicted), strict=True)
    return [f"{token} \N{RIGHTWARDS ARROW} {next_token}" for token, next_token in pairs]


class _Words(Tokenizer):
    """Takes the place of a tokenizer before the data is prepared: splits at spaces.

    Args:
        words: The words that get ids. Those that do not fit into the vocabulary are UNK.
        size: Size of the vocabulary, with the special tokens.
    """

    def __init__(self, words: Sequence[str], size: int) -> None:
        distinct = list(dict.fromkeys(words))
        self._words = distinct[: size - NUM_SPECIAL]
        self._size = size
        self.tags = {}

    @property
    @override
    def vocab_size(self) -> int:
        return self._size

    @override
    def encode(self, line: str) -> list[int]:
        ids = {word: index for index, word in enumerate(self._words, NUM_SPECIAL)}
        return [ids.get(word, UNK_ID) for word in line.split()]

    @override
    def piece(self, index: int) -> str:
        if index == UNK_ID:
            return "UNK"
        return self._words[index - NUM_SPECIAL]
