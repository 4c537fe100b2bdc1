"""A run on disk: checkpoints that are whole or not there, the lock, the model folder.

Takes tensors and plain data, gives them back verified. Nothing is ever unpickled.
"""
