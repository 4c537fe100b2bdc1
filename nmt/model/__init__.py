"""Token ids in, hidden states and logits out: the Transformer.

Knows no text, files or search; `factory.build_model` makes it from its config section.
Called by training (packed, whole targets) and by translation (one token at a time).
"""
