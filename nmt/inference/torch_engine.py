"""The `Engine` that runs nmt's own model and search in PyTorch, and its loader."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from typing_extensions import override

from nmt.checkpoint.model_folder import ModelBundle, is_ctranslate2, load_model
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.device.device import choose_device, free_bytes, prepare_process
from nmt.device.precision import fastest_dtype
from nmt.errors import CheckpointError, ConfigError
from nmt.inference.cuda_graphs import GraphedDecodeToken
from nmt.inference.direction import Languages
from nmt.inference.engine import (
    BatchCapacity,
    Engine,
    EngineOptions,
    Ensemble,
    LoadedModel,
    Needs,
    Task,
    parse_dtype,
)
from nmt.inference.stepper import BatchVocabulary, Mixture, ModelStepper, Shortlist, source_of
from nmt.model.transformer import Transformer, evaluating
from nmt.packed import Packed
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.search.loop import search
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN
from nmt.text.tokenizer import tokenizer_hash

_PLAIN = DecodingConfig()
_MOST_PROBABILITIES = 1 << 23  # held at once for each model: 32 MiB
_GPU_CAPACITY = BatchCapacity(tokens=1 << 14, probabilities=1 << 28, hypotheses=4096)
_MOST_TOKENS = 1 << 16
_SHARE = 0.25  # share of a GPU's free memory that batches may use
_BYTES_OF_PROBABILITY = 24  # including temporary values


class TorchEngine(Engine):
    """Searches with one model or an ensemble.

    Args:
        models: Models on their device. The models may be trained between two calls.
        mixture: How to combine the predictions of several models.
        is_final: Whether the weights no longer change. Decoding then uses CUDA graphs on a GPU.
        shortlist: Used if ``decoding.shortlist`` is on; None scores all tokens.
        end_loops: Whether to stop outputs that repeat endlessly. Saves time in validation early in
            training.
        keep_special_mass: For `token_log_probs`; see `nmt.config.model.DecodingConfig`.
    """

    name = "torch"

    def __init__(
        self,
        *models: Transformer,
        mixture: Mixture | None = None,
        is_final: bool = False,
        shortlist: Shortlist | None = None,
        end_loops: bool = False,
        keep_special_mass: bool = False,
    ) -> None:
        self._end_loops = end_loops
        self._models, self._mixture = models, mixture or Mixture()
        self._shortlist, self._keep_special_mass = shortlist, keep_special_mass
        if is_final:
            for model in models:
                model.eval()
        weight = models[0].output_weight
        self._device, self.dtype = weight.device, str(weight.dtype).removeprefix("torch.")
        self.on_gpu = self._device.type == "cuda"
        self._is_final, self._bytes_of_value = is_final, weight.element_size()
        use_graphs = is_final and self.on_gpu
        self._runs = [GraphedDecodeToken(model) for model in models] if use_graphs else None
        self.max_positions = self._stepper().max_positions

    @cached_property
    def capacity(self) -> BatchCapacity:
        """Limits of a batch. On a GPU they depend on the memory that was free at the first call.

        During training the limits are constant, so that a resumed run computes the same batches.
        """
        if self._device.type == "cpu":
            return super().capacity
        if not self._is_final:
            return _GPU_CAPACITY
        free = int(_SHARE * free_bytes(self._device))
        return gpu_capacity(free, [model.config for model in self._models], self._bytes_of_value)

    @property
    @override
    def num_workers(self) -> int:
        """One per CPU thread, because a decoding step is too short to split; 1 on a GPU."""
        return torch.get_num_threads() if self._device.type == "cpu" else 1

    @override
    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
    ) -> list[list[Hypothesis]]:
        source = self._packed([*ids, EOS_ID] for ids in sources)
        lists = self._shortlist if options.shortlist else None
        vocabulary = lists.pick(source, constraints) if lists else None
        stepper = self._stepper(vocabulary, options)
        with evaluating(*self._models):
            if vocabulary is None:
                return search(stepper, source, options, constraints, end_loops=self._end_loops)
            own = constraints and vocabulary.inside(constraints)
            return vocabulary.outside(search(stepper, source, options, own))

    @override
    def search_all(
        self, tasks: Sequence[Task], options: DecodingConfig
    ) -> Generator[list[list[Hypothesis]], None, None]:
        with evaluating(*self._models):  # for all workers: one must not end it for the others
            if min(self.num_workers, len(tasks)) < 2:
                for task in tasks:
                    yield self.search(task.sources, options, task.constraints)
                return
            try:
                yield from super().search_all(tasks, options)
            finally:
                # Threads that start later inherit the setting of a worker: reset it.
                torch.set_num_threads(torch.get_num_threads())

    @override
    def start_worker(self) -> None:
        torch.set_num_threads(1)  # applies to this thread

    @override
    def lacks(self, needs: Needs) -> list[str]:
        missing = needs.decoding.shortlist and self._shortlist is None and self._is_final
        return ["decoding.shortlist: the model was loaded without it"] if missing else []

    def _stepper(
        self, vocabulary: BatchVocabulary | None = None, options: DecodingConfig = _PLAIN
    ) -> ModelStepper:
        return ModelStepper(
            *self._models,
            mixture=self._mixture,
            runs=self._runs,
            with_coverage=options.coverage_penalty > 0,
            keep_special_mass=options.keep_special_mass,
            vocabulary=vocabulary,
        )

    def _packed(self, rows: Iterable[Sequence[int]]) -> Packed:
        return Packed.from_rows(list(rows), self._device)

    @override
    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[list[float]]]:
        source = self._packed([*ids, EOS_ID] for ids in sources)
        target = self._packed([BOS_ID, *ids] for ids in targets)
        found = [
            model.align(source_of(model, source), target)[..., int(model.config.source_bos) :]
            for model in self._models
        ]
        weights = torch.stack(found).mean(0).cpu()
        sizes = zip(weights, map(len, targets), map(len, sources), strict=True)
        return [matrix[:height, :width].tolist() for matrix, height, width in sizes]

    @override
    @torch.inference_mode()
    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        source = self._packed([*ids, EOS_ID] for ids in sources)
        target = self._packed([BOS_ID, *ids] for ids in targets)
        gold = self._packed([*ids, EOS_ID] for ids in targets).ids.unsqueeze(1)
        with evaluating(*self._models):
            hidden = [model(source_of(model, source), target) for model in self._models]
        at_once = max(1, _MOST_PROBABILITIES // len(self._models[0].output_weight))
        parts = []
        for start in range(0, len(gold), at_once):
            rows = slice(start, start + at_once)
            logits = [m.logits(x[rows]) for m, x in zip(self._models, hidden, strict=True)]
            for values in logits:  # mask special tokens as a search does, except in the target
                own = values.gather(1, gold[rows])
                if not self._keep_special_mass:
                    values[:, :NUM_NEVER_CHOSEN] = -torch.inf
                values.scatter_(1, gold[rows], own)
            log_probs = self._mixture.combine([x.float().log_softmax(dim=-1) for x in logits])
            parts.append(log_probs.gather(1, gold[rows]).squeeze(1))
        sizes = [len(ids) + 1 for ids in targets]
        return [values.tolist() for values in torch.cat(parts).cpu().split(sizes)]


def gpu_capacity(free: int, configs: Sequence[ModelConfig], bytes_of_value: int) -> BatchCapacity:
    """Return the batch limits of a GPU. Hypotheses are limited to the rows of CUDA graphs.

    Args:
        free: Bytes of GPU memory that batches may use.
        configs: Model section of each model.
        bytes_of_value: Bytes of one value in the caches.

    >>> gpu_capacity(2 << 30, [ModelConfig()], 2)
    BatchCapacity(tokens=15887, probabilities=89478485, hypotheses=4096)
    """
    # Caches of a source token, and of one output token in each of five hypotheses.
    widths = sum(2 * config.decoder_layers * config.decoder_dim for config in configs)
    tokens = min(_MOST_TOKENS, free // (widths * bytes_of_value * (1 + 2 * 5)))
    return _GPU_CAPACITY._replace(tokens=tokens, probabilities=free // _BYTES_OF_PROBABILITY)


def load_torch(folder: Path, options: EngineOptions, needs: Needs) -> LoadedModel:
    """Load one model, or an ensemble with the same languages and vocabulary.

    Args:
        folder: Run or model folder of the first model.
        options: Device, dtype and the other models of the ensemble.
        needs: Whether to load the shortlist.

    Raises:
        CheckpointError: A file is missing or damaged, or the models of an ensemble do not match.
        ConfigError: Weights, checkpoint or dtype are invalid, or not supported by torch.
    """
    ensemble, dtype = options.ensemble or Ensemble(), parse_dtype(options.dtype)
    shares = ensemble.shares()
    folders = (folder, *ensemble.others)
    if exported := [str(each) for each in folders if is_ctranslate2(each)]:
        lacking = "it cannot run in torch, score given translations or join an ensemble"
        problem = f"{', '.join(exported)} is a CTranslate2 export: {lacking}."
        raise ConfigError(problem, fix="Remove `engine`, or use the run folder that was exported.")
    if dtype == "int8":
        raise ConfigError("int8 needs the CTranslate2 engine.", fix="Remove `dtype`.")
    prepare_process(options.threads)
    place = choose_device(options.device)
    if dtype == "float16" and place.type == "cpu":
        fix = "Remove `dtype`, or use `dtype` bfloat16 on this CPU."
        raise ConfigError("float16 needs a GPU.", fix=fix)
    bundles = [load_model(each, options.checkpoint) for each in folders]
    _check_alike(folders, bundles)
    dtype = dtype or ("float32" if place.type == "cpu" else fastest_dtype(place))
    config, tokenizers = bundles[0].config, bundles[0].tokenizers
    lists = None
    if needs.decoding.shortlist:
        lists = Shortlist.load(folder, tokenizers.vocab_sizes, place)
    counted = [i for i, share in enumerate(shares) if share]  # weight 0: model not used
    decoding, longest = config.decoding, min(bundles[i].config.max_length for i in counted)
    engine = TorchEngine(
        *(bundles[i].model.to(place, getattr(torch, dtype)) for i in counted),
        mixture=Mixture(tuple(shares[i] for i in counted), ensemble.mean),
        is_final=True,
        shortlist=lists,
        keep_special_mass=decoding.keep_special_mass,
    )
    return LoadedModel(engine, tokenizers, decoding, longest, Languages.of(config))


def _check_alike(folders: Sequence[Path], bundles: Sequence[ModelBundle]) -> None:
    """Check that a token id means the same in all models: same languages, same tokenizer."""
    kinds = [
        (each.config.languages, tokenizer_hash(own / "tokenizer"))
        for own, each in zip(folders, bundles, strict=True)
    ]
    others = [str(each) for each, kind in zip(folders, kinds, strict=True) if kind != kinds[0]]
    if others:
        problem = f"{', '.join(others)}: languages or vocabulary differ from {folders[0]}."
        fix = "Use models trained on the same languages with the same tokenizer."
        raise CheckpointError(problem, fix=fix)
