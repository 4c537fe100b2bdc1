"""Configuration and corpus of a training that takes a second."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

from nmt.commands.train_setup import build
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.device.distributed import Processes
from nmt.training.processes import StopSignal
from nmt.training.timing import TrainingSetup

STEPS = 30
CONFIG: dict[str, Any] = {
    "name": "toy",
    "source_language": "de",
    "target_language": "en",
    "prepared_dir": "prepared",
    "data": {
        "train": [{"source": "train.de", "target": "train.en"}],
        "valid": {"source": "valid.de", "target": "valid.en"},
    },
    "tokenizer": {"vocab_size": 60, "byte_fallback": False},
    "filters": {"max_length": 30},
    "batch": {"max_tokens": 120, "gradient_accumulation": 3},
    "model": {
        "model_dim": 32,
        "ff_dim": 32,
        "num_heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.1,
    },
    "training": {
        "max_steps": STEPS,
        "threads": 1,
        "precision": "float32",
        "device": "cpu",
        "schedule": {"shape": "constant", "peak_lr": 0.003, "warmup_steps": 5},
        "validation": {"max_sentences": 8},
        "log_every": 3,
        "save_every": 5,
        "validate_every": 10,
    },
}


def write_corpus(folder: Path) -> None:
    """Words, and the same words with their letters reversed."""
    draw = random.Random(1)
    for part, number in (("train", 300), ("valid", 12)):
        lines = [
            ["".join(draw.choices("abcdefghij", k=draw.randint(1, 4))) for _ in range(count)]
            for count in (draw.randint(1, 5) for _ in range(number))
        ]
        (folder / f"{part}.de").write_text("".join(" ".join(line) + "\n" for line in lines))
        (folder / f"{part}.en").write_text(
            "".join(" ".join(word[::-1] for word in line) + "\n" for line in lines)
        )


def make_config(run_dir: str = "run", **training: object) -> RunConfig:
    """Of a training of ten updates."""
    values: dict[str, Any] = copy.deepcopy(CONFIG)
    values["run_dir"] = run_dir
    values["training"] |= {"max_steps": 10, "validate_every": 5, **training}
    return RunConfig.model_validate(values)


def setup_of(config: RunConfig) -> TrainingSetup:
    """Of data that are prepared."""
    return build(config, PreparedData.open(config.prepared_dir), Processes(), StopSignal())
