"""Text in, text out: a model, tokenizers and a search put together.

Takes lines or `Request`s, gives `Result`s in the same order. Called by commands and by users of the
Python API.
"""
