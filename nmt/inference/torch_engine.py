"""The `Engine` that runs nmt's own model and search in PyTorch, and its loader."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    SearchTask,
    parse_dtype,
)
from nmt.inference.stepper import BatchVocabulary, Mixture, ModelStepper, Shortlist, source_of
from nmt.model.transformer import Transformer, evaluating
from nmt.packed import Packed
from nmt.search.hypothesis import Constraints, IdLists, NBestLists
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
        self._models = models
        self._mixture = mixture or Mixture()
        self._is_final = is_final
        self._shortlist = shortlist
        self._end_loops = end_loops
        self._keep_special_mass = keep_special_mass
        self._weight = models[0].output_weight
        self._device = self._weight.device
        self.dtype = str(self._weight.dtype).removeprefix("torch.")
        self.on_gpu = self._device.type == "cuda"
        self._runs = None
        if is_final:
            for model in models:
                model.eval()
            if self.on_gpu:
                self._runs = [GraphedDecodeToken(model) for model in models]
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
        configs = [model.config for model in self._models]
        return gpu_capacity(free, configs, self._weight.element_size())

    @property
    @override
    def num_workers(self) -> int:
        """One per CPU thread, because a decoding step is too short to split; 1 on a GPU."""
        if self._device.type != "cpu":
            return 1
        return torch.get_num_threads()

    @override
    def search(
        self,
        sources: IdLists,
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
    ) -> NBestLists:
        source = self._with_eos(sources)
        with evaluating(*self._models):
            if self._shortlist is None or not options.shortlist:
                stepper = self._stepper(options=options)
                return search(stepper, source, options, constraints, end_loops=self._end_loops)
            vocabulary = self._shortlist.pick(source, constraints)
            if constraints is not None:
                constraints = vocabulary.inside(constraints)
            stepper = self._stepper(vocabulary, options)
            return vocabulary.outside(search(stepper, source, options, constraints))

    @override
    def search_all(
        self, tasks: Sequence[SearchTask], options: DecodingConfig
    ) -> Generator[NBestLists, None, None]:
        def search_task(task: SearchTask) -> NBestLists:
            return self.search(task.sources, options, task.constraints)

        count = min(self.num_workers, len(tasks))
        with evaluating(*self._models):  # for all workers: one must not end it for the others
            if count < 2:
                yield from map(search_task, tasks)
                return
            try:
                # Each worker computes in its own thread only.
                with ThreadPoolExecutor(count, "", torch.set_num_threads, (1,)) as pool:
                    yield from pool.map(search_task, tasks)
            finally:
                # Threads that start later inherit the setting of a worker: reset it.
                torch.set_num_threads(torch.get_num_threads())

    @override
    def lacks(self, needs: Needs) -> list[str]:
        if needs.decoding.shortlist and self._shortlist is None and self._is_final:
            return ["decoding.shortlist: the model was loaded without it"]
        return []

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

    def _with_eos(self, rows: IdLists) -> Packed:
        return Packed.from_rows([[*ids, EOS_ID] for ids in rows], self._device)

    def _with_bos(self, rows: IdLists) -> Packed:
        return Packed.from_rows([[BOS_ID, *ids] for ids in rows], self._device)

    @override
    def attention(self, sources: IdLists, targets: IdLists) -> list[list[list[float]]]:
        source = self._with_eos(sources)
        target = self._with_bos(targets)
        of_models = []
        for model in self._models:
            weights = model.align(source_of(model, source), target)
            of_models.append(weights[..., int(model.config.source_bos) :])
        mean = torch.stack(of_models).mean(0).cpu()
        matrices = []
        for weights, source_ids, target_ids in zip(mean, sources, targets, strict=True):
            matrices.append(weights[: len(target_ids), : len(source_ids)].tolist())
        return matrices

    @override
    @torch.inference_mode()
    def token_log_probs(self, sources: IdLists, targets: IdLists) -> list[list[float]]:
        source = self._with_eos(sources)
        target = self._with_bos(targets)
        gold = self._with_eos(targets)
        gold_ids = gold.ids.unsqueeze(1)
        with evaluating(*self._models):
            hidden = [model(source_of(model, source), target) for model in self._models]
        num_rows = max(1, _MOST_PROBABILITIES // len(self._weight))
        parts = []
        for start in range(0, len(gold_ids), num_rows):
            rows = slice(start, start + num_rows)
            gold_of_rows = gold_ids[rows]
            of_models = []
            for model, states in zip(self._models, hidden, strict=True):
                logits = model.logits(states[rows])
                # Mask special tokens as a search does, except in the target.
                of_target = logits.gather(1, gold_of_rows)
                if not self._keep_special_mass:
                    logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
                logits.scatter_(1, gold_of_rows, of_target)
                of_models.append(logits.float().log_softmax(dim=-1))
            log_probs = self._mixture.combine(of_models)
            parts.append(log_probs.gather(1, gold_of_rows))
        lengths = [len(ids) + 1 for ids in targets]
        joined = torch.cat(parts).squeeze(1)
        return [values.tolist() for values in joined.cpu().split(lengths)]


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
    bytes_of_token = widths * bytes_of_value * (1 + 2 * 5)
    tokens = min(_MOST_TOKENS, free // bytes_of_token)
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
    ensemble = options.ensemble or Ensemble()
    dtype = parse_dtype(options.dtype)
    shares = ensemble.shares()
    folders = (folder, *ensemble.others)
    if exported := [str(each) for each in folders if is_ctranslate2(each)]:
        lacking = "it cannot run in torch, score given translations or join an ensemble"
        problem = f"{', '.join(exported)} is a CTranslate2 export: {lacking}."
        raise ConfigError(problem, fix="Remove `engine`, or use the run folder that was exported.")
    if dtype == "int8":
        raise ConfigError("int8 needs the CTranslate2 engine.", fix="Remove `dtype`.")
    prepare_process(options.threads)
    device = choose_device(options.device)
    is_cpu = device.type == "cpu"
    if dtype == "float16" and is_cpu:
        fix = "Remove `dtype`, or use `dtype` bfloat16 on this CPU."
        raise ConfigError("float16 needs a GPU.", fix=fix)
    bundles = [load_model(each, options.checkpoint) for each in folders]
    _check_alike(folders, bundles)
    if dtype is None:
        dtype = "float32" if is_cpu else fastest_dtype(device)
    config = bundles[0].config
    tokenizers = bundles[0].tokenizers
    shortlist = None
    if needs.decoding.shortlist:
        shortlist = Shortlist.load(folder, tokenizers.vocab_sizes, device)
    used = [(bundle, share) for bundle, share in zip(bundles, shares, strict=True) if share]
    engine = TorchEngine(
        *(bundle.model.to(device, getattr(torch, dtype)) for bundle, _ in used),
        mixture=Mixture(tuple(share for _, share in used), ensemble.mean),
        is_final=True,
        shortlist=shortlist,
        keep_special_mass=config.decoding.keep_special_mass,
    )
    longest = min(bundle.config.max_length for bundle, _ in used)
    return LoadedModel(engine, tokenizers, config.decoding, longest, Languages.of(config))


def _check_alike(folders: Sequence[Path], bundles: Sequence[ModelBundle]) -> None:
    """Check that a token id means the same in all models: same languages, same tokenizer."""
    different = []
    vocabulary = tokenizer_hash(folders[0] / "tokenizer")
    for folder, bundle in zip(folders, bundles, strict=True):
        is_alike = bundle.config.languages == bundles[0].config.languages
        if not is_alike or tokenizer_hash(folder / "tokenizer") != vocabulary:
            different.append(str(folder))
    if different:
        problem = f"{', '.join(different)}: languages or vocabulary differ from {folders[0]}."
        fix = "Use models trained on the same languages with the same tokenizer."
        raise CheckpointError(problem, fix=fix)
