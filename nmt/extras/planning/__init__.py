"""Everything before a training run: `nmt init`, advice, the dry run, and `nmt doctor`."""
