"""Token ids in, hidden states and logits out: the Transformer.

Knows no text, files or search; `transformer.build_model` makes it from its config section.
Training calls it with whole targets, translation with one token at a time.
"""
