"""The command line: parses flags, runs a command, prints results, sets the exit code.

In: arguments and standard input. Out: data on standard output, messages on standard error.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]

# How often CPU threads look whether the others of an operation are ready, before they sleep. By
# default 300,000 times in GNU's OpenMP, longer than a time slice, which others may need. Results
# do not depend on it. Two threads on two cores: beside two busy programs, updates are 2.4 times as
# fast (0.44 and 1.05 a second); on a quiet machine they lose 1 to 3%, but with 0 times 18%.
_SPINS = "1000"


def main() -> None:
    """Run the command line; Ctrl-C also works while modules are loading."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)  # torch's OpenMP reads it when it is loaded
    try:
        from nmt.cli.app import main as run  # noqa: PLC0415 - loading can be interrupted

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("nmt: stopped by Ctrl-C\n")
        sys.exit(130)
