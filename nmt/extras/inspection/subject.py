"""What is inspected: a model or configuration, a sentence, and chosen layers, heads, checkpoints.

Everything is loaded when it is first asked for, so `parameters` of a CONFIG needs no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.checkpoint.model_folder import CONFIG, TOKENIZER, load_folder_config, load_model, readable
from nmt.config.decoding import DecodingConfig, change_options
from nmt.config.loader import refuse_idle
from nmt.config.run import RunConfig
from nmt.data.size import load_config
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.ctranslate2 import is_ctranslate2
from nmt.inference.guard import Guard, read_thresholds
from nmt.inference.segment import SearchResults, Segment, check_outputs
from nmt.inference.shortlist_file import ShortlistFile
from nmt.search.hypothesis import Hypothesis
from nmt.text import BOS_ID, EOS_ID, PAD_ID
from nmt.text.tokenizer import Tokenizer, Tokenizers, load_tokenizers, tokenizer_hash

if TYPE_CHECKING:
    from nmt.data.prepared import PreparedData
    from nmt.extras.inspection.catalog import Need
    from nmt.model.transformer import Transformer
    from nmt.packed import Packed

Search = Callable[[list[int], DecodingConfig], Sequence[Hypothesis]]
"""Source ids and options -> hypotheses, best first."""
MAX_TOKENS = 100
"""Of a sentence; a longer one is refused: its page would be many megabytes."""
MAX_HEADS = 64
"""Heads that one grid draws; of more, ``--layer`` chooses."""
SPECIAL = {PAD_ID: "PAD", BOS_ID: "BOS", EOS_ID: "EOS"}
"""Labels of ids that are not text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the flags choose."""

    source: str | None = None
    """Sentence that is read; shown by all parts but those of the configuration."""
    target: str | None = None
    """Its translation; the model's own if None."""
    tag: str | None = None
    """What the source begins with, of a model that was trained with tags."""
    layer: int | None = None
    """From 1. None: all layers, or the top one where one is shown."""
    heads: Sequence[int] = ()
    """From 1. Empty: all."""
    checkpoints: Sequence[str] = ()
    """Names as of ``--checkpoint``: ``best``, ``last``, ``step-N``, ``average``, or ``untrained``.
    The last one is the model of all parts that show one model. Empty: ``best``."""
    unmasked: bool = False
    """With ``trace``: recompute with the causal mask left out, beside the masked one."""
    test: str | None = None
    """With ``heads``: the test set."""
    limit: int = 200
    """With ``heads``: pairs of it."""


class Subject:
    """A run folder, model folder or configuration, and what is chosen of it.

    Args:
        place: Folder with a model, or a YAML configuration.
        choice: What the flags choose.
        overrides: ``key=value`` changes of a configuration; of a trained model, of its
            ``decoding`` section only.

    Attributes raise:
        ConfigError: A CONFIG has no such thing, or the choice names what the model has not.
        CheckpointError: The folder has no such thing, or it is damaged.
    """

    def __init__(
        self, place: Path, choice: Choice | None = None, overrides: Sequence[str] = ()
    ) -> None:
        self.place = place
        self.choice = choice or Choice()
        self._overrides = overrides
        if self.is_folder:
            refuse_idle(overrides, ("decoding",))

    @property
    def is_folder(self) -> bool:
        """Whether a model is inspected, not a CONFIG."""
        return self.place.is_dir()

    @property
    def has_weights(self) -> bool:
        """Whether `model` can be loaded: a run or model folder that is not for CTranslate2."""
        return self.is_folder and not is_ctranslate2(self.place)

    @cached_property
    def config(self) -> RunConfig:
        """The whole configuration; the model section is ``config.model``."""
        if self.is_folder:
            saved = load_folder_config(self.place)  # says what is wrong with a folder
            return load_config(self.place / CONFIG, self._overrides) if self._overrides else saved
        return load_config(self.place, self._overrides)

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """Of a CONFIG, those of its prepared data."""
        if self.is_folder:
            with readable():
                return load_tokenizers(self.place / TOKENIZER)
        folder = self.config.prepared_dir / TOKENIZER
        if not folder.is_dir():
            raise ConfigError(
                f"{self.place} is a configuration whose data are not prepared: it has no "
                "vocabulary yet.",
                fix=f"Run `nmt prepare {self.place}` first, or name a trained model.",
            )
        return load_tokenizers(folder)

    @cached_property
    def prepared(self) -> PreparedData | None:
        """The data it is trained on, where they are still there; None elsewhere."""
        from nmt.data.prepared import MANIFEST, PreparedData  # noqa: PLC0415

        folder = self.config.prepared_dir
        own = (self.place if self.is_folder else folder) / TOKENIZER
        if not (folder / MANIFEST).is_file():
            return None
        data = PreparedData.open(folder)
        return data if data.manifest.vocab_hash == tokenizer_hash(own) else None

    @cached_property
    def vocab_sizes(self) -> tuple[int, int]:
        """Of source and target: of the tokenizers, else as the configuration says."""
        if self.is_folder or (self.config.prepared_dir / TOKENIZER).is_dir():
            return self.tokenizers.vocab_sizes
        return self.config.tokenizer.vocab_sizes

    @cached_property
    def structure(self) -> Transformer:
        """A model with names and shapes: of a CONFIG, without values (meta device)."""
        if self.has("model"):
            return self.model
        import torch  # noqa: PLC0415

        from nmt.model.transformer import build_model  # noqa: PLC0415

        with torch.device("meta"):
            return build_model(self.config.model, *self.vocab_sizes)

    @cached_property
    def model(self) -> Transformer:
        """The model of the last chosen checkpoint: CPU, float32, evaluation mode."""
        return self.load(self.choice.checkpoints[-1] if self.choice.checkpoints else "best")

    def load(self, checkpoint: str) -> Transformer:
        """Load a checkpoint by its name; ``untrained`` builds the model with the run's seed."""
        import torch  # noqa: PLC0415

        from nmt.model.transformer import build_model  # noqa: PLC0415

        self.require("model", "a checkpoint")
        if checkpoint == "untrained":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.config.training.seed)
                return build_model(self.config.model, *self.vocab_sizes).eval()
        return load_model(self.place, checkpoint).model

    @cached_property
    def source_ids(self) -> list[int]:
        """Of the source sentence, as the encoder reads it: with tag and EOS, BOS if it is given."""
        ids = self._encode(self.choice.source or "", self.tokenizers.source, "--source")
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
            return self._encode(self.choice.target, self.tokenizers.target, "--target")
        from nmt.inference.torch_engine import TorchEngine  # noqa: PLC0415

        engine = TorchEngine(self.model)
        found = self.translate(lambda ids, options: engine.search([ids], options)[0])
        return list(found.hypotheses[0].ids)

    def translate(self, search: Search) -> Segment:
        """Search as `nmt translate` does: with the guard, which may have it search again."""
        start, options = int(self.config.model.source_bos), self.config.decoding
        ids = self.source_ids[start:-1]
        words = ids[len(self.tag_ids) :]
        segment = Segment(0, words, self.tag_ids, hypotheses=search(ids, options))
        check_outputs([segment])
        shortlist = ShortlistFile(self.place, self.tokenizers.vocab_sizes)
        guard = Guard(read_thresholds(self.place), self.tokenizers, shortlist)

        def again(_: object, changes: Mapping[str, Any]) -> SearchResults:
            return [(segment, list(search(ids, change_options(options, changes))))]

        guard.retry([segment], options, again)
        return segment

    @property
    def source_labels(self) -> list[str]:
        """A label for each of ``source_ids``: its piece, with the word border visible."""
        return labels(self.tokenizers.source, self.source_ids)

    @property
    def target_labels(self) -> list[str]:
        """A label for each decoder position: the token read and the token predicted, ``I > am``."""
        read, predicted = self.read_labels, self.predicted_labels
        return [f"{a} \N{RIGHTWARDS ARROW} {b}" for a, b in zip(read, predicted, strict=True)]

    @property
    def read_labels(self) -> list[str]:
        """A label for each decoder input: BOS and the target."""
        return labels(self.tokenizers.target, [BOS_ID, *self.target_ids])

    @property
    def predicted_labels(self) -> list[str]:
        """A label for what each decoder position predicts: the target and EOS."""
        return labels(self.tokenizers.target, [*self.target_ids, EOS_ID])

    @cached_property
    def source(self) -> Packed:
        """``source_ids`` as the model's input: one sentence."""
        from nmt.packed import Packed  # noqa: PLC0415

        return Packed.from_rows([self.source_ids])

    @cached_property
    def target(self) -> Packed:
        """BOS and ``target_ids`` as the decoder's input: one sentence."""
        from nmt.packed import Packed  # noqa: PLC0415

        return Packed.from_rows([[BOS_ID, *self.target_ids]])

    def layers(self, num_layers: int) -> list[int]:
        """Return the chosen layers of a stack, from 1: one, or all; none if only the other has it.

        Raises:
            ConfigError: No stack has such a layer.
        """
        config, layer = self.config.model, self.choice.layer
        if layer is None:
            return list(range(1, num_layers + 1))
        _within("layer", [layer], max(config.encoder_layers, config.decoder_layers))
        return [layer] if layer <= num_layers else []

    @property
    def heads(self) -> list[int]:
        """The chosen heads, from 1."""
        return _within("head", self.choice.heads, self.config.model.num_heads)

    def check(self) -> None:
        """Check the choice against the configuration.

        Raises:
            ConfigError: There is no such layer or head in any stack, or no such tag.
        """
        config = self.config.model
        self.layers(max(config.encoder_layers, config.decoder_layers))
        _ = self.heads
        if self.choice.tag is not None:
            _ = self.tag_ids

    def has(self, need: Need) -> bool:
        """Whether the subject has what a part needs: `require` would not complain."""
        if need == "configuration":
            return True
        sentence = bool((self.choice.source or "").strip())
        if need == "vocabulary":
            return sentence and (self.is_folder or (self.config.prepared_dir / TOKENIZER).is_dir())
        return self.has_weights and (sentence or need == "model")

    def require(self, need: Need, name: str) -> None:
        """Check that the subject has what a part needs, before anything is loaded.

        Raises:
            ConfigError: It is a CONFIG, or no sentence is given.
            CheckpointError: It is exported for CTranslate2, which shows nothing of its inside.
        """
        if need in ("model", "sentence") and not self.is_folder:
            raise ConfigError(
                f"{name} needs a trained model, and {self.place} is a configuration.",
                fix="Name a run or model folder; parameters, diagram and positions need none.",
            )
        if need in ("model", "sentence") and is_ctranslate2(self.place):
            raise CheckpointError(
                f"{name} needs weights of torch, and {self.place} is exported for CTranslate2.",
                fix="Name the run that it was exported from; parameters, diagram, positions, "
                "vocabulary and shift work here.",
            )
        if need in ("sentence", "vocabulary") and not (self.choice.source or "").strip():
            raise ConfigError(
                f"{name} needs a sentence, and --source has no text.",
                fix='Give one, as in --source "Guten Morgen!"',
            )

    def _encode(self, text: str, tokenizer: Tokenizer, flag: str) -> list[int]:
        ids = tokenizer.encode(text)
        if not ids:
            raise ConfigError(f"{flag} has no tokens.", fix=f'Give a text, as in {flag} "Hello!"')
        most = min(MAX_TOKENS, self.config.filters.max_length)
        if len(ids) > most:
            raise ConfigError(
                f"{flag} has {len(ids):,} tokens; figures are drawn of at most {most}.",
                fix="Give a shorter sentence.",
            )
        return ids


def labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return what to write for each id: its piece, or PAD, BOS, EOS."""
    return [SPECIAL.get(index) or tokenizer.piece(index) for index in ids]


def _within(name: str, chosen: Sequence[int], count: int) -> list[int]:
    if wrong := [each for each in chosen if not 1 <= each <= count]:
        raise ConfigError(
            f"There is no {name} {wrong[0]}.", fix=f"Use --{name} 1 to {count}, or leave it out."
        )
    return list(chosen) or list(range(1, count + 1))
