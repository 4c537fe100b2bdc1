"""Scores of translations and how sure they are. Strings in, `Score` values out; no model, no torch.

Every metric turns a sentence into a row of statistics; a score is a function of sums of rows. Test
sets, resampled test sets and slices are such sums, so text is compared once.
"""

DEFAULT_RESAMPLES = 1000
DEFAULT_TRIALS = 10_000  # Exchanges of approximate randomisation.
# These three are sacrebleu's defaults, so intervals and p-values are sacrebleu's, too.
DEFAULT_SEED = 12345
