"""Text <-> subword ids: SentencePiece and BPE-dropout. Loads no torch."""

from __future__ import annotations

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
"""The special ids that every vocabulary begins with."""

NUM_SPECIAL = 4
"""How many they are."""

NUM_NEVER_CHOSEN = 3
"""How many of them, from id 0, no search chooses: PAD, UNK and BOS."""
