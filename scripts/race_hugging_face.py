"""Train a MarianMTModel of Hugging Face for a given time, or translate with it.

`race.py` runs this script with the Python of Hugging Face, which needs transformers but not nmt:
this file imports nothing from the package.

    PYTHON scripts/race_hugging_face.py JOB [--translate < PIECES]

JOB is a JSON file with the settings. The loop is that of Seq2SeqTrainer with its defaults: AdamW
without weight decay, gradients clipped at 1, and a linear schedule. The learning rate falls with
the time that is left, in place of the updates that are left, so that it is 0 at the end. Training
uses bfloat16 (`TrainingArguments.bf16`) if the processor has it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

transformers: Any = import_module("transformers")  # not installed when types are checked

Pair = tuple[list[int], list[int]]
PAD_ID = 0
EOS_ID = 1
UNK_ID = 2
BATCH_SIZE = 64  # sentences of a search
BLOCK_SIZE = 2000  # pairs that are sorted by length
END_SECONDS = 3.0  # to save the model and to end the process


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text."""
    text = path.read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


def to_ids(line: str, numbers: Mapping[str, int]) -> list[int]:
    """Return the ids of a line of pieces, with EOS."""
    pieces = line.split()
    ids = [numbers.get(piece, UNK_ID) for piece in pieces]
    return [*ids, EOS_ID]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of ids as a matrix."""
    longest = max(map(len, rows))
    matrix = torch.full((len(rows), longest), PAD_ID)
    for number, row in enumerate(rows):
        matrix[number, : len(row)] = torch.tensor(row)
    return matrix


def translate(job: Mapping[str, Any], pieces: Sequence[str], sources: Sequence[list[int]]) -> None:
    """Print the pieces of the translations."""
    model = transformers.MarianMTModel.from_pretrained(job["model"]).eval()
    for first in range(0, len(sources), BATCH_SIZE):
        batch = sources[first : first + BATCH_SIZE]
        source = padded(batch)
        rows = model.generate(
            input_ids=source,
            attention_mask=(source != PAD_ID).long(),
            num_beams=job["beam_size"],
            max_new_tokens=100,
            bad_words_ids=[[PAD_ID]],  # as in the configurations of the OPUS models
        )
        for row in rows.tolist():
            words = [number for number in row if number not in (PAD_ID, EOS_ID)]
            print(*(pieces[number] for number in words))


def train(job: Mapping[str, Any], vocab_size: int, pairs: Sequence[Pair]) -> None:
    """Train until the time is over, save the model, and print the number of updates."""
    start = time.time()
    until = job["until"]
    torch.manual_seed(job["seed"])
    model = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=vocab_size, d_model=job["width"], dropout=job["dropout"],
            encoder_layers=job["layers"], decoder_layers=job["layers"],
            encoder_attention_heads=job["heads"], decoder_attention_heads=job["heads"],
            encoder_ffn_dim=job["ff_width"], decoder_ffn_dim=job["ff_width"],
            activation_function="relu", scale_embedding=True, max_position_embeddings=256,
            pad_token_id=PAD_ID, eos_token_id=EOS_ID, decoder_start_token_id=PAD_ID,
            forced_eos_token_id=None,
        )
    ).train()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    cpu = Path("/proc/cpuinfo")
    is_bfloat16 = False
    if cpu.exists():
        is_bfloat16 = bool(re.search("avx512_bf16|amx_bf16", cpu.read_text()))
    updates = 0
    longest = 0.0
    rng = random.Random(job["seed"])
    for batch in batches(pairs, job["max_tokens"], rng):
        begin = time.time()
        if begin + longest + END_SECONDS > until:
            break
        updates += 1
        share_left = (until - begin) / (until - start)
        scale = min(updates / job["warmup"], share_left)
        for group in optimizer.param_groups:
            group["lr"] = job["learning_rate"] * scale
        source = padded([source_ids for source_ids, _ in batch])
        target = padded([target_ids for _, target_ids in batch])
        earlier = target[:, :-1]
        start_ids = torch.full_like(target[:, :1], PAD_ID)
        inputs = torch.cat((start_ids, earlier), 1)
        mask = (source != PAD_ID).long()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bfloat16):
            logits = model(source, mask, inputs, use_cache=False).logits
        logits = logits.float().flatten(0, 1)
        gold = target.flatten()
        loss = F.cross_entropy(logits, gold, ignore_index=PAD_ID, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        longest = max(longest, time.time() - begin)
    model.save_pretrained(job["model"])
    print(json.dumps({"step": updates, "bfloat16": is_bfloat16}))


def batches(pairs: Sequence[Pair], max_tokens: int, rng: random.Random) -> Iterator[list[Pair]]:
    """Yield batches of similar lengths without end; padding counts as tokens."""
    while True:
        planned: list[list[Pair]] = []
        shuffled = rng.sample(pairs, len(pairs))
        for first in range(0, len(pairs), BLOCK_SIZE):
            block = shuffled[first : first + BLOCK_SIZE]
            planned.append([])
            longest_source = 0
            longest_target = 0
            for source, target in sorted(block, key=_lengths):
                longest_source = max(longest_source, len(source))
                longest_target = max(longest_target, len(target))
                size = len(planned[-1]) + 1
                num_tokens = size * (longest_source + longest_target)
                if size > 1 and num_tokens > max_tokens:
                    planned.append([])
                    longest_source = len(source)
                    longest_target = len(target)
                planned[-1].append((source, target))
        rng.shuffle(planned)
        yield from planned


def _lengths(pair: Pair) -> tuple[int, int]:
    source, target = pair
    return len(target), len(source)


def main() -> None:
    """Train, or translate standard input."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("--translate", action="store_true")
    options = parser.parse_args()
    job = json.loads(options.job.read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    work = Path(job["work"])
    pieces = ["<pad>", "</s>", "<unk>", *read_lines(work / "vocabulary.txt")]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    if options.translate:
        sources = [to_ids(line, numbers) for line in sys.stdin]
        translate(job, pieces, sources)
        return
    sides = []
    for side in ("de", "en"):
        lines = read_lines(work / "pieces" / f"train.{side}")
        sides.append([to_ids(line, numbers) for line in lines])
    pairs = list(zip(*sides, strict=True))
    train(job, len(pieces), pairs)


if __name__ == "__main__":
    main()
