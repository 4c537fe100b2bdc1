"""Parts of the training loop: loss, optimizer, schedule, update, validation, checkpoints, report.

To add a loss, an optimizer or a schedule, write one file and register it: see `losses`, `optimizer`
and `schedule`. `nmt.commands.train` puts the parts together.
"""
