"""Bytes in, lines and token ids out, and back: reading text files and SentencePiece.

Loads without torch.
Called by data (to prepare), translation (to translate) and commands.
"""
