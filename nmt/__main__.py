"""Runs the command line: ``python -m nmt`` is the same as ``nmt``."""

from __future__ import annotations

from nmt.cli import main

if __name__ == "__main__":
    main()
