"""Corpus diagnosis: languages, near duplicates, misaligned blocks, alignment scores."""
