"""The Transformer: maps token ids to hidden states and logits.

`transformer.build_model` builds it from the model section of a configuration. Training calls it
with whole target sentences, translation with one token at a time. Text, files and the search are in
other packages.
"""
