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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
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
    found = not_followed(needs.decoding)
    found += [_CONSTRAINTS] if needs.constraints else []
    return found + sorted(needs.outputs - _OUTPUTS)


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
            shared = folder / "shared_vocabulary.json"
            paths = [folder / f"{side}_vocabulary.json" for side in ("source", "target")]
            self._source_tokens, self._target_tokens = (
                field(read_json(shared if shared.is_file() else path), kind=list) for path in paths
            )
        except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
            problem = f"{folder} cannot be loaded by CTranslate2: {error}."
            again = shell_command("export", "RUN", to="ctranslate2", output="FOLDER")
            raise CheckpointError(problem, fix=f"Export the model again: {again}") from error
        self._has_map = (folder / VOCABULARY_MAP).is_file()
        self._ids = {token: index for index, token in enumerate(self._target_tokens)}
        self._never = [[self._target_tokens[index]] for index in (PAD_ID, BOS_ID)]

    @override
    def lacks(self, needs: Needs) -> list[str]:
        without_map = needs.decoding.shortlist and not self._has_map
        missing = ["decoding.shortlist true (exported without a shortlist)"] if without_map else []
        return lacking(needs) + missing

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
        if any(replace(each, start=None) != NONE for each in fixed):
            raise EngineLacksError.of(self.name, [_CONSTRAINTS])
        starts = [[self._target_tokens[index] for index in each.first_ids] for each in fixed]
        inputs = list(zip(self._texts(sources), starts, strict=True))
        limits = [limits_of(len(ids), options, self.max_positions) for ids in sources]
        found = dict[int, list[Hypothesis]]()
        rows: Iterable[int] = range(len(sources))
        for to_the_limit in (False, True):
            key = limits.__getitem__ if to_the_limit else (lambda row: limits[row].shortest)
            for _, group in groupby(sorted(rows, key=key), key):
                batch = list(group)
                longest = max(limits[row].longest for row in batch)
                together = Limits(limits[batch[0]].shortest, longest)
                own = [inputs[row] for row in batch]
                outputs = self._run(own, together, options, to_the_limit=to_the_limit)
                found.update(zip(batch, outputs, strict=True))
            rows = [
                row
                for row, limit in enumerate(limits)
                if any(len(starts[row]) + len(x.ids) >= limit.longest - 1 for x in found[row])
            ]
        return [found[row][: options.n_best] for row in range(len(sources))]

    def _run(
        self,
        inputs: Sequence[tuple[_Tokens, _Tokens]],
        limits: Limits,
        options: DecodingConfig,
        *,
        to_the_limit: bool,
    ) -> list[list[Hypothesis]]:
        """Search a batch with the same limits; return all finished hypotheses, best first.

        ``inputs`` contains the source and the start token of each sentence, if any.
        Set ``to_the_limit`` if hypotheses are known to reach the length limit. Hypotheses that are
        cut off would displace finished hypotheses, so more hypotheses are requested.
        """
        texts, starts = map(list, zip(*inputs, strict=True))
        enough = max_finished(options, options.beam_size)
        wanted = min(options.beam_size, enough)
        if to_the_limit and options.beam_size > 1:  # greedy search has one hypothesis
            wanted = enough = enough + options.beam_size
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
        outputs = [
            (row, tokens, score * len(tokens) ** options.length_penalty)
            for row, result in enumerate(results)
            for tokens, score in zip(result.hypotheses, result.scores, strict=True)
        ]
        end, penalty = self._target_tokens[EOS_ID], length_penalty(options)
        cut = [(texts[row], tokens) for row, tokens, _ in outputs if tokens[-1] != end]
        # Add the cost of EOS to hypotheses that were cut off at the limit.
        ends = iter(self._score(cut) if to_the_limit else [[0.0]] * len(cut))
        found: list[list[Hypothesis]] = [[] for _ in texts]
        for row, tokens, log_prob in outputs:
            total = log_prob if tokens[-1] == end else log_prob + next(ends)[-1]
            ids = tuple(self._ids[token] for token in tokens if token != end)
            if total > _IMPOSSIBLE:  # excludes NaN, too
                score = total / penalty(len(ids) + 1)
                found[row].append(Hypothesis(ids[len(starts[row]) :], total, score))
        return [sorted(each, key=lambda hypothesis: -hypothesis.score) for each in found]

    @override
    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        texts = ([self._target_tokens[index] for index in ids] for ids in targets)
        return self._score(list(zip(self._texts(sources), texts, strict=True)))

    def _texts(self, sources: Sequence[Sequence[int]]) -> list[_Tokens]:
        return [[self._source_tokens[index] for index in ids] for ids in sources]

    def _score(self, pairs: Sequence[tuple[_Tokens, _Tokens]]) -> list[list[float]]:
        """Return the log probability of every token of each target, EOS included."""
        if not pairs:
            return []
        results = self._model.score_batch(
            *map(list, zip(*pairs, strict=True)),
            max_input_length=0,
            max_batch_size=_TOKENS_SCORED,
            batch_type="tokens",
        )
        return [list(result.log_probs) for result in results]


def load_ctranslate2(folder: Path, options: EngineOptions, needs: Needs) -> LoadedModel:
    """Load an exported model; or convert a model, cache the result, and load the result.

    Raises:
        EngineLacksError: CTranslate2 does not support the requirements or the model.
        ConfigError: CTranslate2 is not installed, or the export has a different dtype.
        CheckpointError: A file is missing or damaged.
    """
    if options.ensemble is not None and options.ensemble.others:
        raise EngineLacksError.of("ctranslate2", ["ensembles"])
    dtype = parse_dtype(options.dtype)
    if is_ctranslate2(folder):
        if options.checkpoint != "best":
            message = "%s contains a single model; `checkpoint` %s is ignored."
            logger.warning(message, folder, options.checkpoint)
        Manifest.read(folder).verify(folder)
        config, tokenizers = load_folder_config(folder), load_tokenizers(folder / TOKENIZER)
        place = folder
    else:
        import_ctranslate2()
        if refused := lacking(needs):
            raise EngineLacksError.of("ctranslate2", refused)
        files = find_model(folder, options.checkpoint)
        config, tokenizers, dtype = files.config, files.tokenizers, dtype or "float32"
        if refused := [*not_expressed(config.model), *_too_long(config, needs)]:
            raise EngineLacksError.of("ctranslate2", refused)
        place = converted_model(folder, files, dtype, with_shortlist=needs.decoding.shortlist)
    engine = CTranslate2Engine(place, device=options.device, threads=options.threads)
    if dtype not in (None, engine.dtype):
        fix = f"Remove `dtype`, or export again with `quantization` {dtype}."
        raise ConfigError(f"{folder} was exported in {engine.dtype}.", fix=fix)
    most, languages = config.max_length, Languages.of(config)
    return LoadedModel(engine, tokenizers, config.decoding, most, languages)


def _too_long(config: InferenceConfig, needs: Needs) -> list[str]:
    """Return the requirement for more positions than the converted model has, if needed."""
    rows = num_positions(config)
    if rows is None or config.model.positions == "learned":
        return []
    if needs.longest is None:
        return ["positions for lines of any length"]
    longest = max(config.max_length, needs.longest)
    needed = positions_needed(longest, config, needs.decoding)
    return [f"{needed:,} positions (the limit is {rows:,})"] if needed > rows else []
