"""The command line: parses flags, runs a command, prints results, sets the exit code.

In: arguments and standard input. Out: data on standard output, messages on standard error.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]

# How often a waiting CPU thread checks for the other threads before it sleeps. GNU's OpenMP checks
# 300,000 times. If other programs run, the threads that it waits for need that processor time.
# Results do not depend on this number. Measured with two threads on two cores: beside two busy
# programs, 1.05 updates a second in place of 0.44; on a quiet machine, 1 to 3% fewer updates.
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
