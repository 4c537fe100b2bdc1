"""Everything before a training: `nmt init`, advice, the dry run, and `nmt doctor`."""
