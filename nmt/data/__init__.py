"""Reads corpora, filters sentence pairs, stores token ids, and makes the batches of training.

Only `loader` needs torch.
Used by `nmt.commands` (prepare) and `nmt.training`.
"""
