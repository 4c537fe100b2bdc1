"""Log probabilities in, hypotheses out: beam search, sampling, and the rules that they obey.

Knows no model, only a `Stepper`: a table in a test and a Transformer look alike.
Called by translation.
"""
