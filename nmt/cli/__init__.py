"""The command line: reads flags, calls one command, prints; turns errors into exit codes.

In: arguments and standard input. Out: data on standard output, messages on standard error.
"""

from __future__ import annotations

from nmt.cli.app import main

__all__ = ["main"]
