"""Reads corpora, filters sentence pairs, stores token ids, and forms training batches.

Only `loader` needs torch.
Used by `nmt.commands` (prepare) and `nmt.training`.
"""
