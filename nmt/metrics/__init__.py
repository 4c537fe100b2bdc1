"""Metrics with confidence intervals and significance tests: strings in, `Score` values out.

A metric computes a row of statistics for each sentence. A corpus score is a function of the sum of
these rows. Test sets, resampled test sets and slices are such sums, so each text is compared only
once. This package does not import torch.
"""

# These three defaults equal sacrebleu's, so intervals and p-values do, too.
DEFAULT_RESAMPLES = 1000
DEFAULT_TRIALS = 10_000  # Trials of approximate randomization.
DEFAULT_SEED = 12345
