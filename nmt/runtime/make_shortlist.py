"""The training data -> which target tokens a sentence may need."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from nmt.checkpoint.model_folder import SHORTLIST, write_extra
from nmt.data.lexicon import likely_translations
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError
from nmt.runtime.shortlist import shortlist_bytes
from nmt.runtime.shortlist_file import ShortlistFile

_CANDIDATES = 50
_COMMON = 200


def make_shortlist(run_dir: Path, data: PreparedData) -> None:
    """Write ``shortlist.safetensors`` if there is no whole one: a run has one set of data.

    The bytes are the same for the same data, however the training went.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    manifest = data.manifest
    sizes = manifest.source_vocab_size, manifest.target_vocab_size
    with suppress(CheckpointError):
        if ShortlistFile(run_dir, sizes).parts is not None:
            return
    counts = data.train.token_counts("target", manifest.target_vocab_size)
    common = np.argsort(-counts, kind="stable")[:_COMMON]
    candidates = likely_translations(data.train, sizes, _CANDIDATES)
    content = shortlist_bytes(torch.from_numpy(common.copy()), torch.from_numpy(candidates))
    write_extra(run_dir / SHORTLIST, content)
