"""Checkpoints, run folders and model folders on disk.

Checkpoints are written atomically and verified by their hashes when they are read. Reading never
unpickles.
"""
