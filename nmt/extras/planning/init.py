"""Two aligned files -> training, validation and test sets, and a configuration for their size."""

from __future__ import annotations

import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nmt.config.data import CorpusConfig
from nmt.config.scaling import Scale, scale_of
from nmt.data.checks import CorpusCheck
from nmt.data.corpus import read_corpus
from nmt.data.pairs import BadPair, ReadOptions
from nmt.data.size import count_characters, load_config
from nmt.errors import ConfigError, DataError, shell_command
from nmt.extras.planning.options import InitOptions
from nmt.files.atomic import atomic_folder, write_errors

logger = logging.getLogger(__name__)

Texts = tuple[str, str]
_CONFIG_NAME = "config.yaml"
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")
_HELD_OUT = "valid", "test"
_MOST_HELD_OUT = 1000
_HELD_OUT_SHARE = 20  # Of so many pairs, at most one is for validation and one for testing.
_TEMPLATE = """\
# Made by `nmt init`. Every key: `nmt config keys`. The values below go with the text for training:
# {train:,} pairs, {size:,} characters in both languages.
name: {name}
source_language: {source}
target_language: {target}
# {valid:,} and {test:,} pairs for validation and testing ({origin}); training has none of
# their sentences.
data:
  train: [{{source: "@config/train.{source}", target: "@config/train.{target}"}}]
  valid: {{source: {valid_files[0]}, target: {valid_files[1]}}}
  test:
    test: {{source: {test_files[0]}, target: {test_files[1]}}}
# Entries of the vocabulary of both languages: with more text, a larger one is better.
tokenizer: {{vocab_size: {scale.vocab_size}}}
# Source and target tokens of an update: fewer make more updates, which few pairs need.
batch: {{max_tokens: {scale.max_tokens}}}
# A larger preset needs more text and time; more dropout helps where there is little text.
model: {{preset: {scale.preset}, dropout: {scale.dropout}}}
training:
  # Training takes about so many minutes. Ctrl-C stops it; the same command resumes it.
  max_minutes: {scale.minutes}
  # Weight of R-Drop: two passes with other dropout have to agree. Twice the work, for little text.
  r_drop: {scale.r_drop}
  # The learning rate, which goes with the optimizer, rises to its peak over a share of the run,
  # then falls to zero at its end.
{optimizer}  # Updates between two validations, and between two checkpoints.
  validate_every: {scale.validate_every}
  save_every: {scale.validate_every}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What `init` has written."""

    config: Path  # The configuration file.
    # Pairs of ``train``, ``valid`` and ``test``; ``left_out``, as they share a sentence with the
    # last two; ``unusable``: blank on a side, or not to be read.
    counts: Mapping[str, int]
    num_characters: int  # Of the training text in both languages.
    seed: int
    given: Sequence[str] = ()  # Those of ``valid`` and ``test`` that were not drawn.

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.config.parent.resolve().name

    @property
    def scale(self) -> Scale:
        """The values of the configuration."""
        return scale_of(self.num_characters)

    @property
    def origin(self) -> str:
        """How the pairs that are not for training were chosen."""
        given = f"{' and '.join(self.given)} as given" if self.given else ""
        drawn = f"drawn with seed {self.seed}" if len(self.given) < len(_HELD_OUT) else ""
        return ", ".join(filter(None, (given, drawn)))

    def as_text(self) -> str:
        """Return a report that ends with the next command."""
        return (
            "{train:,} pairs for training, {valid:,} for validation, {test:,} for testing "
            "({origin})\n"
            "left out: {left_out:,} that share a sentence with validation or testing, "
            "{unusable:,} blank or unreadable\n"
            "look at the text: nmt prepare {config} --report-only\nnext: nmt train {config}\n"
            "      (about {minutes} minutes: training.max_minutes)\n"
            "then: nmt evaluate {run} scores the model on the test set,\n"
            "      nmt translate {run} FILE translates the lines of a file"
        ).format(
            origin=self.origin,
            config=self.config,
            minutes=self.scale.minutes,
            run=f"runs/{self.name}",
            **self.counts,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"config": str(self.config)}


def init(options: InitOptions) -> Start:
    """Split a corpus, and write a configuration beside the parts.

    Raises:
        ConfigError: The languages are not known, or the folder cannot be made.
        DataError: A file is missing or damaged, they are not parallel, or hold too few pairs.
    """
    source, target, seed = options.source, options.target, options.seed
    codes = _codes(source, target, options.languages)
    folder = options.output or Path("-".join(codes))
    _refuse_existing(folder)
    reading = ReadOptions(*codes, "skip")

    def pairs(files: tuple[Path, Path] = (source, target)) -> Iterator[Texts | None]:
        """Yield the texts of both sides; None for what cannot be used."""
        for pair in read_corpus(CorpusConfig(source=files[0], target=files[1]), reading):
            texts = ("", "") if isinstance(pair, BadPair) else (pair[0].strip(), pair[1].strip())
            yield texts if all(texts) else None

    given = {part: files for part in _HELD_OUT if (files := getattr(options, part))}
    parts = _held_out(pairs, given, seed)
    held = [pair for part in parts.values() for pair in part]
    drawn = parts.keys() - given.keys()
    sample = [pair for part in drawn for pair in parts[part]] or _first(pairs())
    _warn(sample, codes, (source, target), folder)
    for part in given:
        for warning in _check(parts[part], codes).warnings():
            logger.warning("`%s`: %s", part, warning)
    counts = Counter(left_out=-sum(len(parts[part]) for part in drawn), unusable=0)
    with write_errors(folder, ConfigError, fix="Name a folder with `output` where you can write."):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as place:
            texts = {"train": _others(pairs(), held, counts), **parts}
            for part, each in texts.items():
                paths = [place / f"{part}.{code}" for code in codes]
                counts[part] = len(parts[part]) if part in given else _write(paths, each)
            if not counts["train"]:
                raise DataError(
                    "No pair is left for training: all have a sentence of validation or testing.",
                    fix="Name a corpus that does not hold these sets.",
                )
            start = Start(
                config=folder / _CONFIG_NAME,
                counts=counts,
                num_characters=_num_characters(place, codes),
                seed=seed,
                given=[*given],
            )
            (place / _CONFIG_NAME).write_text(_config_text(start, codes, given), encoding="utf-8")
            load_config(place / _CONFIG_NAME)  # the folder's name may be none for an experiment
    return start


def _warn(
    pairs: Sequence[Texts], codes: tuple[str, str], files: tuple[Path, Path], folder: Path
) -> None:
    """Warn of what is odd about some pairs; name the other command where sides look swapped."""
    check = _check(pairs, codes)
    for warning in check.warnings():
        logger.warning(warning)
    if any(check.swapped()):
        command = shell_command("init", *files[::-1], languages="-".join(codes), output=folder)
        logger.warning("if so, remove %s and type: %s", folder, command)


def _check(pairs: Sequence[Texts], codes: tuple[str, str]) -> CorpusCheck:
    check = CorpusCheck(*codes)
    check.update(pairs, np.array([[len(pair[side]) for pair in pairs] for side in range(2)]))
    return check


def _first(pairs: Iterable[Texts | None]) -> list[Texts]:
    """Return the first pairs with text on both sides."""
    return [*islice(filter(None, pairs), _MOST_HELD_OUT)]


def _refuse_existing(folder: Path) -> None:
    """Refuse a folder that is there."""
    if folder.exists():
        fix = "Name another folder with `output`."
        if (folder / _CONFIG_NAME).is_file():
            fix = (
                f"Continue with `nmt train {folder / _CONFIG_NAME}`, or name another with `output`."
            )
        raise ConfigError(f"{folder} is there already, and is not overwritten.", fix=fix)


def _codes(source: Path, target: Path, languages: str | None) -> tuple[str, str]:
    """Return the codes of both languages."""
    if source == target:
        raise ConfigError(
            f"SOURCE and TARGET are the same file, {source}.",
            fix="Name a text and its translations: `nmt init SOURCE TARGET`.",
        )
    if languages is not None:
        codes = languages.split("-")
        problem = f"`languages` {languages} is not a pair of language codes."
    else:
        plain = (x.with_suffix("") if x.suffix in _COMPRESSED else x for x in (source, target))
        codes = [path.suffix.removeprefix(".") for path in plain]
        problem = f"The names of {source} and {target} do not end in the codes of two languages."
    if len(codes) == 2 and codes[0] != codes[1] and all(map(_CODE.fullmatch, codes)):
        return codes[0], codes[1]
    raise ConfigError(problem, fix="Name them, as in `languages` de-en.")


def _held_out(
    pairs: Callable[..., Iterator[Texts | None]], given: Mapping[str, tuple[Path, Path]], seed: int
) -> dict[str, list[Texts]]:
    """Return the pairs for validation and testing: those given, others drawn from the corpus."""
    read = {part: [pair for pair in pairs(files) if pair] for part, files in given.items()}
    for part in read:
        if not read[part]:
            raise DataError(f"`{part}` has no pair with text on both sides.", fix="Name others.")
    known = [pair for part in read.values() for pair in part]
    drawn = _draw(pairs, seed, known) if len(given) < len(_HELD_OUT) else []
    half = len(drawn) // 2
    return {"valid": drawn[:half], "test": drawn[half:]} | read


def _draw(
    pairs: Callable[[], Iterator[Texts | None]], seed: int, known: Sequence[Texts]
) -> list[Texts]:
    """Return pairs to hold out that share no sentence, nor with ``known``; an even number."""
    usable = [number for number, pair in enumerate(pairs()) if pair]
    size = min(_MOST_HELD_OUT, len(usable) // _HELD_OUT_SHARE)
    if not size:
        raise DataError(
            f"Too few pairs with text on both sides: {len(usable)}.",
            fix=f"`nmt init` needs {_HELD_OUT_SHARE} at least, and a good model tens of thousands.",
        )
    drawn = random.Random(seed).sample(usable, min(4 * size, len(usable)))
    wanted = set(drawn)
    texts = {number: pair for number, pair in enumerate(pairs()) if number in wanted}
    found, seen = list[Texts](), tuple({pair[side] for pair in known} for side in range(2))
    for number in drawn:
        pair = texts[number]
        if pair and pair[0] not in seen[0] and pair[1] not in seen[1]:
            found.append(pair)
            seen[0].add(pair[0])
            seen[1].add(pair[1])
    return found[: 2 * min(size, len(found) // 2)]


def _others(
    pairs: Iterable[Texts | None], held: Sequence[Texts], counts: Counter[str]
) -> Iterator[Texts]:
    """Yield the pairs that share no sentence with those held out; count the rest."""
    sources, targets = ({pair[side] for pair in held} for side in range(2))
    for pair in pairs:
        if pair is None:
            counts["unusable"] += 1
        elif pair[0] in sources or pair[1] in targets:
            counts["left_out"] += 1
        else:
            yield pair


def _num_characters(folder: Path, codes: tuple[str, str]) -> int:
    """Return the characters of the training text in both languages."""
    source, target = (folder / f"train.{code}" for code in codes)
    return count_characters([CorpusConfig(source=source, target=target)], codes)


def _write(paths: Sequence[Path], pairs: Iterable[Texts]) -> int:
    """Write both sides of pairs; return how many there were."""
    count = 0
    with paths[0].open("wb") as source, paths[1].open("wb") as target:
        for pair in pairs:
            source.write(f"{pair[0]}\n".encode())
            target.write(f"{pair[1]}\n".encode())
            count += 1
    return count


def _config_text(
    start: Start, codes: tuple[str, str], given: Mapping[str, tuple[Path, Path]]
) -> str:
    scale = start.scale
    optimizer = "".join(
        f"  {name}: {{{', '.join(f'{key}: {value}' for key, value in section.items())}}}\n"
        for name, section in scale.optimizer.items()
    )
    files = {part: [f'"@config/{part}.{code}"' for code in codes] for part in _HELD_OUT}
    for part, paths in given.items():
        # A file's own link is kept: what it leads to may be named by a checksum, without ".gz".
        full = [str(path.parent.resolve() / path.name) for path in paths]
        files[part] = [json.dumps(path, ensure_ascii=False) for path in full]
    held_out = {"valid_files": files["valid"], "test_files": files["test"], "origin": start.origin}
    names = {"name": start.name, "source": codes[0], "target": codes[1]}
    values = {**names, **held_out, **start.counts, "size": start.num_characters}
    return _TEMPLATE.format(scale=scale, optimizer=optimizer, **values)
