"""One library function for each command.

In: a configuration or options. Out: a result that prints itself. Called by the command line and by
users of the Python API; the only room that sees the whole configuration.
"""
