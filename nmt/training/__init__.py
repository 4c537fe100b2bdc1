"""Batches and a model in, a better model out: the loop and all its parts.

Knows no text: validation by translation is handed in. Saving and reporting too.
Called by commands.train.
"""
