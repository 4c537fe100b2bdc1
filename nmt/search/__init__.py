"""Token log probabilities in, hypotheses out: one search loop and its selectors.

Knows no model, only a `nmt.search.selector.Stepper`, which may be a table or a Transformer.
"""
