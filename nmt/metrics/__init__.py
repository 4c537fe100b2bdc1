"""Scores of translations and how sure they are. Strings in, `Score` values out; knows no model.

To add a metric, write a module beside these with a function that makes a `Metric`, and register
it here under its name.
"""

from nmt.metrics.metric import register_metric

DEFAULT_RESAMPLES = 1000
DEFAULT_TRIALS = 10_000
"""Of approximate randomisation."""
DEFAULT_SEED = 12345
"""All are sacrebleu's, so that the numbers are too."""

register_metric("bleu", "nmt.metrics.sacrebleu:make_bleu", label="BLEU")
register_metric("chrf", "nmt.metrics.sacrebleu:make_chrf", label="chrF")
register_metric("chrf++", "nmt.metrics.sacrebleu:make_chrf_plus_plus", label="chrF++")
register_metric("ter", "nmt.metrics.sacrebleu:make_ter", label="TER", lower_is_better=True)
