"""Translation of text: combines a model, its tokenizers and a search.

Input is lines or `Request`s; output is one `Result` for each, in the same order. Commands and users
of the Python API call this package.
"""
