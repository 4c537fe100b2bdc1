"""The search loop and its algorithms: beam search, greedy search, sampling and others.

A search is independent of the model: it reads log probabilities from a
`nmt.search.selector.Stepper`, which may be a Transformer or a lookup table.
"""
