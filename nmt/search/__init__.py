"""Token log probabilities in, hypotheses out: one search loop and its selectors.

Knows no model, only a `nmt.search.stepper.Stepper`: a table in a test and a Transformer look alike.
"""
