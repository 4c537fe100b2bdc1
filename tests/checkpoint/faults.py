"""A small configuration, contents of folders, and simulated failures of disks."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt.config.run import RunConfig

TOY = """
name: toy
source_language: de
target_language: en
data:
  train: [{source: train.de, target: train.en}]
  valid: {source: valid.de, target: valid.en}
tokenizer: {vocab_size: 30, byte_fallback: false}
training: {max_steps: 100}
"""


def toy_config(changes: dict[str, Any] | None = None) -> RunConfig:
    """The configuration with ``section.key`` set otherwise."""
    values = yaml.safe_load(TOY)
    for dotted, value in (changes or {}).items():
        place = values
        *sections, key = dotted.split(".")
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return RunConfig.model_validate(values)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip_bit(path: Path, position: int = -5) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def fail_writes(monkeypatch: pytest.MonkeyPatch, after: int, number: int = errno.ENOSPC) -> None:
    """Let the disk fail after some writes that must be durable."""
    calls = 0

    def failing(_descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
