"""Read the files in folders of Hugging Face models: settings, weights and search options.

Old folders contain ``pytorch_model.bin``, a pickle; nmt reads only the weights and runs no code
from the file. No other part of nmt reads pickles.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from nmt.config.model import DecodingConfig
from nmt.errors import CheckpointError
from nmt.extras.exchange.imported import ACTIVATIONS, FloatArray, reading, refused
from nmt.files.json_file import field, read_json

HF_CONFIG = "config.json"
# Files with weights that are read: those of the first pattern, otherwise those of the second.
_WEIGHTS = (r"model(-\d+-of-\d+)?\.safetensors", r"pytorch_model(-\d+-of-\d+)?\.bin")
# Files with weights that are not read.
_OTHER_WEIGHTS = re.compile(r".*\.(h5|msgpack|ot|onnx|gguf|bin|safetensors)")
# Type of model -> the values of config.json that nmt supports.
_SUPPORTED: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "marian": {
        **dict.fromkeys(
            ("normalize_before", "normalize_embedding", "add_bias_logits"), (False, None)
        ),
        "static_position_embeddings": (True, None),
        "activation_function": tuple(ACTIVATIONS),
    },
    # Transformers ignores ``normalize_before``, and always normalizes before.
    "m2m_100": {
        "normalize_before": (True, None),
        "activation_function": (*ACTIVATIONS, None),
    },
}
# Settings of a search that have the same name and meaning in Hugging Face.
_SEARCH_KEYS = ("length_penalty", "no_repeat_ngram_size", "repetition_penalty")


def read_settings(source: Path) -> dict[str, Any]:
    """Read config.json and generation_config.json of a Hugging Face model.

    Raises:
        CheckpointError: A file is damaged, or nmt does not support the model.
    """
    settings = load_json(source / HF_CONFIG)
    kind = str(settings.get("model_type"))
    if kind == "nllb_moe":
        raise refused("a mixture of experts (model_type: nllb_moe)")
    for name, allowed in {"model_type": tuple(_SUPPORTED), **_SUPPORTED.get(kind, {})}.items():
        if (value := settings.get(name)) not in allowed:
            raise refused(f"{name}: {value}")
    heads: Any = [settings.get(f"{side}_attention_heads") for side in ("encoder", "decoder")]
    if heads[0] != heads[1]:
        raise refused(f"{heads[0]} heads in the encoder and {heads[1]} in the decoder")
    return settings | load_json(source / "generation_config.json", optional=True)


class TensorFiles:
    """The weights of a model, read from its files one tensor at a time.

    Only one file is open at a time, so memory holds at most that file besides the tensors in use.

    Args:
        folder: The model folder.

    Raises:
        CheckpointError: A file is damaged, or there are no weights in a supported format.
    """

    def __init__(self, folder: Path) -> None:
        self._open: tuple[Path, Any] = (folder, None)
        self._paths = dict[str, Path]()
        for path in map(folder.joinpath, weight_files(folder, [x.name for x in folder.iterdir()])):
            with reading(path):
                self._paths |= dict.fromkeys(self._opened(path).keys(), path)

    def _opened(self, path: Path) -> Any:
        if path != self._open[0]:
            self._open = path, None  # closes the other file first
            is_safe, is_zip = path.suffix == ".safetensors", zipfile.is_zipfile(path)
            # Files of torch before 1.6 are not archives, and cannot be mapped.
            opened = (
                safe_open(path, "pt")
                if is_safe
                else torch.load(path, "cpu", weights_only=True, mmap=is_zip)
            )
            self._open = path, opened
        return self._open[1]

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    def __getitem__(self, name: str) -> FloatArray:
        """Return a tensor in float32.

        Raises:
            KeyError: There is no such tensor.
            CheckpointError: The file is damaged.
        """
        path = self._paths[name]
        with reading(path):
            file = self._opened(path)
            tensor = file[name] if isinstance(file, dict) else file.get_tensor(name)
            return tensor.float().numpy()


def decoding_of(settings: Mapping[str, Any]) -> DecodingConfig:
    """Convert the search options that `read_settings` has read to a decoding section."""
    named = {x: settings[x] for x in _SEARCH_KEYS if settings.get(x) is not None}
    options: dict[str, Any] = {"beam_size": settings.get("num_beams") or 1, **named}
    if longest := settings.get("max_length"):  # counts the start token and EOS
        options |= {"max_length_factor": 0, "max_length_offset": max(longest - 2, 1)}
    return DecodingConfig(
        # Renormalized, the other tokens share the probability of PAD, as in a search of nmt.
        keep_special_mass=not settings.get("renormalize_logits"),
        # Without early stopping, full beams are searched on for better hypotheses.
        patience=1.0 if settings.get("early_stopping") is True else 2.0,
        **options,
    )


def weight_files(place: object, names: Sequence[str]) -> list[str]:
    """Return the names of the weight files: one file, or several parts of a split file.

    Args:
        place: Folder or repository, for the error message.
        names: Names of all files there.

    Raises:
        CheckpointError: There are no weights, or only weights in formats of other libraries.
    """
    for pattern in _WEIGHTS:
        if found := [name for name in names if re.fullmatch(pattern, name)]:
            return found
    others = ", ".join(sorted(name for name in names if _OTHER_WEIGHTS.fullmatch(name)))
    problem = f"{place} has neither model.safetensors nor pytorch_model.bin"
    fix = "Download model.safetensors or pytorch_model.bin into the folder."
    raise CheckpointError(f"{problem}{others and f', only {others}'}.", fix=fix)


def tokens_by_id(ids: Mapping[str, Any], path: Path) -> list[str]:
    """Return the tokens of a vocabulary in the order of their ids, which must be 0, 1, 2 ..."""
    with reading(path):
        tokens = {int(index): token for token, index in ids.items()}
        if sorted(tokens) != list(range(len(ids))):
            raise ValueError("the ids are not 0, 1, 2 and so on")
        return [tokens[index] for index in range(len(tokens))]


def load_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; return an empty one if an ``optional`` file does not exist."""
    with reading(path):
        return {} if optional and not path.is_file() else field(read_json(path), kind=dict)
