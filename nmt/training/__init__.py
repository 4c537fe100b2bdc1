"""Batches and a model in, a better model out: the loop and all its parts.

A loss, an optimizer or a schedule is added by one file and its registration: see `objective`,
`optimizers` and `schedule`. `nmt.commands.train` puts a run together.
"""
