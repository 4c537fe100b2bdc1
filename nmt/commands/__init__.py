"""One library function for each command: configuration in, work done, a summary out.

The only room that sees the whole configuration.
Called by the command line and by users of the Python API.
"""
