"""Scores of a model's own translations of the validation set, for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.engine.distributed import Processes, interleave
from nmt.metrics.metric import MetricOptions, Scorer
from nmt.metrics.sacrebleu import bleu_tokenizer
from nmt.model.transformer import Transformer
from nmt.runtime.torch_engine import TorchEngine
from nmt.text.tokenizer import load_tokenizers
from nmt.training.signals import SharedStop
from nmt.training.validation import REPORTED_METRICS, TextScores
from nmt.translation.translator import Translator

_NUM_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class DecodingValidator:
    """Scores translations of the validation set. See `nmt.training.validation.TextValidator`."""

    translator: Translator
    source: Sequence[str]
    reference: Sequence[str]
    scorers: Sequence[Scorer]
    """The metrics, with the references read in."""
    tokenizer: str
    """What BLEU's words are found with."""
    processes: Processes
    """Each translates a part."""
    stop: SharedStop

    def __call__(self) -> TextScores:
        """Translate and score."""
        hypotheses = interleave(self.stop.gather(self._translate))
        scores = {scorer.name: scorer.score(hypotheses).value for scorer in self.scorers}
        samples = zip(self.source, hypotheses, self.reference, strict=True)
        return TextScores(scores, self.tokenizer, tuple(samples)[:_NUM_SAMPLES])

    def _translate(self) -> list[str]:
        own = self.source[self.processes.rank :: self.processes.size]
        return [result.text for result in self.translator.translate(own)]


def decoding_validator(
    config: RunConfig,
    data: PreparedData,
    model: Transformer,
    *,
    processes: Processes,
    stop: SharedStop,
) -> DecodingValidator | None:
    """Make the validator of a run; None if the validation set has no text.

    Args:
        config: The experiment.
        data: Its prepared data.
        model: The model, on its device.
        processes: Those that share the work.
        stop: Heeded between batches.
    """
    validation = config.training.validation
    wanted = validation.max_sentences
    source, reference = data.valid_source[:wanted], data.valid_target[:wanted]
    if not source:
        return None
    options = config.decoding.plain(validation.beam_size)
    translator = Translator(
        TorchEngine(model),
        load_tokenizers(data.tokenizer_dir),
        options,
        max_length=config.filters.max_length,
        check=stop.check,
    )
    # The same tokenizer as in `nmt evaluate`.
    tokenizer = bleu_tokenizer(MetricOptions(target_language=config.target_language))
    metric = MetricOptions(tokenize=tokenizer, target_language=config.target_language)
    names = dict.fromkeys((*REPORTED_METRICS, validation.metric))
    scorers = [Scorer(name, [reference], metric) for name in names if name != "loss"]
    return DecodingValidator(translator, source, reference, scorers, tokenizer, processes, stop)
