"""``nmt init``: split two aligned files into training, validation and test sets.

Also writes a configuration with values for the size of the corpus.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nmt.commands.config import load_config
from nmt.config.data import CorpusConfig, TokenizerConfig
from nmt.config.filling import scale_of
from nmt.data.checks import CorpusCheck
from nmt.data.corpus import check_plain_text, measure_text, read_corpus
from nmt.data.formats.pair import BadPair, ReadOptions
from nmt.errors import ConfigError, DataError, shell_command
from nmt.extras.planning.options import InitOptions
from nmt.files.atomic import atomic_folder, write_errors
from nmt.report.page import render

logger = logging.getLogger(__name__)

Texts = tuple[str, str]
_CONFIG_NAME = "config.yaml"
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")
_HELD_OUT = ("valid", "test")
_MOST_HELD_OUT = 1000
_HELD_OUT_SHARE = 20  # At most 1 in 20 pairs is for validation, and 1 in 20 for testing.
_TOY_PAIRS = 1000  # A model of fewer training pairs is only a toy.
# A vocabulary can contain every character and every word of the text: SentencePiece merges words
# of up to 15 characters.
_WORD = re.compile(r"[^\W\d_]{1,15}")
_NUM_BYTES = 256  # Every vocabulary with byte fallback contains them.


@dataclass(frozen=True, slots=True)
class Start:
    """What `nmt init` has written."""

    config: Path  # The configuration file.
    # Number of pairs in ``train``, ``valid`` and ``test``. ``left_out`` pairs share a sentence with
    # ``valid`` or ``test``; ``unusable`` pairs are blank on one side, or unreadable.
    counts: Mapping[str, int]
    num_characters: int  # Characters of the training text, in both languages together.
    seed: int
    given: Sequence[str] = ()  # The sets among ``valid`` and ``test`` that the user passed.

    @property
    def origin(self) -> str:
        """Text about the origin of the validation and test sets."""
        given = [f"{' and '.join(self.given)} from your files"] * bool(self.given)
        drawn = [f"drawn with seed {self.seed}"] * (len(self.given) < len(_HELD_OUT))
        return ", ".join(given + drawn)

    def as_text(self) -> str:
        """Return a report that ends with the next commands."""
        values = {
            "run": f"runs/{self.config.parent.resolve().name}",
            "check": shell_command("prepare", self.config, report_only=True),
            "minutes": scale_of(self.num_characters).sections["training"]["max_minutes"],
            "is_toy": self.counts["train"] < _TOY_PAIRS,
        }
        return str(render("start.txt.j2", start=self, **values))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"config": str(self.config)}


def init(options: InitOptions) -> Start:
    """Split a corpus, and write a configuration into the same folder.

    Raises:
        ConfigError: The languages are unknown, or the folder exists or cannot be created.
        DataError: A file is missing or damaged, or the files are not parallel or too short.
    """
    source, target = options.source, options.target
    codes = _codes(source, target, options.languages)
    folder = options.output or Path("-".join(codes))
    if folder.exists():
        fix = "Choose another folder with `output`."
        if (folder / _CONFIG_NAME).is_file():
            fix = f"Continue with `nmt train {folder / _CONFIG_NAME}`, or c{fix[1:]}"
        raise ConfigError(f"{folder} already exists; nmt does not overwrite it.", fix=fix)
    reading = ReadOptions(*codes, "skip")

    def pairs(files: tuple[Path, Path] = (source, target)) -> Iterator[Texts | None]:
        """Yield source and target of each pair; None for a blank or unreadable pair."""
        for pair in read_corpus(CorpusConfig(source=files[:1], target=files[1:]), reading):
            texts = ("", "") if isinstance(pair, BadPair) else (pair[0].strip(), pair[1].strip())
            yield texts if all(texts) else None

    given = {part: files for part in _HELD_OUT if (files := getattr(options, part))}
    for left, right in ((source, target), *given.values()):
        check_plain_text(CorpusConfig(source=(left,), target=(right,)), codes)
    parts = {part: list(filter(None, pairs(files))) for part, files in given.items()}
    for part in given:
        if not parts[part]:
            fix = f"Pass two files with text on both sides: `{part}` SOURCE TARGET."
            raise DataError(f"`{part}` does not contain a pair with text on both sides.", fix=fix)
    drawn = _draw(pairs, options.seed, [*chain(*parts.values())]) if len(given) < 2 else []
    half = len(drawn) // 2
    parts = {"valid": drawn[:half], "test": drawn[half:]} | parts
    sample = drawn or [*islice(filter(None, pairs()), _MOST_HELD_OUT)]
    _warn(options, codes, sample, {part: parts[part] for part in given})
    counts = {part: len(pairs) for part, pairs in parts.items()}
    chosen = [part for part in _HELD_OUT if part not in given]
    # `others` counts the held-out pairs as left out; this corrects the count.
    counts |= {"train": 0, "unusable": 0, "left_out": -sum(counts[part] for part in chosen)}
    held = [{pair[side] for pair in chain(*parts.values())} for side in range(2)]

    def others() -> Iterator[Texts]:
        """Yield pairs that share no sentence with a held-out pair; count all pairs."""
        for pair in pairs():
            if pair is None:
                counts["unusable"] += 1
            elif pair[0] in held[0] or pair[1] in held[1]:
                counts["left_out"] += 1
            else:
                counts["train"] += 1
                yield pair

    with write_errors(folder, ConfigError, fix="Choose a writable folder with `output`."):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as place:
            for part in chosen:
                _write([place / f"{part}.{code}" for code in codes], parts[part])
            files = [place / f"train.{code}" for code in codes]
            _write(files, others())
            if not counts["train"]:
                why = "every pair shares a sentence with validation or testing"
                fix = "Pass a corpus without the sentences of the validation and test sets."
                raise DataError(f"No pair is left for training: {why}.", fix=fix)
            corpus = CorpusConfig(source=tuple(files[:1]), target=tuple(files[1:]))
            size = measure_text([corpus], codes).num_characters
            start = Start(folder / _CONFIG_NAME, counts, size, options.seed, [*given])
            vocab_size = _vocab_size(files, scale_of(size).sections["tokenizer"]["vocab_size"])
            text = _config_text(start, codes, given, vocab_size)
            (place / _CONFIG_NAME).write_text(text, encoding="utf-8", newline="\n")
            load_config(place / _CONFIG_NAME)  # the name of the folder may be invalid as ``name``
    return start


def _codes(source: Path, target: Path, languages: str | None) -> tuple[str, str]:
    """Return the codes of both languages."""
    if source == target:
        fix = "Pass a text and a file of translations: `nmt init SOURCE TARGET`."
        raise ConfigError(f"SOURCE and TARGET are the same file, {source}.", fix=fix)
    if languages is not None:
        codes = languages.split("-")
        problem = f"`languages` {languages} is not a pair of language codes."
    else:
        plain = (x.with_suffix("") if x.suffix in _COMPRESSED else x for x in (source, target))
        codes = [path.suffix.removeprefix(".") for path in plain]
        problem = f"The names of {source} and {target} do not end in two language codes."
    if len(codes) == 2 and codes[0] != codes[1] and all(map(_CODE.fullmatch, codes)):
        return codes[0], codes[1]
    raise ConfigError(problem, fix="Pass both codes, such as `languages` de-en.")


def _warn(
    options: InitOptions, codes: tuple[str, str], sample: Sequence[Texts], given: Mapping[str, Any]
) -> None:
    """Log warnings about suspicious pairs. If the sides look swapped, log the command to type."""
    check = CorpusCheck(*codes, sample)
    for warning in check.warnings():
        logger.warning(warning)
    if any(check.swapped()):
        sides, pair = (options.target, options.source), "-".join(codes)
        folder = options.output or Path(pair)
        again = shell_command("init", *sides, languages=pair, output=folder)
        logger.warning("if the files are swapped, delete %s and run: %s", folder, again)
    for part, pairs in given.items():
        for warning in CorpusCheck(*codes, pairs).warnings():
            logger.warning("`%s`: %s", part, warning)


def _draw(
    pairs: Callable[[], Iterator[Texts | None]], seed: int, known: Sequence[Texts]
) -> list[Texts]:
    """Draw an even number of pairs. No sentence occurs twice, or in ``known``."""
    usable = [number for number, pair in enumerate(pairs()) if pair]
    size = min(_MOST_HELD_OUT, len(usable) // _HELD_OUT_SHARE)
    if not size:
        fix = f"Pass at least {_HELD_OUT_SHARE} pairs. A good model needs tens of thousands."
        raise DataError(f"Too few pairs with text on both sides: {len(usable)}.", fix=fix)
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


def _write(paths: Sequence[Path], pairs: Iterable[Texts]) -> None:
    with paths[0].open("wb") as source, paths[1].open("wb") as target:
        for pair in pairs:
            source.write(f"{pair[0]}\n".encode())
            target.write(f"{pair[1]}\n".encode())


def _vocab_size(files: Sequence[Path], usual: int) -> int:
    """Return ``usual``, or a smaller size if the text is too small for that many subwords."""
    subwords = set[str]()
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                subwords.update(line, _WORD.findall(line))
                if len(subwords) >= usual:
                    return usual
    return min(usual, max(TokenizerConfig().min_vocab_size, _NUM_BYTES + len(subwords)))


def _config_text(
    start: Start, codes: tuple[str, str], given: Mapping[str, tuple[Path, Path]], vocab_size: int
) -> str:
    files = dict[str, list[str]]()
    for part in _HELD_OUT:
        # Do not resolve symbolic links to files: the target may have a name without ".gz".
        full = [str(path.parent.resolve() / path.name) for path in given.get(part, ())]
        names = full or [f"@config/{part}.{code}" for code in codes]
        files[f"{part}_files"] = [json.dumps(name, ensure_ascii=False) for name in names]
    scale = scale_of(start.num_characters).sections
    name = start.config.parent.resolve().name
    return str(
        render(
            "start.yaml.j2", name=name, source=codes[0], target=codes[1], scale=scale,
            origin=start.origin, size=start.num_characters, vocab_size=vocab_size,
            **files, **start.counts,
        )
    )  # fmt: skip
