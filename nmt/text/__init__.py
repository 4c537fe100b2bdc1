"""Text <-> subword ids: SentencePiece and BPE-dropout. Loads no torch."""

from __future__ import annotations

import re

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)  # the special ids that every vocabulary begins with
NUM_SPECIAL = 4
NUM_NEVER_CHOSEN = 3  # of the special ids, from 0, no search chooses: PAD, UNK and BOS
_SURROGATES = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON may escape and which have no UTF-8 form, by U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)
