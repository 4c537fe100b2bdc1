"""The CTranslate2 engine. Does not load torch, so that the first translation starts quickly.

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
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from nmt.checkpoint.model_folder import TOKENIZER, find_model, is_ctranslate2, load_folder_config
from nmt.config.inference import InferenceConfig
from nmt.config.model import DecodingConfig
from nmt.device import gpu_number, own_cores
from nmt.errors import CheckpointError, ConfigError, DeviceError, shell_command
from nmt.extras.exchange.ctranslate2 import (
    RECORD,
    VOCABULARY_MAP,
    converted_model,
    import_ctranslate2,
    not_expressed,
    not_followed,
    num_positions,
    positions_needed,
)
from nmt.files.json_file import Manifest, field, read_json
from nmt.inference.direction import Languages
from nmt.inference.engine import (
    Engine,
    EngineLacksError,
    EngineOptions,
    LoadedModel,
    Needs,
    parse_dtype,
)
from nmt.search.hypothesis import (
    NONE,
    Constraints,
    Hypothesis,
    Limits,
    length_penalty,
    limits_of,
    max_finished,
)
from nmt.text import BOS_ID, EOS_ID, PAD_ID
from nmt.text.tokenizer import load_tokenizers

logger = logging.getLogger(__name__)

# Outputs that CTranslate2 supports. Its attention is that of a single head, so it is not used.
_OUTPUTS = frozenset({"token_scores"})
_CONSTRAINTS = "a prefix or phrases for single lines"
_NO_PENALTY = 1e-30  # with exactly 0, CTranslate2 would also stop the search differently
_TOKENS_SCORED = 512  # per batch: every token needs memory for the whole vocabulary
_IMPOSSIBLE = -1e9  # CTranslate2 uses a large negative number for minus infinity
_Tokens = list[str]


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
