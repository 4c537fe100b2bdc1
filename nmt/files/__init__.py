"""Bytes and folders: readers, atomic writes, hashes, manifests and locks. Loads no torch."""
