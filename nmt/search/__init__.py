"""Log probabilities in, hypotheses out: greedy and beam search.

Knows no model, only a `Stepper`: a table in a test and a Transformer look alike.
Called by translation.
"""
