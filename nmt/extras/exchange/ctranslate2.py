"""The CTranslate2 engine, the conversion of models to its format, and a cache of converted models.

Importing this module loads neither CTranslate2 nor torch, so that the first translation starts
quickly. Converting a model loads both.

CTranslate2 does the search. This module makes the results equal to those of the torch engine:

- The module requests all beams, with EOS, because CTranslate2 divides a score by the length of the
  returned output.
- CTranslate2 has one length limit per batch; nmt has a limit per sentence. A sentence with a
  hypothesis that reaches the limit of the sentence is searched again, in a batch with this limit.
- CTranslate2 cuts a hypothesis off at the limit. Here the cost of EOS is added to its score.

With a shortlist, all sentences of a batch can use the target tokens of each other, so a translation
can depend on the batch.

Two small differences remain. CTranslate2 gives the probability of PAD, BOS and UNK to the other
tokens; in a trained model this probability is almost 0. If more than K hypotheses finish at the
same step, CTranslate2 returns only K of them.

Shapes: V vocabulary, D model width, P positions.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

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
from nmt.errors import CheckpointError, ConfigError, DeviceError, shell_command
from nmt.extras.exchange.export import ExportTarget
from nmt.files.atomic import atomic_folder, file_lock, remove_folder, write_json
from nmt.files.json_file import Manifest, field, read_json, sha256_of_file, sha256_of_json
from nmt.inference.direction import Languages
from nmt.inference.engine import (
    Engine,
    EngineLacksError,
    EngineOptions,
    LoadedModel,
    Needs,
    ShortlistParts,
    parse_dtype,
    require_shortlist,
)
from nmt.installation import read_toml
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
_NOT_EXPRESSED = frozenset({"qk_norm"})
# Decoding options that must have their defaults, because CTranslate2 lacks them or computes them
# differently: its ``coverage_penalty`` uses one attention head of the last layer, ours the mean of
# many heads.
_NOT_FOLLOWED = frozenset({
    "coverage_penalty", "diverse_beam_groups", "sampling", "temperature", "top_k", "top_p",
    "epsilon_cutoff", "return_alternatives", "repetition_penalty", "search", "keep_special_mass",
})  # fmt: skip
_OF_LAYERS = re.compile(r"(encoder|decoder)(?:\.(\d+)\.|_)(.+)\.(\w+)")
# Our names of activations, norms, linear layers and relative positions -> names in CTranslate2.
_NAMES = read_toml(__file__, "layers.toml")["ctranslate2"]
_LEAST_POSITIONS = 1024
_KEPT_IN_RUN = 4
_KEPT_OF_USER = 16
# Outputs that CTranslate2 supports. Its attention is that of a single head, so it is not used.
_OUTPUTS = frozenset({"token_scores"})
_CONSTRAINTS = "a prefix or phrases for single lines"
_NO_PENALTY = 1e-30  # with exactly 0, CTranslate2 would also stop the search differently
_TOKENS_SCORED = 512  # per batch: every token needs memory for the whole vocabulary
_IMPOSSIBLE = -1e9  # CTranslate2 uses a large negative number for minus infinity
_Tokens = list[str]


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
            activation=specs.Activation[_NAMES["activations"][config.activation]],
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
            arrays = _NAMES["norms" if part.endswith("norm") else "positions"]
            theirs = find_part(spec, f"{place}/{_NAMES['parts'][part]}")
            setattr(theirs, arrays.get(kind, kind), weight)
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


def lacking(needs: Needs) -> list[str]:
    """Return the requirements that CTranslate2 does not support.

    >>> lacking(Needs(decoding=DecodingConfig(sampling=True), outputs=frozenset({"attention"})))
    ['decoding.sampling true', 'attention']
    """
    names = not_followed(needs.decoding)
    if needs.constraints:
        names.append(_CONSTRAINTS)
    return names + sorted(needs.outputs - _OUTPUTS)


def _tokens_of(vocabulary: Sequence[str], rows: Iterable[Sequence[int]]) -> list[_Tokens]:
    """Return the tokens of sentences of ids."""
    return [list(map(vocabulary.__getitem__, ids)) for ids in rows]


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
            fix = "Use `device` cpu, or `device` auto."
            raise DeviceError("CTranslate2 cannot find a CUDA device.", fix=fix)
        self.on_gpu = device != "cpu" and num_gpus > 0
        try:
            record = read_json(folder / RECORD)
            self.dtype = record["quantization"]
            self.max_positions = record["num_positions"]
            self._threads = threads or own_cores()
            # Each thread translates its own batch: single steps are too short to share.
            self._model: Any = package.Translator(
                str(folder),
                device="cuda" if self.on_gpu else "cpu",
                device_index=gpu_number(device, num_gpus) if self.on_gpu else 0,
                inter_threads=self._threads,
                intra_threads=1,
            )
            self._source_tokens = _vocabulary(folder, "source")
            self._target_tokens = _vocabulary(folder, "target")
        except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
            problem = f"{folder} cannot be loaded by CTranslate2: {error}."
            again = shell_command("export", "RUN", to="ctranslate2", output="FOLDER")
            raise CheckpointError(problem, fix=f"Export the model again: {again}") from error
        self._has_map = (folder / VOCABULARY_MAP).is_file()
        self._ids = {token: index for index, token in enumerate(self._target_tokens)}
        self._never = [[self._target_tokens[index]] for index in (PAD_ID, BOS_ID)]

    @override
    def lacks(self, needs: Needs) -> list[str]:
        missing = lacking(needs)
        if needs.decoding.shortlist and not self._has_map:
            missing.append("decoding.shortlist true (exported without a shortlist)")
        return missing

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
    ) -> list[list[Hypothesis]]:
        fixed = constraints or [NONE] * len(sources)
        others = [replace(each, start=None) for each in fixed]
        if any(each != NONE for each in others):
            raise EngineLacksError.of(self.name, [_CONSTRAINTS])
        texts = _tokens_of(self._source_tokens, sources)
        starts = _tokens_of(self._target_tokens, [each.first_ids for each in fixed])
        limits = [limits_of(len(ids), options, self.max_positions) for ids in sources]
        hypotheses: list[list[Hypothesis]] = [[] for _ in sources]
        rows: Sequence[int] = range(len(sources))
        for to_the_limit in (False, True):
            groups = defaultdict[Any, list[int]](list)
            for row in rows:
                limit = limits[row]
                key = limit if to_the_limit else limit.shortest
                groups[key].append(row)
            for _, batch in sorted(groups.items()):
                shortest = limits[batch[0]].shortest
                longest = max(limits[row].longest for row in batch)
                outputs = self._run(
                    [texts[row] for row in batch],
                    [starts[row] for row in batch],
                    Limits(shortest, longest),
                    options,
                    to_the_limit=to_the_limit,
                )
                for row, output in zip(batch, outputs, strict=True):
                    hypotheses[row] = output
            rows = []
            for row, limit in enumerate(limits):
                lengths = [len(each.ids) for each in hypotheses[row]]
                if lengths and len(starts[row]) + max(lengths) >= limit.longest - 1:
                    rows.append(row)
        return [each[: options.n_best] for each in hypotheses]

    def _run(
        self,
        texts: Sequence[_Tokens],
        starts: Sequence[_Tokens],
        limits: Limits,
        options: DecodingConfig,
        *,
        to_the_limit: bool,
    ) -> list[list[Hypothesis]]:
        """Search a batch with the same limits; return all finished hypotheses, best first.

        ``starts`` contains the start token of each sentence, if any.
        Set ``to_the_limit`` if hypotheses are known to reach the length limit. Hypotheses that are
        cut off would displace finished hypotheses, so more hypotheses are requested.
        """
        enough = max_finished(options, options.beam_size)
        wanted = min(options.beam_size, enough)
        if to_the_limit and options.beam_size > 1:  # greedy search has one hypothesis
            enough += options.beam_size
            wanted = enough
        results = self._model.translate_batch(
            texts,
            target_prefix=starts,
            beam_size=options.beam_size,
            num_hypotheses=wanted,
            patience=enough / options.beam_size,
            length_penalty=options.length_penalty or _NO_PENALTY,
            min_decoding_length=limits.shortest - 1,
            max_decoding_length=limits.longest - 1,
            max_input_length=0,
            disable_unk=True,
            suppress_sequences=self._never,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            return_end_token=True,
            return_scores=True,
            use_vmap=options.shortlist,
        )
        end = self._target_tokens[EOS_ID]
        cut_sources = []
        cut_targets = []
        for text, result in zip(texts, results, strict=True):
            for tokens in result.hypotheses:
                if tokens[-1] != end:
                    cut_sources.append(text)
                    cut_targets.append(tokens)
        cut_scores = iter(self._score(cut_sources, cut_targets) if to_the_limit else ())
        penalty = length_penalty(options)
        hypotheses = []
        for start, result in zip(starts, results, strict=True):
            finished = []
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                log_prob = score * len(tokens) ** options.length_penalty
                if to_the_limit and tokens[-1] != end:
                    log_prob += next(cut_scores)[-1]  # the cost of EOS
                ids = tuple(self._ids[token] for token in tokens if token != end)
                if log_prob > _IMPOSSIBLE:  # excludes NaN, too
                    own_score = log_prob / penalty(len(ids) + 1)
                    finished.append(Hypothesis(ids[len(start) :], log_prob, own_score))
            finished.sort(key=lambda hypothesis: -hypothesis.score)
            hypotheses.append(finished)
        return hypotheses

    @override
    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        texts = _tokens_of(self._source_tokens, sources)
        return self._score(texts, _tokens_of(self._target_tokens, targets))

    def _score(self, sources: Sequence[_Tokens], targets: Sequence[_Tokens]) -> list[list[float]]:
        """Return the log probability of every token of each target, EOS included."""
        if not sources:
            return []
        results = self._model.score_batch(
            sources,
            targets,
            max_input_length=0,
            max_batch_size=_TOKENS_SCORED,
            batch_type="tokens",
        )
        return [list(result.log_probs) for result in results]


def _vocabulary(folder: Path, side: str) -> list[str]:
    path = folder / "shared_vocabulary.json"
    if not path.is_file():
        path = folder / f"{side}_vocabulary.json"
    return field(read_json(path), kind=list)


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
        place = folder
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
        place = converted_model(folder, files, dtype, with_shortlist=needs.decoding.shortlist)
    engine = CTranslate2Engine(place, device=options.device, threads=options.threads)
    if dtype not in (None, engine.dtype):
        fix = f"Remove `dtype`, or export again with `quantization` {dtype}."
        raise ConfigError(f"{folder} was exported in {engine.dtype}.", fix=fix)
    return LoadedModel(engine, tokenizers, config.decoding, config.max_length, Languages.of(config))


def _refuse(missing: list[str]) -> None:
    if missing:
        raise EngineLacksError.of("ctranslate2", missing)


def _too_long(config: InferenceConfig, needs: Needs) -> list[str]:
    """Return the requirement for more positions than the converted model has, if needed."""
    rows = num_positions(config)
    if rows is None or config.model.positions == "learned":
        return []
    if needs.longest is None:
        return ["positions for lines of any length"]
    longest = max(config.max_length, needs.longest)
    needed = positions_needed(longest, config, needs.decoding)
    if needed <= rows:
        return []
    return [f"{needed:,} positions (the limit is {rows:,})"]
