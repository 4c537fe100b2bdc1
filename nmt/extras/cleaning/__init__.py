"""Corpus diagnosis: languages, duplicates, leakage, misaligned ranges, alignment scores."""
