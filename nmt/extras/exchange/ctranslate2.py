"""The CTranslate2 engine, the conversion of models to its format, and a cache of converted models.

Importing this module loads neither CTranslate2 nor torch, so that the first translation starts
quickly. Converting a model loads both.

CTranslate2 does the search. This module makes the results equal to those of the torch engine:

- The module requests all beams, with EOS, because CTranslate2 divides a score by the length of the
  returned output.
- CTranslate2 has one length limit per batch; nmt has a limit per sentence. A sentence with a
  hypothesis that reaches the limit of the sentence is searched again, in a batch with this limit.
- CTranslate2 cuts a hypothesis off at the limit. The cost of EOS is added to its score. Such a
  sentence is searched again with more hypotheses, unless it is long: then it is hardly language.

With a shortlist, CTranslate2 lets all sentences of a batch use the target tokens of each other. So
that no translation depends on others, sentences are then searched one by one. On 1 thread and with
a vocabulary of 8,000, this takes 2.4 times (int8) or 3.3 times (float32) as long as no shortlist.

Two small differences remain. CTranslate2 gives the probability of PAD, BOS and UNK to the other
tokens, even if ``decoding.keep_special_mass`` is on; in a trained model this probability is almost
0. If more than K hypotheses finish at the same step, CTranslate2 returns only K of them.

Shapes: V vocabulary, D model width, P positions.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired
from weakref import WeakSet

import numpy as np
from pydantic import PositiveFloat, PositiveInt, Strict, StrictBool
from typing_extensions import TypedDict, override

from nmt.checkpoint.model_folder import (
    SHORTLIST,
    TOKENIZER,
    ModelFiles,
    find_model,
    is_ctranslate2,
    load_folder_config,
    read_weights,
)
from nmt.config.inference import InferenceConfig
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.device import gpu_number, own_cores
from nmt.errors import CheckpointError, ConfigError, DeviceError
from nmt.extras.exchange.export import ExportTarget
from nmt.files.atomic import atomic_folder, file_lock, remove_folder, write_json
from nmt.files.foreign import damaged, read_json
from nmt.files.json_file import Manifest, sha256_of_file, sha256_of_json
from nmt.inference.direction import Languages
from nmt.inference.engine import (
    Check,
    Engine,
    EngineLacksError,
    EngineOptions,
    LoadedModel,
    Needs,
    ShortlistParts,
    parse_dtype,
    require_shortlist,
)
from nmt.installation import read_toml, user_cache
from nmt.search.hypothesis import (
    NONE,
    Constraints,
    Hypothesis,
    Limits,
    length_penalty,
    limits_of,
    max_finished,
)
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from nmt.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

    from nmt.checkpoint.model_folder import ModelBundle
    from nmt.model.transformer import Transformer

logger = logging.getLogger(__name__)

MODEL = "model.bin"
RECORD = "export.json"
VOCABULARY_MAP = "vmap.txt"
# A change of these files makes converted models in the cache invalid.
_CONVERTER = [Path(__file__), Path(__file__).with_name("layers.toml")]
# Keys of the model section that must have their defaults. ``qk_norm``: in cross-attention,
# CTranslate2 normalises the queries of all heads together (its ``process_cross_attention``).
_NOT_EXPRESSED = frozenset({"norm_gain", "qk_norm"})
# Decoding options that must have their defaults, because CTranslate2 lacks them or computes them
# differently: its ``coverage_penalty`` uses one attention head of the last layer, ours the mean of
# many heads.
_NOT_FOLLOWED = frozenset({
    "coverage_penalty", "diverse_beam_groups", "sampling", "temperature", "top_k", "top_p",
    "epsilon_cutoff", "return_alternatives", "repetition_penalty", "search",
})  # fmt: skip
# A weight of a layer, such as decoder.3.cross_attention.output.bias, or of the last norm of a
# stack, such as decoder_norm.weight. Groups: stack, number of the layer (None for the last norm),
# part of the layer, array of the part.
_LAYER_WEIGHT = re.compile(r"(encoder|decoder)(?:\.(\d+)\.|_)(.+)\.(\w+)")
# Our names of activations, norms, linear layers and relative positions -> names in CTranslate2.
_NAMES = read_toml(__file__, "layers.toml")["ctranslate2"]
_MIN_POSITIONS = 1024  # of a converted model with sinusoids
# How many converted models stay in the cache of a run, and in the cache of the user.
_MAX_CACHED_IN_RUN = 4
_MAX_CACHED_OF_USER = 16
# Outputs that CTranslate2 supports. Its attention is that of the last layer only, which is enough
# for the places of placeholders, but worse than that of the torch engine.
_OUTPUTS = frozenset({"token_scores"})
_CONSTRAINTS = "a prefix or phrases for single lines"
_MAX_REPEATED_TOKENS = 64  # of a source that is searched again
_NO_PENALTY = 1e-30  # with exactly 0, CTranslate2 would also stop the search differently
_SCORE_BATCH_TOKENS = 512  # Small, because every token needs memory for the whole vocabulary.
IMPOSSIBLE = -1e9  # CTranslate2 uses a large negative number for minus infinity
_Tokens = list[str]  # The subwords of one sentence, as they are spelled in the vocabulary.


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
    unsupported = _changed_options("model", config, _NOT_EXPRESSED)
    if config.norm == "layer-std":
        unsupported.append('model.norm "layer-std"')
    return unsupported


def not_followed(options: DecodingConfig) -> list[str]:
    """Return the decoding options that CTranslate2 does not support, each as key and value."""
    return _changed_options("decoding", options, _NOT_FOLLOWED)


def _changed_options(
    section: str, options: ModelConfig | DecodingConfig, names: Set[str]
) -> list[str]:
    """Return those of the named options that differ from their defaults, as key and value."""
    changed = options.model_dump(include=set(names), exclude_defaults=True)
    return [f"{section}.{name} {json.dumps(value)}" for name, value in changed.items()]


def positions_needed(longest: int, config: InferenceConfig, decoding: DecodingConfig) -> int:
    """Return the positions needed for a line of ``longest`` subwords and its longest output."""
    # Beside its subwords, a source has EOS and, in some models, BOS. The limit of the output
    # includes EOS already.
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
    return max(_MIN_POSITIONS, needed)


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
        if unsupported := not_expressed(config.model):
            raise ConfigError(
                f"CTranslate2 does not support {', '.join(unsupported)}.",
                fix="Export with `to` safetensors, or train a model without this option.",
            )
        options = config.decoding
        # The export has the defaults of these options.
        dropped_names = {"keep_special_mass", *_NOT_FOLLOWED}
        if options.sampling or options.return_alternatives:
            # Only with these two options may n_best exceed the beam size, and both are dropped.
            dropped_names.add("n_best")
        decoding = DecodingConfig(**options.model_dump(exclude=dropped_names))
        return config.model_copy(update={"decoding": decoding})

    def adjust(self, spec: Any, bundle: ModelBundle) -> None:
        """Change the specification of a model before it is written."""

    @override
    def write(
        self, folder: Path, bundle: ModelBundle, dtype: str, shortlist: ShortlistParts | None
    ) -> None:
        model_config = bundle.config.model
        source_tokens, target_tokens = map(_vocabulary_tokens, bundle.tokenizers)
        position_limit = num_positions(bundle.config)
        # Models without a limit have no position encodings, so any number is right for them.
        spec = _specification(bundle, position_limit or _MIN_POSITIONS)
        self.adjust(spec, bundle)
        spec.register_source_vocabulary(source_tokens)
        spec.register_target_vocabulary(target_tokens)
        spec_config = spec.config
        spec_config.unk_token = target_tokens[UNK_ID]
        spec_config.bos_token = target_tokens[BOS_ID]
        spec_config.decoder_start_token = target_tokens[BOS_ID]
        spec_config.eos_token = target_tokens[EOS_ID]
        spec_config.add_source_bos = model_config.source_bos
        spec_config.add_source_eos = True
        spec_config.layer_norm_epsilon = model_config.norm_epsilon
        spec.validate()
        spec.optimize(quantization=dtype)
        spec.save(str(folder))
        if shortlist is not None:
            text = vocabulary_map(source_tokens, target_tokens, shortlist)
            (folder / VOCABULARY_MAP).write_text(text, encoding="utf-8", newline="\n")
        record = {
            "package_version": __version__,
            "ctranslate2_version": import_ctranslate2().__version__,
            "quantization": dtype,
            "num_positions": position_limit,
            "step": bundle.step,
            "sha256": bundle.sha256,
        }
        write_json(folder / RECORD, record)


def vocabulary_map(source: Sequence[str], target: Sequence[str], shortlist: ShortlistParts) -> str:
    r"""Return a shortlist in CTranslate2's format: source token, tab, target tokens.

    The line without a source token lists the target tokens that every sentence may need, with all
    special tokens (CTranslate2 adds UNK, BOS and EOS itself, too).

    Args:
        source: Tokens of the source vocabulary in the order of their ids. (V,).
        target: Tokens of the target vocabulary in the order of their ids.
        shortlist: The common target tokens, and the candidates of each source token.

    >>> lists = ShortlistParts(np.array([4]), np.array([[-1, -1]] * 4 + [[5, 4]]))
    >>> vocabulary_map("pubeA", "pubeXY", lists)
    '\tp u b e X\nA\tY X\n'
    """
    common_ids = sorted({PAD_ID, UNK_ID, BOS_ID, EOS_ID, *shortlist.common.tolist()})
    lines = ["\t" + " ".join(target[index] for index in common_ids)]
    for source_token, padded_ids in zip(source, shortlist.candidates.tolist(), strict=True):
        candidates = [target[index] for index in padded_ids if index >= 0]  # -1 is padding
        # A token that contains a separator of the format cannot be written.
        if candidates and {" ", "\t", "\n"}.isdisjoint(source_token):
            lines.append(f"{source_token}\t{' '.join(candidates)}")
    return "\n".join(lines) + "\n"


def _vocabulary_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return all tokens of a vocabulary in the order of their ids."""
    return [tokenizer.piece(index) for index in range(tokenizer.vocab_size)]


def _array(tensor: Tensor) -> Any:
    """Return a tensor on the CPU as an array of float32 with the layout of C."""
    return tensor.detach().float().contiguous().numpy()


def _specification(bundle: ModelBundle, num_positions: int) -> Any:
    """Convert a model to CTranslate2's specification, with ``num_positions`` positions.

    A specification is a tree of objects. Its attributes are arrays, such as ``weight``, or further
    specifications, such as ``layer_0``.
    """
    specs = import_ctranslate2("ctranslate2.specs")
    find_spec = import_ctranslate2("ctranslate2.specs.model_spec").index_spec
    config = bundle.config.model
    model = bundle.model
    stacks = []
    # For each stack: its class, its number of layers, the module that embeds its input tokens, and
    # the embedding matrix of this module (V, D).
    for stack_class, num_layers, embedding, vectors in (
        (specs.TransformerEncoderSpec, config.encoder_layers, model.source_embedding,
         model.source_vectors),
        (specs.TransformerDecoderSpec, config.decoder_layers, model.target_embedding,
         model.target_embeddings),
    ):  # fmt: skip
        dim = vectors.shape[1]
        stack = stack_class(
            num_layers,
            num_heads=config.num_heads,
            pre_norm=config.norm_position == "pre",
            activation=specs.Activation[_NAMES["activations"][config.activation]],
            ffn_glu=config.activation == "swiglu",
            rms_norm=config.norm == "rms",
            num_heads_kv=config.num_kv_heads,
            relative_position=config.positions == "relative",
            rotary_dim=dim // config.num_heads if config.positions == "rotary" else None,
            rotary_interleave=False,
        )
        if stack_class is specs.TransformerDecoderSpec:
            stack.alignment_heads = np.int16(config.num_heads)  # attention is the mean of all heads
            # CTranslate2 returns the attention of one layer. The last but one aligns best (Garg et
            # al. 2019), if it is in the upper half.
            aligning_layer = max(num_layers - 2, num_layers // 2)
            stack.alignment_layer = np.int16(aligning_layer)
        stack.scale_embeddings = config.scale_embeddings
        if config.positions not in ("rotary", "relative"):
            # A model without positions gets zeros: without encodings, CTranslate2 would add
            # sinusoids.
            encodings = np.zeros((num_positions, dim), np.float32)
            table = embedding.position_table(num_positions)
            if table is not None:
                first = config.first_position  # CTranslate2 counts from 0
                encodings = _array(table[first : first + num_positions])
            stack.position_encodings.encodings = encodings  # (P, D)
        stacks.append(stack)
    spec = specs.TransformerSpec(*stacks)
    spec.encoder.embeddings[0].weight = _array(model.source_vectors)
    spec.decoder.embeddings.weight = _array(model.target_embeddings)
    spec.decoder.start_from_zero_embedding = config.decoder_start == "zero"
    spec.decoder.projection.weight = _array(model.output_weight)
    if model.output_bias is not None:
        spec.decoder.projection.bias = _array(model.output_bias)
    for name, weight in _separate_weights(model, config).items():
        match = _LAYER_WEIGHT.fullmatch(name)
        if match:  # the weights outside of layers are set above
            side, layer, part, array = match.groups()
            path = f"{side}/layer_{layer}" if layer else side
            # Arrays of norms and relative positions have other names in CTranslate2; those of
            # linear layers, ``weight`` and ``bias``, have the same names.
            array_names = _NAMES["norms" if part.endswith("norm") else "positions"]
            part_spec = find_spec(spec, f"{path}/{_NAMES['parts'][part]}")
            setattr(part_spec, array_names.get(array, array), weight)
    return spec


def _separate_weights(model: Transformer, config: ModelConfig) -> dict[str, Any]:
    """Return all weights by our names, split and completed as CTranslate2 stores them.

    The first projection of SwiGLU is one matrix here, and two there: ``inner`` for the half with
    the activation, ``ungated`` for the other half. A LayerNorm without a bias gets a bias of 0.
    """
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
    inputs = {  # everything that affects the conversion
        "converter": [sha256_of_file(path) for path in _CONVERTER],
        "weights": files.sha256,
        "model": config.model.model_dump(mode="json"),
        "positions": num_positions(config),
        "shortlist": sha256_of_file(folder / SHORTLIST) if with_shortlist else None,
    }
    name = f"ctranslate2-{dtype}-{sha256_of_json(inputs)[:16]}"
    # Cache folder -> maximum number of converted models in it. The first one is preferred.
    caches = {folder / ".cache": _MAX_CACHED_IN_RUN}
    if cache := user_cache():
        caches[cache] = _MAX_CACHED_OF_USER
    for cache in caches:
        if _is_complete(cache / name):
            return cache / name
    problems = []
    for cache, max_cached in caches.items():
        try:
            return _convert(cache / name, max_cached, files, dtype, shortlist)
        except OSError as error:
            problems.append(f"{cache} cannot be written ({error.strerror or error})")
    problem = f"the model cannot be converted: {'; '.join(problems)}"
    logger.info("%s", problem)  # explains the slower engine, torch
    raise EngineLacksError(
        f"The CTranslate2 engine cannot be used: {problem}.",
        fix="Make either folder writable, or use `engine` torch.",
    )


def _is_complete(folder: Path) -> bool:
    """Whether a folder has a manifest, and all files of the manifest are unchanged."""
    try:
        Manifest.read(folder).verify(folder)
    except CheckpointError:
        return False
    return True


def _convert(
    folder: Path, max_cached: int, files: ModelFiles, dtype: str, shortlist: ShortlistParts | None
) -> Path:
    """Convert a model into ``folder``, and return ``folder``.

    Only the newest ``max_cached`` conversions stay beside it, this one included.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.parent / ".lock", wait=True):
        if _is_complete(folder):  # another process was faster
            return folder
        logger.info("converting the model for CTranslate2 (only once): %s", folder)
        bundle = read_weights(files)
        with atomic_folder(folder, replace=True) as new_folder:
            CTranslate2Target().write(new_folder, bundle, dtype, shortlist)
            names = sorted(path.name for path in new_folder.iterdir())
            Manifest.of(new_folder, names, files.step).write(new_folder)
        # The oldest conversions belong to deleted checkpoints or to other types.
        conversions = [*folder.parent.glob("ctranslate2-*")]
        conversions.sort(key=lambda path: -path.stat().st_mtime)  # the newest first
        for old_conversion in conversions[max_cached:]:
            logger.debug("removing an old converted model: %s", old_conversion)
            remove_folder(old_conversion)
    return folder


def lacking(needs: Needs) -> list[str]:
    """Return the requirements that CTranslate2 does not support.

    >>> lacking(Needs(decoding=DecodingConfig(sampling=True), outputs=frozenset({"attention"})))
    ['decoding.sampling true', 'attention']
    """
    unsupported = not_followed(needs.decoding)
    if needs.constraints:
        unsupported.append(_CONSTRAINTS)
    return unsupported + sorted(needs.outputs - _OUTPUTS)


def _look_up(vocabulary: Sequence[str], sentences: Iterable[Sequence[int]]) -> list[_Tokens]:
    """Return the tokens of each sentence; ``sentences`` are ids, which index ``vocabulary``."""
    return [list(map(vocabulary.__getitem__, ids)) for ids in sentences]


class _Record(TypedDict):
    """What is read of `RECORD`."""

    quantization: str
    num_positions: PositiveInt | None


class _Config(TypedDict):
    """config.json of CTranslate2, which finds damage only when it translates."""

    unk_token: str
    bos_token: str
    eos_token: str
    decoder_start_token: str
    add_source_bos: StrictBool
    add_source_eos: StrictBool
    multi_query_attention: NotRequired[StrictBool]
    layer_norm_epsilon: NotRequired[Annotated[PositiveFloat, Strict()] | None]


class CTranslate2Engine(Engine):
    """Translates and scores with a model that was converted for CTranslate2.

    In a search, PAD, UNK and BOS have probability 0. In scores of existing translations, and for
    the EOS of an output at its length limit, PAD, UNK and BOS keep their probability: less than
    1e-4 per token in a trained model.

    Args:
        folder: The converted model, including the file `RECORD`.
        device: Device to compute on.
        threads: CPU threads; all cores when None.

    Raises:
        ConfigError: CTranslate2 is not installed.
        CheckpointError: The model cannot be read.
        DeviceError: The machine does not have the device.
    """

    name = "ctranslate2"

    def __init__(self, folder: Path, *, device: str = "auto", threads: int | None = None) -> None:
        package = import_ctranslate2()
        num_gpus = package.get_cuda_device_count()
        if device not in ("auto", "cpu") and not num_gpus:
            raise DeviceError(
                "CTranslate2 cannot find a CUDA device.", fix="Use `device` cpu, or `device` auto."
            )
        self.on_gpu = device != "cpu" and num_gpus > 0
        try:
            record = read_json(folder / RECORD, _Record)
            self.dtype = record["quantization"]
            self.max_positions = record["num_positions"]  # with EOS; None without a limit
            self._threads = threads or own_cores()
            # Each thread translates its own batch: single steps are too short to share.
            self._load = partial(
                package.Translator,
                str(folder),
                device="cuda" if self.on_gpu else "cpu",
                device_index=gpu_number(device, num_gpus) if self.on_gpu else 0,
                inter_threads=self._threads,
                intra_threads=1,
            )
            self.loaded: Any = self._load()  # None after a fork, see `_model`
            self._source_tokens = _vocabulary(folder, "source")
            self._target_tokens = _vocabulary(folder, "target")
            config = read_json(folder / "config.json", _Config)
            if config["decoder_start_token"] != self._target_tokens[BOS_ID]:
                raise ValueError("decoder_start_token is not the third token of the vocabulary")
        except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
            raise damaged(f"{folder} cannot be loaded by CTranslate2: {error}.") from error
        self._has_shortlist = (folder / VOCABULARY_MAP).is_file()
        # Target token -> its id.
        self._target_ids = {token: index for index, token in enumerate(self._target_tokens)}
        # Sequences of one token each. CTranslate2 excludes UNK by an option of its own.
        self._excluded = [[self._target_tokens[index]] for index in (PAD_ID, BOS_ID)]
        _ENGINES.add(self)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Number of entries of the source and of the target vocabulary."""
        return len(self._source_tokens), len(self._target_tokens)

    @property
    def _model(self) -> Any:
        """CTranslate2's translator, which is loaded again after a fork."""
        model = self.loaded  # another thread may fork now
        if model is None:
            model = self._load()
            self.loaded = model
        return model

    @override
    def lacks(self, needs: Needs) -> list[str]:
        unsupported = lacking(needs)
        if needs.decoding.shortlist and not self._has_shortlist:
            unsupported.append("decoding.shortlist true (exported without a shortlist)")
        return unsupported

    @property
    @override
    def num_workers(self) -> int:
        return 1 if self.on_gpu else self._threads

    @override
    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
        check: Check = lambda: None,
    ) -> list[list[Hypothesis]]:
        constraints = constraints or [NONE] * len(sources)
        for constraint in constraints:
            if replace(constraint, start=None) != NONE:  # only a start token is supported
                raise EngineLacksError.of(self.name, [_CONSTRAINTS])
        source_tokens = _look_up(self._source_tokens, sources)
        starts = _look_up(self._target_tokens, [each.first_ids for each in constraints])
        limits = [limits_of(len(ids), options, self.max_positions) for ids in sources]
        # Other lengths in a batch mean padding, which changes sums within rounding. In int8 this
        # changes texts; in float32 no text of 2,000 lines changed, in 20% less time.
        mixes_lengths = self.dtype == "float32"
        is_repeated = mixes_lengths or options.beam_size > 1
        # Indices of sentences are called ``row``: all lists here have one entry per sentence.
        nbest_lists: list[list[Hypothesis]] = [[] for _ in sources]
        pending: Sequence[int] = range(len(sources))  # the sentences to search in this pass
        for to_the_limit in (False, True):
            # Sentences of one length have the same limits. The first pass mixes lengths, with the
            # highest maximum, and the second pass repeats the sentences that reach their limit.
            groups = defaultdict[Any, list[int]](list)  # length, or minimum -> sentences
            for row in pending:
                group: Any = len(sources[row])
                if mixes_lengths and not to_the_limit and group <= _MAX_REPEATED_TOKENS:
                    group = "mixed", limits[row].shortest
                groups[group].append(row)
            for batch in groups.values():
                longest = max(limits[row].longest for row in batch)
                check()
                batch_lists = self._search_batch(
                    [source_tokens[row] for row in batch],
                    [starts[row] for row in batch],
                    limits[batch[0]]._replace(longest=longest),
                    options,
                    to_the_limit=to_the_limit,
                )
                for row, hypotheses in zip(batch, batch_lists, strict=True):
                    nbest_lists[row] = hypotheses
            pending = []  # for the second pass
            for row, limit in enumerate(limits):
                if not is_repeated or len(sources[row]) > _MAX_REPEATED_TOKENS:
                    continue
                lengths = [len(hypothesis.ids) for hypothesis in nbest_lists[row]]
                # The limit counts the start token and EOS; ``ids`` have neither.
                if lengths and len(starts[row]) + max(lengths) >= limit.longest - 1:
                    pending.append(row)
        return [hypotheses[: options.n_best] for hypotheses in nbest_lists]

    def _search_batch(
        self,
        sources: Sequence[_Tokens],
        starts: Sequence[_Tokens],
        limits: Limits,
        options: DecodingConfig,
        *,
        to_the_limit: bool,
    ) -> list[list[Hypothesis]]:
        """Search a batch with the same limits; return all finished hypotheses, best first.

        Args:
            sources: Tokens of each source sentence, without EOS.
            starts: Start token of each sentence, or an empty list.
            limits: Minimum and maximum length of all outputs.
            options: The decoding section.
            to_the_limit: Whether hypotheses are known to reach the length limit. Hypotheses that
                are cut off would displace finished ones, so more hypotheses are requested.
        """
        num_finished = max_finished(options, options.beam_size)  # this many end the search
        num_hypotheses = min(options.beam_size, num_finished)
        if to_the_limit and options.beam_size > 1:  # greedy search has one hypothesis
            num_finished += options.beam_size
            num_hypotheses = num_finished
        results = self._model.translate_batch(
            sources,
            target_prefix=starts,
            beam_size=options.beam_size,
            num_hypotheses=num_hypotheses,
            patience=num_finished / options.beam_size,
            length_penalty=options.length_penalty or _NO_PENALTY,
            min_decoding_length=limits.shortest - 1,  # CTranslate2 does not count EOS
            max_decoding_length=max(limits.longest - 1, 1),  # 0 is not allowed
            max_input_length=0,
            disable_unk=True,
            suppress_sequences=self._excluded,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            return_end_token=True,
            return_scores=True,
            use_vmap=options.shortlist,
            max_batch_size=int(options.shortlist),  # 1 sentence, or no limit
        )
        eos = self._target_tokens[EOS_ID]
        # Hypotheses without EOS were cut off at the limit. They are scored once more, with EOS.
        cut_sources = []
        cut_targets = []
        for source, result in zip(sources, results, strict=True):
            for tokens in result.hypotheses:
                if tokens[-1] != eos:
                    cut_sources.append(source)
                    cut_targets.append(tokens)
        cut_log_probs = iter(self._score(cut_sources, cut_targets))  # in the order of the loop
        penalty = length_penalty(options)
        nbest_lists = []
        for start, result in zip(starts, results, strict=True):
            finished = []
            for tokens, normalized in zip(result.hypotheses, result.scores, strict=True):
                # CTranslate2 has divided by this power of the length of its output.
                log_prob = normalized * len(tokens) ** options.length_penalty
                if tokens[-1] != eos:
                    log_prob += next(cut_log_probs)[-1]  # the last token is EOS
                ids = tuple(self._target_ids[token] for token in tokens if token != eos)
                if log_prob > IMPOSSIBLE:  # excludes NaN, too
                    score = log_prob / penalty(len(ids) + 1)  # the length includes EOS
                    # A `Hypothesis` has its ids without the start token.
                    finished.append(Hypothesis(ids[len(start) :], log_prob, score))
            finished.sort(key=lambda hypothesis: -hypothesis.score)
            nbest_lists.append(finished)
        return nbest_lists

    @override
    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[list[float]]]:
        results = self._model.translate_batch(
            _look_up(self._source_tokens, sources),
            target_prefix=_look_up(self._target_tokens, targets),
            beam_size=1,
            max_decoding_length=max(map(len, targets), default=0) + 1,
            max_input_length=0,
            return_attention=True,
        )
        matrices = []
        for source, target, result in zip(sources, targets, results, strict=True):
            # Leave out the source EOS, and what follows the target.
            rows = result.attention[0][: len(target)]
            matrices.append([row[: len(source)] for row in rows])
        return matrices

    @override
    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        source_tokens = _look_up(self._source_tokens, sources)
        return self._score(source_tokens, _look_up(self._target_tokens, targets))

    def _score(self, sources: Sequence[_Tokens], targets: Sequence[_Tokens]) -> list[list[float]]:
        """Return the log probability of every token of each target, and of the EOS after it."""
        if not sources:
            return []
        results = self._model.score_batch(
            sources,
            targets,
            max_input_length=0,
            max_batch_size=_SCORE_BATCH_TOKENS,
            batch_type="tokens",
        )
        return [list(result.log_probs) for result in results]


_ENGINES = WeakSet[CTranslate2Engine]()


def _unload() -> None:
    """Delete all models. In a forked process, their threads would be missing and awaited."""
    for engine in list(_ENGINES):
        engine.loaded = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_unload)


def _vocabulary(folder: Path, side: str) -> list[str]:
    """Read the tokens of a converted model; ``side`` is source or target."""
    path = folder / "shared_vocabulary.json"
    if not path.is_file():
        path = folder / f"{side}_vocabulary.json"
    return read_json(path, list[str])


def load_ctranslate2(folder: Path, options: EngineOptions, needs: Needs) -> LoadedModel:
    """Load an exported model; or convert a model, cache the result, and load the result.

    Raises:
        EngineLacksError: CTranslate2 does not support the requirements or the model.
        ConfigError: CTranslate2 is not installed, or the export has a different dtype.
        CheckpointError: A file is missing or damaged.
    """
    if options.ensemble is not None and options.ensemble.others:
        _refuse(["ensembles"])
    dtype = parse_dtype(options.dtype)
    if is_ctranslate2(folder):
        if options.checkpoint != "best":
            message = "%s contains a single model; `checkpoint` %s is ignored."
            logger.warning(message, folder, options.checkpoint)
        Manifest.read(folder).verify(folder)
        converted = folder
        config = load_folder_config(folder)
        tokenizers = load_tokenizers(folder / TOKENIZER)
    else:
        import_ctranslate2()
        _refuse(lacking(needs))
        files = find_model(folder, options.checkpoint)
        config = files.config
        _refuse([*not_expressed(config.model), *_too_long(config, needs)])
        tokenizers = files.tokenizers
        dtype = dtype or "float32"
        converted = converted_model(folder, files, dtype, with_shortlist=needs.decoding.shortlist)
    engine = CTranslate2Engine(converted, device=options.device, threads=options.threads)
    if engine.vocab_sizes != tokenizers.vocab_sizes:
        raise damaged(f"{converted} has other vocabularies than {folder / TOKENIZER}.")
    if dtype not in (None, engine.dtype):  # None: any type of an export is fine
        raise ConfigError(
            f"{folder} was exported in {engine.dtype}.",
            fix=f"Remove `dtype`, or export again with `quantization` {dtype}.",
        )
    return LoadedModel(engine, tokenizers, config.decoding, config.max_length, Languages.of(config))


def _refuse(unsupported: list[str]) -> None:
    if unsupported:
        raise EngineLacksError.of("ctranslate2", unsupported)


def _too_long(config: InferenceConfig, needs: Needs) -> list[str]:
    """Describe the positions that are needed beyond those of a converted model.

    Returns:
        One requirement that the converted model does not support, or nothing. Learned positions
        have the same limit in every engine, so it is not a reason to use a different engine.
    """
    limit = num_positions(config)
    if limit is None or config.model.positions == "learned":
        return []
    if needs.longest is None:
        return ["positions for lines of any length"]
    longest = max(config.max_length, needs.longest)
    num_needed = positions_needed(longest, config, needs.decoding)
    if num_needed <= limit:
        return []
    return [f"{num_needed:,} positions (the limit is {limit:,})"]
