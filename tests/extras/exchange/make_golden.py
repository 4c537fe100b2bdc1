"""Make golden.json with Hugging Face's own library, which nmt does not need.

python -m tests.extras.exchange.make_golden ../shared/data/marian_models     # needs transformers 5
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch

from tests.extras.exchange.marian_files import KINDS, nasty_lines, tokens, write

NUM_LINES, NUM_LOGITS = 1000, 6


def golden(marian_models: Path) -> dict[str, Any]:
    """What transformers makes of the random models and of nasty lines."""
    from transformers import (  # type: ignore[import-not-found]
        MarianMTModel,
        MarianTokenizer,
    )

    own, found = tokens(marian_models, ">>deu<<"), {}
    lines = nasty_lines(marian_models, NUM_LINES)
    forbidden = [[own.index(token)] for token in ("<pad>", "<unk>")]
    with tempfile.TemporaryDirectory() as place:
        tokenizer: Any = None
        for name, kind in KINDS.items():
            folder = write(Path(place) / name, marian_models, kind, ">>deu<<")
            tokenizer = MarianTokenizer.from_pretrained(folder)
            model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
            sources = [tokenizer(line)["input_ids"] for line in lines[:200:25]]
            target = [len(own) - 1, 5, 900, 3000, 17]
            results = []
            for source in sources:
                ids = torch.tensor([source])
                logits = model(input_ids=ids, decoder_input_ids=torch.tensor([target])).logits[0]
                outputs = [
                    model.generate(
                        ids, num_beams=beams, max_new_tokens=16, bad_words_ids=forbidden,
                        early_stopping=False, do_sample=False,
                    )[0].tolist()[1:]
                    for beams in (1, 4)
                ]  # fmt: skip
                results.append(
                    {
                        "source": source,
                        "logits": [[round(x, 6) for x in row[::700].tolist()] for row in logits],
                        "outputs": outputs,
                    }
                )
            found[name] = {"target": target, "results": results}
        rows = [tokenizer(line)["input_ids"] for line in lines]
    return {"models": found, "ids": [zlib.crc32(json.dumps(row).encode()) for row in rows]}


if __name__ == "__main__":
    with torch.inference_mode():
        result = golden(Path(sys.argv[1]))
    path = Path(__file__).with_name("golden.json")
    path.write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")
