"""Convert models to CTranslate2's format, and cache the converted models.

Importing this module loads neither CTranslate2 nor torch. Converting a model loads both.

Shapes: V vocabulary, D model width, P positions.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence, Set
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from nmt.checkpoint.model_folder import SHORTLIST, ModelFiles, read_weights
from nmt.config.inference import InferenceConfig
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.export import ExportTarget
from nmt.files.atomic import atomic_folder, file_lock, remove_folder, write_json
from nmt.files.json_file import Manifest, sha256_of_file, sha256_of_json
from nmt.inference.engine import EngineLacksError, ShortlistParts, require_shortlist
from nmt.search.hypothesis import limits_of
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import Tokenizer
from nmt.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

    from nmt.checkpoint.model_folder import ModelBundle
    from nmt.model.transformer import Transformer

logger = logging.getLogger(__name__)

MODEL = "model.bin"
RECORD = "export.json"
VOCABULARY_MAP = "vmap.txt"
# A change of these modules makes converted models in the cache invalid.
_CONVERTER = sorted(Path(__file__).parent.glob("ctranslate2*.py"))
# Keys of the model section that must have their defaults. ``qk_norm``: in cross-attention,
# CTranslate2 normalises the queries of all heads together (its ``process_cross_attention``).
_NOT_EXPRESSED = frozenset({"qk_norm"})
# Decoding options that must have their defaults, because CTranslate2 lacks them or computes them
# differently: its ``coverage_penalty`` uses one attention head of the last layer, ours the mean of
# many heads.
_NOT_FOLLOWED = frozenset({
    "coverage_penalty", "diverse_beam_groups", "sampling", "temperature", "top_k", "top_p",
    "epsilon_cutoff", "return_alternatives", "repetition_penalty", "search", "keep_special_mass",
})  # fmt: skip
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}
# Our names of norms, linear layers and relative positions -> names in CTranslate2.
_OF_LAYERS = re.compile(r"(encoder|decoder)(?:\.(\d+)\.|_)(.+)\.(\w+)")
_PARTS = {
    "norm": "layer_norm",
    "self_residual.norm": "self_attention/layer_norm",
    "self_attention.query_key_value": "self_attention/linear_0",
    "self_attention.output": "self_attention/linear_1",
    "self_attention.positions": "self_attention",
    "cross_residual.norm": "attention/layer_norm",
    "cross_attention.query": "attention/linear_0",
    "cross_attention.key_value": "attention/linear_1",
    "cross_attention.output": "attention/linear_2",
    "feed_forward_residual.norm": "ffn/layer_norm",
    "feed_forward.inner": "ffn/linear_0",
    "feed_forward.ungated": "ffn/linear_0_noact",
    "feed_forward.outer": "ffn/linear_1",
}
_NORM = {"weight": "gamma", "bias": "beta"}
_RELATIVE = {"keys": "relative_position_keys", "values": "relative_position_values"}
_LEAST_POSITIONS = 1024
_KEPT_IN_RUN = 4
_KEPT_OF_USER = 16


def import_ctranslate2(name: str = "ctranslate2") -> Any:
    """Import the package ctranslate2, or a module of the package.

    The package itself does not load torch; the module ``ctranslate2.specs`` does.

    Raises:
        ConfigError: CTranslate2 is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError.needs("This format", "CTranslate2", extra="ctranslate2") from error


def not_expressed(config: ModelConfig) -> list[str]:
    """Return the model options that CTranslate2 does not support, each as key and value."""
    faults = _differing("model", config, _NOT_EXPRESSED)
    if config.norm == "layer-std":
        faults.append('model.norm "layer-std"')
    return faults


def not_followed(options: DecodingConfig) -> list[str]:
    """Return the decoding options that CTranslate2 does not support, each as key and value."""
    return _differing("decoding", options, _NOT_FOLLOWED)


def _differing(section: str, values: ModelConfig | DecodingConfig, names: Set[str]) -> list[str]:
    changed = values.model_dump(include=set(names), exclude_defaults=True)
    return [f"{section}.{name} {json.dumps(value)}" for name, value in changed.items()]


def positions_needed(longest: int, config: InferenceConfig, decoding: DecodingConfig) -> int:
    """Return the positions needed for a line of ``longest`` subwords and its longest output."""
    return max(longest + 1 + config.model.source_bos, limits_of(longest, decoding).longest)


def num_positions(config: InferenceConfig) -> int | None:
    """Return the number of positions of a converted model, with EOS; None without a limit.

    A converted model stores sinusoids for all positions of the longest line and output.
    """
    model = config.model
    if model.positions in ("rotary", "relative"):
        return None
    if model.positions == "learned":
        return model.position_limit
    needed = positions_needed(config.max_length, config, config.decoding)
    return max(_LEAST_POSITIONS, needed)


class CTranslate2Target(ExportTarget):
    """Converts the weights, vocabularies and shortlist of a model for CTranslate2."""

    weights_name = MODEL
    dtypes: Sequence[str] = (
        "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16",
        "int8_bfloat16",
    )  # fmt: skip

    @override
    def adapt(self, config: InferenceConfig) -> InferenceConfig:
        import_ctranslate2()
        if faults := not_expressed(config.model):
            fix = "Export with `to` safetensors, or train a model without this option."
            raise ConfigError(f"CTranslate2 does not support {', '.join(faults)}.", fix=fix)
        options = config.decoding
        dropped = set(_NOT_FOLLOWED)
        if options.sampling or options.return_alternatives:  # here n_best can exceed the beam
            dropped.add("n_best")
        decoding = DecodingConfig(**options.model_dump(exclude=dropped))
        return config.model_copy(update={"decoding": decoding})

    @override
    def write(
        self, folder: Path, bundle: ModelBundle, dtype: str, shortlist: ShortlistParts | None
    ) -> None:
        model = bundle.config.model
        source, target = map(_tokens, bundle.tokenizers)
        positions = num_positions(bundle.config)
        spec = _specification(bundle, positions or _LEAST_POSITIONS)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        config = spec.config
        config.unk_token = target[UNK_ID]
        config.bos_token = target[BOS_ID]
        config.decoder_start_token = target[BOS_ID]
        config.eos_token = target[EOS_ID]
        config.add_source_bos = model.source_bos
        config.add_source_eos = True
        config.layer_norm_epsilon = model.norm_epsilon
        spec.validate()
        spec.optimize(quantization=dtype)
        spec.save(str(folder))
        if shortlist is not None:
            text = vocabulary_map(source, target, shortlist)
            (folder / VOCABULARY_MAP).write_text(text, encoding="utf-8", newline="\n")
        record = {
            "package_version": __version__,
            "ctranslate2_version": import_ctranslate2().__version__,
            "quantization": dtype,
            "num_positions": positions,
            "step": bundle.step,
            "sha256": bundle.sha256,
        }
        write_json(folder / RECORD, record)


def vocabulary_map(source: Sequence[str], target: Sequence[str], shortlist: ShortlistParts) -> str:
    r"""Return a shortlist in CTranslate2's format: source token, tab, target tokens.

    The line without a source token lists the target tokens that every sentence may need.
    CTranslate2 adds UNK, BOS and EOS itself. In a batch, every sentence can use the target tokens
    in the shortlists of all sentences.

    >>> lists = ShortlistParts(np.array([4]), np.array([[-1, -1]] * 4 + [[5, 4]]))
    >>> vocabulary_map("pubeA", "pubeXY", lists)
    '\tp u b e X\nA\tY X\n'
    """
    always = sorted({PAD_ID, UNK_ID, BOS_ID, EOS_ID, *shortlist.common.tolist()})
    lines = ["\t" + " ".join(target[index] for index in always)]
    for token, candidates in zip(source, shortlist.candidates.tolist(), strict=True):
        likely = [target[index] for index in candidates if index >= 0]
        if likely and not {" ", "\t", "\n"} & set(token):  # the format uses them as separators
            lines.append(f"{token}\t{' '.join(likely)}")
    return "\n".join(lines) + "\n"


def _tokens(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.piece(index) for index in range(tokenizer.vocab_size)]


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().numpy()


def _specification(bundle: ModelBundle, num_positions: int) -> Any:
    """Convert a model to CTranslate2's specification, with ``num_positions`` positions."""
    specs = import_ctranslate2("ctranslate2.specs")
    find_part = import_ctranslate2("ctranslate2.specs.model_spec").index_spec
    config = bundle.config.model
    model = bundle.model
    stacks = []
    for kind, num_layers, embedding, vectors in (
        (specs.TransformerEncoderSpec, config.encoder_layers, model.source_embedding,
         model.source_vectors),
        (specs.TransformerDecoderSpec, config.decoder_layers, model.target_embedding,
         model.target_embeddings),
    ):  # fmt: skip
        dim = vectors.shape[1]
        stack = kind(
            num_layers,
            num_heads=config.num_heads,
            pre_norm=config.norm_position == "pre",
            activation=specs.Activation[_ACTIVATIONS[config.activation]],
            ffn_glu=config.activation == "swiglu",
            rms_norm=config.norm == "rms",
            num_heads_kv=config.num_kv_heads,
            relative_position=config.positions == "relative",
            rotary_dim=dim // config.num_heads if config.positions == "rotary" else None,
            rotary_interleave=False,
        )
        stack.scale_embeddings = config.scale_embeddings
        if config.positions not in ("rotary", "relative"):
            # Without encodings, CTranslate2 would add sinusoids.
            encodings = np.zeros((num_positions, dim), np.float32)
            table = embedding.position_table(num_positions)
            if table is not None:
                first = config.first_position
                encodings = _array(table[first : first + num_positions])
            stack.position_encodings.encodings = encodings
        stacks.append(stack)
    spec = specs.TransformerSpec(*stacks)
    spec.encoder.embeddings[0].weight = _array(model.source_vectors)
    spec.decoder.embeddings.weight = _array(model.target_embeddings)
    spec.decoder.start_from_zero_embedding = config.decoder_start == "zero"
    spec.decoder.projection.weight = _array(model.output_weight)
    if model.output_bias is not None:
        spec.decoder.projection.bias = _array(model.output_bias)
    for name, weight in _weights_of_layers(model, config).items():
        match = _OF_LAYERS.fullmatch(name)
        if match:  # other weights are set above
            side, index, part, kind = match.groups()
            place = f"{side}/layer_{index}" if index else side
            names = _NORM if part.endswith("norm") else _RELATIVE
            setattr(find_part(spec, f"{place}/{_PARTS[part]}"), names.get(kind, kind), weight)
    return spec


def _weights_of_layers(model: Transformer, config: ModelConfig) -> dict[str, Any]:
    """Return the weights by our names, with the parts that CTranslate2 stores separately."""
    weights = {name: _array(tensor) for name, tensor in model.state_dict().items()}
    for name in list(weights):
        if config.activation == "swiglu" and ".inner." in name:
            gate, ungated = np.split(weights[name], 2)
            weights[name] = gate
            weights[name.replace(".inner.", ".ungated.")] = ungated
        elif config.norm == "layer" and name.endswith("norm.weight"):
            # CTranslate2 treats a norm without a bias as RMSNorm.
            weights.setdefault(name.replace("weight", "bias"), 0 * weights[name])
    return weights


def converted_model(folder: Path, files: ModelFiles, dtype: str, *, with_shortlist: bool) -> Path:
    """Return the folder of the converted model. The first call converts it.

    The folder is in ``RUN/.cache``, or in the user's cache folder if the run folder is read-only.
    The name contains a hash of everything that affects the conversion, so that changed weights
    are converted again. You can delete the folder at any time. A lock ensures that parallel
    processes convert the model only once. If the folder exists, torch is not loaded.

    Args:
        folder: The run or model folder.
        files: The model.
        dtype: Type of the weights in CTranslate2's spelling, such as int8.
        with_shortlist: Whether to convert the shortlist, too.

    Raises:
        ConfigError: The model does not have a shortlist.
        CheckpointError: The weights are damaged.
        EngineLacksError: No cache folder is writable.
    """
    sizes = files.tokenizers.vocab_sizes
    shortlist = require_shortlist(folder, sizes) if with_shortlist else None
    config = files.config
    made_of = {  # everything that affects the conversion
        "converter": [sha256_of_file(path) for path in _CONVERTER],
        "weights": files.sha256,
        "model": config.model.model_dump(mode="json"),
        "positions": num_positions(config),
        "shortlist": sha256_of_file(folder / SHORTLIST) if with_shortlist else None,
    }
    name = f"ctranslate2-{dtype}-{sha256_of_json(made_of)[:16]}"
    places = {folder / ".cache": _KEPT_IN_RUN}
    with suppress(RuntimeError):  # a user without a home
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not cache.is_absolute():
            cache = Path.home() / ".cache"
        places[cache / "nmt"] = _KEPT_OF_USER
    for place in places:
        if _is_whole(place / name):
            return place / name
    problems = []
    for place, kept in places.items():
        try:
            return _convert(place / name, kept, files, dtype, shortlist)
        except OSError as error:
            problems.append(f"{place} cannot be written ({error.strerror or error})")
    problem = f"the model cannot be converted: {'; '.join(problems)}"
    logger.info("%s", problem)  # explains the slower engine, torch
    fix = "Make either folder writable, or use `engine` torch."
    raise EngineLacksError(f"The CTranslate2 engine cannot be used: {problem}.", fix=fix)


def _is_whole(folder: Path) -> bool:
    try:
        Manifest.read(folder).verify(folder)
    except CheckpointError:
        return False
    return True


def _convert(
    folder: Path, kept: int, files: ModelFiles, dtype: str, shortlist: ShortlistParts | None
) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.parent / ".lock", wait=True):
        if _is_whole(folder):  # another process was faster
            return folder
        logger.info("converting the model for CTranslate2 (only once): %s", folder)
        bundle = read_weights(files)
        with atomic_folder(folder, replace=True) as place:
            CTranslate2Target().write(place, bundle, dtype, shortlist)
            names = sorted(path.name for path in place.iterdir())
            Manifest.of(place, names, files.step).write(place)
        # The oldest conversions belong to deleted checkpoints or to other types.
        conversions = [*folder.parent.glob("ctranslate2-*")]
        conversions.sort(key=lambda path: -path.stat().st_mtime)
        for old in conversions[kept:]:
            logger.debug("removing an old converted model: %s", old)
            remove_folder(old)
    return folder
