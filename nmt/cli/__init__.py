"""The command line: parses flags, runs a command, prints results, sets the exit code.

In: arguments and standard input. Out: data on standard output, messages on standard error.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C also works while modules are loading."""
    try:
        from nmt.cli.app import main as run  # noqa: PLC0415 - loading can be interrupted

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("nmt: stopped by Ctrl-C\n")
        sys.exit(130)
