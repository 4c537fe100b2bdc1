"""Text files in, batches of token ids out: corpora, filters, the token store, the data order.

Only `batch` and `loader` need torch.
Called by commands (to prepare) and training.
"""
