"""COMET (Rei et al. 2020): neural models that score translations, given source and reference.

The package unbabel-comet defines the models and loads checkpoints. Batches contain the same
sentences as in the package's ``predict``, in float32, so scores on a CPU are bit-identical. Weights
are read from a file or from the cache of the Hugging Face Hub; nmt does not download weights.
"""

from __future__ import annotations

import hashlib
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache

from nmt.device.device import choose_device
from nmt.errors import CheckpointError, ConfigError
from nmt.files.progress import progress_bar
from nmt.inference.mbr import UtilityOf
from nmt.metrics.metric import Floats, Metric, MetricOptions, References

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"
_BATCH_SIZE = 16  # Sentences; the default of the package.


class CometModel:
    """A COMET model.

    Args:
        name: Checkpoint file, folder with ``hparams.yaml`` and ``checkpoints``, or Hub name.
        device: Name of the device, as for `choose_device`.

    Raises:
        ConfigError: The package or the model is not installed.
        CheckpointError: The checkpoint cannot be loaded.
    """

    def __init__(self, name: str, device: str) -> None:
        package = _package()
        path = _checkpoint(name)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        model_name = name
        if Path(name).exists():
            # A local file is MODEL/checkpoints/FILE: the folder identifies the model.
            model_name = path.parent.parent.name
        self.signature = f"model:{model_name}|sha256:{digest[:12]}|version:{package.__version__}"
        try:
            # The package draws initial weights, but must not change the random state of training.
            with torch.random.fork_rng(devices=[]):
                self._model = package.load_from_checkpoint(str(path), local_files_only=True)
        except Exception as error:  # the package raises errors of many types
            fix = f"If encoder files are missing, download them: {_python(repr(str(path)))}"
            if isinstance(error, UnpicklingError):
                fix = "The file contains objects that can run code. If you trust the file, set "
                fix += "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1."
            reason, *_ = str(error).strip().split("\n")
            raise CheckpointError(f"COMET cannot load {path}: {reason}", fix=fix) from error
        self._device = choose_device(device)
        self._model.eval().to(self._device)

    @torch.inference_mode()
    def scores(self, samples: Sequence[Mapping[str, str]]) -> Floats:
        """Score samples: dictionaries with the texts ``src``, ``mt`` and ``ref``. (n,)."""
        # By length of the source, as in the package. The scores are put back in the given order.
        order = np.argsort([len(sample["src"]) for sample in samples])
        scores = np.zeros(len(samples))
        with progress_bar("COMET", unit="sentences", total=len(samples), leave=False) as bar:
            for start in range(0, len(samples), _BATCH_SIZE):
                rows = order[start : start + _BATCH_SIZE]
                inputs = self._inputs([samples[row] for row in rows])
                scores[rows] = self._model.predict_step(inputs).scores.tolist()
                bar.update(len(rows))
        return scores

    @torch.inference_mode()
    def pairwise(self, source: str, texts: Sequence[str]) -> Floats:
        """Return the score of each text (row) with each text as reference (column). (n, n)."""
        model = self._model
        samples = [{"src": source, "mt": text, "ref": text} for text in texts]
        encodes_separately = model.requires_references() and hasattr(model, "estimate")
        if not encodes_separately:
            all_pairs = []  # The first text with each reference, then the second text, and so on.
            for sample in samples:
                all_pairs += [sample | {"ref": reference} for reference in texts]
            return self.scores(all_pairs).reshape(len(texts), len(texts))
        # A regression model encodes each text separately: 2 n encodings in place of 3 n^2.
        inputs = self._inputs(samples)

        def embed(side: str) -> torch.Tensor:
            """Return the vectors of the texts of all samples under ``side``. (n, D)."""
            ids = inputs[f"{side}_input_ids"]
            return model.get_sentence_embedding(ids, inputs[f"{side}_attention_mask"])

        sources = embed("src")
        references = embed("mt")  # A text has the same vector as hypothesis and as reference.
        rows = []
        for hypothesis in references:
            hypotheses = hypothesis.expand_as(references)  # One hypothesis for all references.
            rows.append(model.estimate(sources, hypotheses, references).score)
        return np.array(torch.stack(rows).tolist())

    def _inputs(self, samples: Sequence[Mapping[str, str]]) -> Any:
        """Return a batch on the device, as the model of the package expects it."""
        inputs = self._model.prepare_for_inference(samples)
        return self._model.transfer_batch_to_device(inputs, self._device, 0)


class Comet(Metric):
    """COMET. A sentence score is the mean over its references, a corpus score that over sentences.

    Statistics (2): score of the sentence, and a count of 1.
    """

    label = "COMET"
    argument = "MODEL"
    decimals = 4

    def __init__(self, references: References, options: MetricOptions) -> None:
        _package()  # without it, no other advice helps
        if options.source is None:
            raise ConfigError("comet needs the source text.", fix="Add `source` FILE.")
        self._model = _model(options)
        self._source = options.source
        self._references = references
        self.signature = f"nrefs:{len(references)}|{self._model.signature}"

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the score and a count of 1 for each sentence. (n, 2)."""
        scores = []  # For each stream of references, the scores of the sentences. (n,)
        for stream in self._references:
            lines = zip(self._source, hypotheses, stream, strict=True)
            samples = [{"src": source, "mt": text, "ref": ref} for source, text, ref in lines]
            scores.append(self._model.scores(samples))
        return np.column_stack([np.mean(scores, axis=0), np.ones(len(hypotheses))])


def comet_utility(options: MetricOptions) -> UtilityOf:
    """Return the utility of MBR decoding with COMET (Freitag et al. 2022).

    It takes the source, and returns a function that takes the texts: see `CometModel.pairwise`.
    """
    return partial(partial, _model(options).pairwise)


_load = cache(CometModel)  # scorers of several test sets share a model


def _model(options: MetricOptions) -> CometModel:
    return _load(options.argument or DEFAULT_MODEL, options.device)


def _package() -> Any:
    """Import the package unbabel-comet, without its warnings.

    Raises:
        ConfigError: It is not installed.
    """
    root = logging.getLogger()
    silent = logging.NullHandler()
    root.addHandler(silent)  # otherwise the package would show messages of all libraries
    try:
        with warnings.catch_warnings(action="ignore"):
            return import_module("comet")
    except ImportError as error:
        raise ConfigError.needs(
            "The metric comet", f"unbabel-comet ({error})", extra="comet"
        ) from error
    finally:
        root.removeHandler(silent)


def _checkpoint(name: str) -> Path:
    """Return the checkpoint file of a model on this machine.

    Args:
        name: A checkpoint file, the folder of a model, or the name of a model on the Hub.

    Raises:
        ConfigError: There is no such model, or the folder has several checkpoints.
    """
    path = Path(name).absolute()
    if path.exists():
        files = [path] if path.is_file() else sorted(path.glob("checkpoints/*.ckpt"))
        problem = f"{name} has {len(files)} files checkpoints/*.ckpt; expected 1."
        if len(files) == 1:
            settings = files[0].parent.parent / "hparams.yaml"
            if settings.is_file():
                return files[0]
            problem = f"{name} is not a COMET checkpoint: {settings} is missing."
        raise ConfigError(problem, fix="Pass the checkpoint file of a model: comet:FILE.ckpt")
    file = None
    with suppress(ValueError):  # not a name on the Hub
        file = try_to_load_from_cache(name, "checkpoints/model.ckpt")
    if not isinstance(file, str):
        problem = f"The COMET model {name} is neither a file nor in the Hugging Face cache."
        fix = f"Check the path, or download the model ({DEFAULT_MODEL} has 2.3 GB): "
        fix += _python(f"comet.download_model({name!r})")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            fix = f"Check the path, or pass a name on the Hub, such as {DEFAULT_MODEL}."
        raise ConfigError(problem, fix=fix)
    return Path(file)


def _python(checkpoint: str) -> str:
    """Return a command that loads a checkpoint, for which ``checkpoint`` is a Python expression."""
    return f'python -c "import comet; comet.load_from_checkpoint({checkpoint})"'
