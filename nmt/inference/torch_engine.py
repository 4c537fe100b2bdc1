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
    Check,
    Engine,
    EngineOptions,
    Ensemble,
    LoadedModel,
    Needs,
    SearchTask,
    parse_device,
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
_MAX_PROBABILITIES = 1 << 23  # of scored tokens, held at once for each model: 32 MiB
_GPU_CAPACITY = BatchCapacity(tokens=1 << 14, probabilities=1 << 28, hypotheses=4096)
_MAX_TOKENS = 1 << 16  # of a batch on a GPU
_MEMORY_SHARE = 0.25  # share of a GPU's free memory that batches may use
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
        self._runs = None  # Replaces `Transformer.decode_token` of each model.
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
        num_bytes = int(_MEMORY_SHARE * free_bytes(self._device))
        configs = [model.config for model in self._models]
        return gpu_capacity(num_bytes, configs, self._weight.element_size())

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
        check: Check = lambda: None,
    ) -> NBestLists:
        source = self._with_eos(sources)
        with evaluating(*self._models):
            if self._shortlist is None or not options.shortlist:
                stepper = self._stepper(options=options)
                return search(
                    stepper, source, options, constraints, check, end_loops=self._end_loops
                )
            # The search uses positions in the shortlist as token ids: convert them there and back.
            # `end_loops` is not needed: it is for training, which has no shortlist.
            vocabulary = self._shortlist.pick(source, constraints)
            if constraints is not None:
                constraints = vocabulary.inside(constraints)
            stepper = self._stepper(vocabulary, options)
            return vocabulary.outside(search(stepper, source, options, constraints, check))

    @override
    def search_all(
        self, tasks: Sequence[SearchTask], check: Check = lambda: None
    ) -> Generator[NBestLists, None, None]:
        def search_task(task: SearchTask) -> NBestLists:
            return self.search(task.sources, task.options, task.constraints, check)

        num_workers = min(self.num_workers, len(tasks))
        # Evaluation mode until all workers have finished: `search` alone would end it earlier.
        with evaluating(*self._models):
            if num_workers < 2:
                yield from map(search_task, tasks)
                return
            try:
                # Each worker calls `torch.set_num_threads(1)`, to compute in its own thread only.
                with ThreadPoolExecutor(num_workers, "", torch.set_num_threads, (1,)) as pool:
                    yield from pool.map(search_task, tasks)
            finally:
                # Threads that start later would inherit the setting of a worker: set it to that of
                # this thread again.
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
        weights_of_models = []
        for model in self._models:
            weights = model.align(source_of(model, source), target)  # (B, T, S)
            # Leave out the column of BOS, which `source_of` adds for some models.
            weights_of_models.append(weights[..., int(model.config.source_bos) :])
        mean = torch.stack(weights_of_models).mean(0).cpu()
        matrices = []
        for matrix, source_ids, target_ids in zip(mean, sources, targets, strict=True):
            # Leave out the source EOS, the row that predicts EOS, and padding.
            matrices.append(matrix[: len(target_ids), : len(source_ids)].tolist())
        return matrices

    @override
    @torch.inference_mode()
    def token_log_probs(self, sources: IdLists, targets: IdLists) -> list[list[float]]:
        # The decoder reads BOS and the target, and predicts the target and EOS. N tokens in total.
        source = self._with_eos(sources)
        target = self._with_bos(targets)
        predicted_ids = self._with_eos(targets).ids.unsqueeze(1)  # (N, 1)
        with evaluating(*self._models):
            hidden = [model(source_of(model, source), target) for model in self._models]  # (N, D)
        num_rows = max(1, _MAX_PROBABILITIES // len(self._weight))
        chunks = []
        for start in range(0, len(predicted_ids), num_rows):
            rows = slice(start, start + num_rows)
            ids = predicted_ids[rows]
            log_probs_of_models = []
            for model, states in zip(self._models, hidden, strict=True):
                logits = model.logits(states[rows])  # (num_rows, V)
                # Mask special tokens as a search does, except in the target: restore its logits.
                logits_of_ids = logits.gather(1, ids)
                if not self._keep_special_mass:
                    logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
                logits.scatter_(1, ids, logits_of_ids)
                log_probs_of_models.append(logits.float().log_softmax(dim=-1))
            log_probs = self._mixture.combine(log_probs_of_models)
            chunks.append(log_probs.gather(1, ids))
        lengths = [len(target_ids) + 1 for target_ids in targets]  # 1 for EOS
        joined = torch.cat(chunks).squeeze(1)
        return [values.tolist() for values in joined.cpu().split(lengths)]


def gpu_capacity(
    num_bytes: int, configs: Sequence[ModelConfig], bytes_of_value: int
) -> BatchCapacity:
    """Return the batch limits of a GPU. Hypotheses are limited to the rows of CUDA graphs.

    Args:
        num_bytes: Bytes of GPU memory that batches may use.
        configs: Model section of each model.
        bytes_of_value: Bytes of one value in the caches.

    >>> gpu_capacity(2 << 30, [ModelConfig()], 2)
    BatchCapacity(tokens=15887, probabilities=89478485, hypotheses=4096)
    """
    # Values of keys and values of one token, in all layers of all models.
    num_values = sum(2 * config.decoder_layers * config.decoder_dim for config in configs)
    # Caches of a source token, and of one output token in each of five hypotheses. The caches of
    # the output count twice, because reordering the beams copies them.
    bytes_of_token = num_values * bytes_of_value * (1 + 2 * 5)
    max_tokens = min(_MAX_TOKENS, num_bytes // bytes_of_token)
    max_probabilities = num_bytes // _BYTES_OF_PROBABILITY
    return _GPU_CAPACITY._replace(tokens=max_tokens, probabilities=max_probabilities)


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
    exported = [str(path) for path in folders if is_ctranslate2(path)]
    if exported:
        lacking = "it cannot run in torch, score given translations or join an ensemble"
        raise ConfigError(
            f"{', '.join(exported)} is a CTranslate2 export: {lacking}.",
            fix="Remove `engine`, or use the run folder that was exported.",
        )
    if dtype == "int8":
        raise ConfigError("int8 needs the CTranslate2 engine.", fix="Remove `dtype`.")
    prepare_process(options.threads)
    device_name = parse_device(options.device)
    device = choose_device(device_name)
    is_cpu = device.type == "cpu"
    if dtype == "float16" and is_cpu:
        raise ConfigError(
            "float16 needs a GPU.", fix="Remove `dtype`, or use `dtype` bfloat16 on this CPU."
        )
    bundles = [load_model(path, options.checkpoint) for path in folders]
    _check_alike(folders, bundles)
    if dtype is None:
        dtype = "float32" if is_cpu else fastest_dtype(device)
    config = bundles[0].config
    tokenizers = bundles[0].tokenizers
    shortlist = None
    if needs.decoding.shortlist:
        shortlist = Shortlist.load(folder, tokenizers.vocab_sizes, device)
    # Models of share 0 do not translate.
    pairs = zip(bundles, shares, strict=True)
    used_pairs = [(bundle, share) for bundle, share in pairs if share]
    engine = TorchEngine(
        *(bundle.model.to(device, getattr(torch, dtype)) for bundle, _ in used_pairs),
        mixture=Mixture(tuple(share for _, share in used_pairs), ensemble.mean),
        is_final=True,
        shortlist=shortlist,
        keep_special_mass=config.decoding.keep_special_mass,
    )
    max_length = min(bundle.config.max_length for bundle, _ in used_pairs)
    return LoadedModel(engine, tokenizers, config.decoding, max_length, Languages.of(config))


def _check_alike(folders: Sequence[Path], bundles: Sequence[ModelBundle]) -> None:
    """Check that a token id means the same in all models: same languages, same tokenizer."""
    different = []
    first_hash = tokenizer_hash(folders[0] / "tokenizer")
    for folder, bundle in zip(folders, bundles, strict=True):
        has_same_languages = bundle.config.languages == bundles[0].config.languages
        if not has_same_languages or tokenizer_hash(folder / "tokenizer") != first_hash:
            different.append(str(folder))
    if different:
        raise CheckpointError(
            f"{', '.join(different)}: languages or vocabulary differ from {folders[0]}.",
            fix="Use models trained on the same languages with the same tokenizer.",
        )
