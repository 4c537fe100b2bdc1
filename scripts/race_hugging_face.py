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


def to_ids(line: str, id_of: Mapping[str, int]) -> list[int]:
    """Return the ids of a line of pieces, with EOS. ``id_of`` has the id of each piece."""
    pieces = line.split()
    ids = [id_of.get(piece, UNK_ID) for piece in pieces]
    return [*ids, EOS_ID]


def padded(sentences: Sequence[Sequence[int]]) -> Tensor:
    """Return the ids of sentences as a matrix, padded to the longest sentence."""
    longest = max(map(len, sentences))
    matrix = torch.full((len(sentences), longest), PAD_ID)
    for row, ids in enumerate(sentences):
        matrix[row, : len(ids)] = torch.tensor(ids)
    return matrix


def translate(job: Mapping[str, Any], pieces: Sequence[str], sources: Sequence[list[int]]) -> None:
    """Print the pieces of the translations, one line for each source.

    Args:
        job: The settings.
        pieces: The piece of each id.
        sources: Ids of each sentence, with EOS.
    """
    model = transformers.MarianMTModel.from_pretrained(job["model"]).eval()
    for first in range(0, len(sources), BATCH_SIZE):
        batch = sources[first : first + BATCH_SIZE]
        source = padded(batch)
        outputs = model.generate(
            input_ids=source,
            attention_mask=(source != PAD_ID).long(),
            num_beams=job["beam_size"],
            max_new_tokens=100,
            bad_words_ids=[[PAD_ID]],  # as in the configurations of the OPUS models
        )
        for output in outputs.tolist():
            ids = [piece_id for piece_id in output if piece_id not in (PAD_ID, EOS_ID)]
            print(*(pieces[piece_id] for piece_id in ids))


def train(job: Mapping[str, Any], vocab_size: int, pairs: Sequence[Pair]) -> None:
    """Train until the time is over, save the model, and print the number of updates.

    Args:
        job: The settings. ``until`` is the time at which this process has to end, in seconds.
        vocab_size: Number of pieces, with the special ones.
        pairs: Source ids and target ids of each pair, with EOS.
    """
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
    cpu_info = Path("/proc/cpuinfo")
    is_bfloat16 = False
    if cpu_info.exists():
        is_bfloat16 = bool(re.search("avx512_bf16|amx_bf16", cpu_info.read_text()))
    num_updates = 0
    longest_seconds = 0.0  # Of an update.
    rng = random.Random(job["seed"])
    for batch in batches(pairs, job["max_tokens"], rng):
        begin = time.time()
        if begin + longest_seconds + END_SECONDS > until:
            break
        num_updates += 1
        share_left = (until - begin) / (until - start)
        # Grows during the warm-up, then falls with the time that is left.
        scale = min(num_updates / job["warmup"], share_left)
        for group in optimizer.param_groups:
            group["lr"] = job["learning_rate"] * scale
        source = padded([source_ids for source_ids, _ in batch])
        target = padded([target_ids for _, target_ids in batch])
        # The decoder reads the start symbol, which is PAD in this model, and all but the last id.
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
        longest_seconds = max(longest_seconds, time.time() - begin)
    model.save_pretrained(job["model"])
    print(json.dumps({"step": num_updates, "bfloat16": is_bfloat16}))


def batches(pairs: Sequence[Pair], max_tokens: int, rng: random.Random) -> Iterator[list[Pair]]:
    """Yield batches of similar lengths without end; padding counts as tokens.

    Each epoch is shuffled. Blocks of pairs are sorted by length and cut into batches, whose order
    is shuffled again.
    """
    while True:
        planned: list[list[Pair]] = []  # All batches of an epoch; the last one is being filled.
        shuffled = rng.sample(pairs, len(pairs))
        for first in range(0, len(pairs), BLOCK_SIZE):
            block = shuffled[first : first + BLOCK_SIZE]
            planned.append([])
            longest_source = 0
            longest_target = 0
            for source, target in sorted(block, key=_lengths):
                longest_source = max(longest_source, len(source))
                longest_target = max(longest_target, len(target))
                batch_size = len(planned[-1]) + 1  # With this pair.
                num_tokens = batch_size * (longest_source + longest_target)
                if batch_size > 1 and num_tokens > max_tokens:  # This pair starts a new batch.
                    planned.append([])
                    longest_source = len(source)
                    longest_target = len(target)
                planned[-1].append((source, target))
        rng.shuffle(planned)
        yield from planned


def _lengths(pair: Pair) -> tuple[int, int]:
    """Return the sort key of a pair: target length, then source length."""
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
    id_of = {piece: piece_id for piece_id, piece in enumerate(pieces)}
    if options.translate:
        sources = [to_ids(line, id_of) for line in sys.stdin]
        translate(job, pieces, sources)
        return
    sides = []
    for language in ("de", "en"):
        lines = read_lines(work / "pieces" / f"train.{language}")
        sides.append([to_ids(line, id_of) for line in lines])
    source_ids, target_ids = sides
    pairs = list(zip(source_ids, target_ids, strict=True))
    train(job, len(pieces), pairs)


if __name__ == "__main__":
    main()
