"""Our models as CTranslate2's: what it can express, and the files it reads.

Importing this loads neither CTranslate2 nor torch. Converting loads both.

Shapes: V vocabulary, D model width, P positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.targets import ExportTarget
from nmt.inference.engine import ShortlistParts
from nmt.search.hypothesis import limits_of
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import Tokenizer
from nmt.version import __version__

if TYPE_CHECKING:
    from nmt.checkpoint.model_folder import ModelBundle

# Raised when other files come of the same model: converted models that are kept are of one.
CONVERSION = 1
MODEL, RECORD, VOCABULARY_MAP = "model.bin", "export.json", "vmap.txt"
# Keys of the model section that may have any value but those below. Missing are ``qk_norm``, as in
# cross-attention CTranslate2 normalises the queries of all heads together (its
# ``process_cross_attention``).
_EXPRESSED = frozenset({
    "preset", "encoder_layers", "decoder_layers", "model_dim", "ff_dim", "num_heads",
    "num_kv_heads", "decoder_model_dim", "decoder_ff_dim", "norm_position", "norm", "norm_epsilon",
    "positions", "max_positions", "first_position", "max_relative_distance", "activation", "bias",
    "embeddings", "scale_embeddings", "output_bias", "decoder_start", "source_bos",
    "initialization", "dropout", "attention_dropout", "decoder_attention_dropout",
    "activation_dropout", "word_dropout",
})  # fmt: skip
# Decoding options that CTranslate2 has, or that mean nothing without one that it does not have; the
# others must have their defaults. One of them is ``coverage_penalty``: CTranslate2's counts what a
# single head of the last layer attends to, ours the mean of many.
_FOLLOWED = frozenset({
    "beam_size", "n_best", "length_penalty", "length_penalty_form", "max_length_factor",
    "max_length_offset", "min_length_factor", "batch_tokens", "patience", "no_repeat_ngram_size",
    "shortlist", "seed", "diverse_beam_strength", "prefix_bias_beta",
})  # fmt: skip
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}
_LEAST_POSITIONS = 1024
_LINEAR, _NORM = ("weight", "bias"), ("gamma", "beta")


def import_ctranslate2(name: str = "ctranslate2") -> Any:
    """Return the package, or the part of it called ``name``.

    The package alone does not load torch; its part ``ctranslate2.specs`` does.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        fix = "Install it: pip install 'nmt[ctranslate2]'."
        raise ConfigError("CTranslate2 is not installed.", fix=fix) from error


def not_expressed(config: ModelConfig) -> list[str]:
    """Return key and value of what CTranslate2 has no counterpart for in a model's shape."""
    faults = _differing("model", config, _EXPRESSED)
    return faults + (['model.norm "layer-std"'] if config.norm == "layer-std" else [])


def not_followed(options: DecodingConfig) -> list[str]:
    """Return key and value of the decoding options that CTranslate2 has no counterpart for."""
    return _differing("decoding", options, _FOLLOWED)


def _differing(section: str, values: ModelConfig | DecodingConfig, known: Set[str]) -> list[str]:
    defaults = type(values).model_fields
    return [
        f"{section}.{name} {json.dumps(value)}"
        for name, value in values.model_dump().items()
        if name not in known and value != defaults[name].default
    ]


def num_positions(config: RunConfig) -> int | None:
    """Return how many tokens, EOS included, a converted model reads and writes; None: any number.

    A table of sinusoids has as many rows as the longest line and its longest output need.
    """
    if config.model.positions in ("rotary", "relative"):
        return None
    if config.model.positions == "learned":
        return config.model.position_limit
    longest = config.filters.max_length
    most_written = limits_of(longest, config.decoding).longest
    return max(_LEAST_POSITIONS, longest + 1 + config.model.source_bos, most_written)


class CTranslate2Target(ExportTarget):
    """Exports for CTranslate2."""

    weights_name = MODEL
    dtypes: Sequence[str] = (
        "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16",
        "int8_bfloat16",
    )  # fmt: skip

    @override
    def check(self, config: RunConfig) -> None:
        import_ctranslate2()
        if faults := not_expressed(config.model):
            fix = "Export with `to` safetensors, or train a model without."
            raise ConfigError(f"CTranslate2 cannot express {', '.join(faults)}.", fix=fix)

    @override
    def decoding(self, options: DecodingConfig) -> DecodingConfig:
        single = options.sampling or options.return_alternatives  # n_best may then be any number
        kept = set(_FOLLOWED - {"n_best"} if single else _FOLLOWED)
        return DecodingConfig(**options.model_dump(include=kept))

    @override
    def write(
        self, folder: Path, bundle: ModelBundle, dtype: str, shortlist: ShortlistParts | None
    ) -> None:
        self.check(bundle.config)
        source, target = map(_tokens, (bundle.tokenizers.source, bundle.tokenizers.target))
        positions = num_positions(bundle.config)
        spec = _specification(bundle, positions or _LEAST_POSITIONS)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        spec.config.unk_token = target[UNK_ID]
        spec.config.bos_token = spec.config.decoder_start_token = target[BOS_ID]
        spec.config.eos_token = target[EOS_ID]
        spec.config.add_source_bos = bundle.config.model.source_bos
        spec.config.add_source_eos = True
        spec.config.layer_norm_epsilon = bundle.config.model.norm_epsilon
        spec.validate()
        spec.optimize(quantization=dtype)
        spec.save(str(folder))
        if shortlist is not None:
            text = vocabulary_map(source, target, shortlist)
            (folder / VOCABULARY_MAP).write_text(text, encoding="utf-8", newline="\n")
        versions = {
            "package_version": __version__,
            "ctranslate2_version": import_ctranslate2().__version__,
        }
        made_of = {"num_positions": positions, "step": bundle.step, "sha256": bundle.sha256}
        record = {**versions, "quantization": dtype, **made_of}
        text = json.dumps(record, indent=2) + "\n"
        (folder / RECORD).write_text(text, encoding="utf-8", newline="\n")


def vocabulary_map(source: Sequence[str], target: Sequence[str], shortlist: ShortlistParts) -> str:
    r"""Return CTranslate2's form of short lists: source token, tab, its target tokens.

    The line without a source token has those that every sentence may need. CTranslate2 adds
    unknown, BOS and EOS itself, and scores what any sentence of a batch may need for all of them.

    >>> lists = ShortlistParts(np.array([4]), np.array([[-1, -1]] * 4 + [[5, 4]]))
    >>> vocabulary_map("pubeA", "pubeXY", lists)
    '\tp u b e X\nA\tY X\n'
    """
    always = sorted({PAD_ID, UNK_ID, BOS_ID, EOS_ID, *shortlist.common.tolist()})
    lines = ["\t" + " ".join(target[index] for index in always)]
    for token, candidates in zip(source, shortlist.candidates.tolist(), strict=True):
        likely = [target[index] for index in candidates if index >= 0]
        if likely and not {" ", "\t", "\n"} & set(token):  # they separate tokens there
            lines.append(f"{token}\t{' '.join(likely)}")
    return "\n".join(lines) + "\n"


def _tokens(tokenizer: Tokenizer) -> list[str]:
    tokens = [text for text, _, _ in tokenizer.pieces()]
    if len(set(tokens)) < len(tokens):
        twice = next(token for token in tokens if tokens.count(token) > 1)
        problem = f"The vocabulary holds {twice!r} twice, which CTranslate2 cannot tell apart."
        raise CheckpointError(problem, fix="Export with `to` safetensors.")
    return tokens


def _specification(bundle: ModelBundle, num_positions: int) -> Any:
    """Put a model into CTranslate2's specification, with so many rows in a table of positions."""
    specs = import_ctranslate2("ctranslate2.specs")
    config, state = bundle.config.model, bundle.model.state_dict()
    weights = {name: tensor.float().contiguous().numpy() for name, tensor in state.items()}
    if config.activation == "swiglu":  # the gate comes first
        for name in [name for name in weights if ".inner." in name]:
            ungated = name.replace(".inner.", ".ungated.")
            weights[name], weights[ungated] = np.split(weights[name], 2)
    target = "source_vectors" if config.shares_inputs else "target_vectors"
    sides = (
        (specs.TransformerEncoderSpec, "encoder", "source", "source_vectors"),
        (specs.TransformerDecoderSpec, "decoder", "target", target),
    )
    parts = []
    for make, name, side, vectors in sides:
        dim = weights[vectors].shape[1]
        part = make(
            getattr(config, f"{name}_layers"),
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
        embeddings = part.embeddings[0] if name == "encoder" else part.embeddings
        embeddings.weight, part.scale_embeddings = weights[vectors], config.scale_embeddings
        if config.positions not in ("rotary", "relative"):
            table = getattr(bundle.model, f"{side}_embedding").position_table(num_positions)
            first = config.first_position
            part.position_encodings.encodings = (
                # Without a table CTranslate2 would make sinusoids.
                np.zeros((num_positions, dim), np.float32)
                if table is None
                else table[first : first + num_positions].detach().float().contiguous().numpy()
            )
        _fill(part, name, config, weights)
        parts.append(part)
    projection = parts[1].projection
    projection.weight = weights[target if config.ties_output else "output_vectors"]
    parts[1].start_from_zero_embedding = config.decoder_start == "zero"
    if config.output_bias:
        projection.bias = weights["output_bias"]
    return specs.TransformerSpec(*parts)


def _fill(part: Any, side: str, config: ModelConfig, weights: Mapping[str, Any]) -> None:
    """Set weights and biases of all layers of the encoder or the decoder."""
    for spec, name in _named_layers(part, side, config):
        is_norm = name.endswith("norm")
        for kind, our_kind in zip(_NORM if is_norm else _LINEAR, _LINEAR, strict=True):
            if f"{name}.{our_kind}" in weights:
                setattr(spec, kind, weights[f"{name}.{our_kind}"])
            elif is_norm and config.norm == "layer":  # without beta it would be an RMSNorm
                spec.beta = 0 * spec.gamma
    if config.positions == "relative":
        for index, layer in enumerate(part.layer):
            name, own = f"{side}.{index}.self_attention.positions", layer.self_attention
            own.relative_position_keys = weights[f"{name}.keys"]
            own.relative_position_values = weights[f"{name}.values"]


def _named_layers(part: Any, side: str, config: ModelConfig) -> Iterator[tuple[Any, str]]:
    """Yield CTranslate2's norms and linear layers of one side, with our names of them."""
    for index, layer in enumerate(part.layer):
        name = f"{side}.{index}"
        yield layer.self_attention.layer_norm, f"{name}.self_residual.norm"
        yield layer.self_attention.linear[0], f"{name}.self_attention.query_key_value"
        yield layer.self_attention.linear[1], f"{name}.self_attention.output"
        if side == "decoder":
            yield layer.attention.layer_norm, f"{name}.cross_residual.norm"
            for number, own in enumerate(("query", "key_value", "output")):
                yield layer.attention.linear[number], f"{name}.cross_attention.{own}"
        yield layer.ffn.layer_norm, f"{name}.feed_forward_residual.norm"
        yield layer.ffn.linear_0, f"{name}.feed_forward.inner"
        if config.activation == "swiglu":
            yield layer.ffn.linear_0_noact, f"{name}.feed_forward.ungated"
        yield layer.ffn.linear_1, f"{name}.feed_forward.outer"
    if config.norm_position == "pre":
        yield part.layer_norm, f"{side}_norm"
