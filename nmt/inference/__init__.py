"""Text in, text out: a model, tokenizers and a search put together.

Takes lines, gives `TranslationResult`s in the same order.
Called by commands and by users of the Python API.
"""
