"""The four special ids that every vocabulary begins with."""

from __future__ import annotations

PAD_ID = 0
UNK_ID = 1
BOS_ID = 2
EOS_ID = 3
