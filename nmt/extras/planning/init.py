"""``nmt init``: split parallel text into training, validation and test sets.

Also writes a configuration with values for the size of the corpus. The text, in any format, is read
once and copied as UTF-8 text; then the copy is split.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nmt.commands.config import load_config
from nmt.config.data import LANGUAGE_CODE, CorpusConfig, TokenizerConfig
from nmt.config.filling import SCALES, WITHOUT_GPU, Scale, scale_of
from nmt.config.language_codes import Languages
from nmt.config.paths import matching_files
from nmt.config.run import check_languages, name_of_folder
from nmt.data import hubs, opus
from nmt.data.checks import CorpusCheck, other_language
from nmt.data.corpus import check_plain_text, layout_notes, measure_text, read_blocks
from nmt.data.formats.columns import code_of_name
from nmt.data.formats.file_names import is_set
from nmt.data.formats.layout import Column, Wanted
from nmt.data.formats.pair import BadPair, ReadOptions, leading_tag, place_of
from nmt.data.places import PartFiles, find_places
from nmt.errors import ConfigError, DataError, join_words, shell_command
from nmt.extras.planning.expectation import FEW_PAIRS, expected_quality, expected_time
from nmt.extras.planning.held_out import (
    BlockSample,
    Texts,
    comparable,
    count_copies,
    draw,
    reasons_against,
    sentences_to_remove,
)
from nmt.extras.planning.options import InitOptions
from nmt.files.atomic import atomic_folder, write_errors
from nmt.files.encoding import START_BYTES
from nmt.files.lines import first_bytes
from nmt.files.progress import progress_bar
from nmt.installation import read_toml
from nmt.report.page import render
from nmt.text.languages import name_of

logger = logging.getLogger(__name__)

_CONFIG_NAME = "config.yaml"
_PRETRAINED_NAME = "pretrained.yml"  # The pattern *.yaml finds the first configuration alone.
_DOWNLOADS = "downloads"  # Name of the folder of downloads, next to the output folder.
_PRETRAINED = "facebook/nllb-200-distilled-600M"
_FOR_ANY_USE = "facebook/m2m100_418M"
_TRAIN = "train"
_VALID = "valid"
_TEST = "test"
_HELD_OUT = (_VALID, _TEST)
_WHOLE = ".whole"  # Name of the copy of the corpus before it is split.
_MOST_HELD_OUT = 1000
_HELD_OUT_SHARE = 20  # At most 1 in 20 pairs is for validation, and 1 in 20 for testing.
# Reasons of left-out pairs that mean a wrong format.
_TECHNICAL = ("nul", "columns", "syntax", "language_code")
_MOST_TECHNICAL = 0.01  # Largest share of the pairs with one of these reasons.
_MISALIGNED_SHARE = 0.01  # Of the sample; a larger share is a warning.
_SHOWN_PAIRS = 3
_SHOWN_FILES = 3
_SHOWN_WIDTH = 44  # Characters of a side.
_MEANINGS = read_toml(__file__, "left_out.toml")  # Reasons of left-out pairs, as predicates.
# A vocabulary can contain every character and every word of the text: SentencePiece merges words
# of up to 15 characters.
_WORD = re.compile(r"[^\W\d_]{1,15}")
_NUM_BYTES = 256  # Every vocabulary with byte fallback contains them.


@dataclass
class Account:
    """The pairs of a part: how many were read, and how many were left out by reason."""

    num_pairs: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # By reason: place and text of a pair.

    @property
    def num_usable(self) -> int:
        """Number of pairs with text on both sides."""
        return self.num_pairs - self.left_out.total()

    def read(self, corpus: CorpusConfig, options: ReadOptions) -> Iterator[Texts]:
        """Yield the pairs with text on both sides; count all pairs."""
        for block in read_blocks(corpus, options):
            for pair in block.pairs:
                self.num_pairs += 1
                place = place_of(pair)
                if isinstance(pair, BadPair):
                    self._leave_out(pair.reason, place, pair.excerpt)
                    continue
                source = pair.source.strip()
                target = pair.target.strip()
                if not (source and target):
                    self._leave_out("blank", place, source or target)
                elif leading_tag(source):
                    self._leave_out("language_code", place, source)
                else:
                    yield source, target

    def _leave_out(self, reason: str, place: str, excerpt: str) -> None:
        self.left_out[reason] += 1
        self.examples.setdefault(reason, f"{place}: {excerpt[:_SHOWN_WIDTH]!r}")

    def check(self) -> None:
        """Check that the format was understood.

        Raises:
            DataError: Too many pairs have the same technical problem.
        """
        for reason in _TECHNICAL:
            count = self.left_out[reason]
            if count > _MOST_TECHNICAL * self.num_pairs:
                problem = f"{count:,} of {self.num_pairs:,} pairs: {_MEANINGS[reason]}. "
                problem += f"The first is {self.examples[reason]}."
                fix = "Correct the text, or pass `skip_unreadable` to leave these pairs out."
                if reason == "nul":
                    fix = f"If the text is UTF-16, pass `encoding` utf-16. {fix}"
                if reason == "language_code":
                    fix = "Write a configuration with target_languages in data.train (see "
                    fix += "`nmt help configs`), and run `nmt prepare CONFIG`."
                raise DataError(problem, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What `nmt init` has read and written."""

    config: Path  # The configuration file.
    languages: Languages
    layout: Mapping[str, str]  # Format, encoding and columns of the corpus, in words.
    first_pairs: Sequence[Texts]
    # Number of pairs: ``read`` from the corpus, and in ``train``, ``valid`` and ``test``.
    # ``copies`` were left out because they share a sentence with ``valid`` or ``test``.
    counts: Mapping[str, int]
    left_out: Mapping[str, int]  # Number of unusable pairs by reason.
    examples: Mapping[str, str]  # By reason: the first unusable pair.
    num_characters: int  # Characters of the training text, in both languages together.
    max_minutes: int  # Training time of the configuration.
    machine: str  # Its kind, a result of `nmt.device.precision.kind_of_machine`.
    lacks_gpu: bool  # Whether the model is smaller than usual because there is no GPU.
    seed: int
    given: Sequence[str]  # The validation and test sets that were not drawn.
    tests: Sequence[str]  # All test sets.

    @property
    def suits_pretrained(self) -> bool:
        """Whether there are so few pairs that a pretrained model is a better start."""
        return self.counts[_TRAIN] < FEW_PAIRS

    def as_text(self) -> str:
        """Return a report that ends with the next commands."""
        folder = self.config.parent
        longest = max(len(source) for source, _ in self.first_pairs)
        text_files = _files(folder, _TRAIN, self.languages)
        get_pretrained = shell_command(
            "import",
            _PRETRAINED,
            output=folder / "nllb",
            keep_vocabulary=text_files,
            keep_language=self.languages,
        )
        values = {
            "names": " to ".join(map(name_of, self.languages)),
            "shown": _SHOWN_WIDTH,
            "width": min(longest, _SHOWN_WIDTH),
            "meanings": _MEANINGS,
            "run": join_words([f"runs/{folder.resolve().name}"]),
            "check": shell_command("prepare", self.config, report_only=True),
            "train": shell_command("train", self.config),
            "expected": expected_quality(self.counts[_TRAIN]),
            "expected_here": expected_time(self.counts[_TRAIN], self.machine),
            "get_pretrained": get_pretrained,
            "free": _FOR_ANY_USE,
            "train_pretrained": shell_command("train", folder / _PRETRAINED_NAME),
        }
        return str(render("start.txt.j2", start=self, **values))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"config": str(self.config)}


def init(options: InitOptions) -> Start:
    """Split a corpus, and write a configuration into the same folder.

    Raises:
        ConfigError: A language, column or encoding is wrong, or the folder exists or cannot be
            created.
        DataError: A file is missing or damaged, it is not certain how to read it, or there are too
            few pairs.
    """
    wanted = Wanted(
        _languages(options.languages), _columns(options.columns), options.format, options.encoding
    )
    downloads = Path(_DOWNLOADS)
    if options.output is not None:
        _check_output(options.output)  # before a long download
        downloads = options.output.parent / _DOWNLOADS
    places = _local_places(options.places, wanted, downloads)
    found = find_places(places, wanted)
    codes = found.languages
    check_languages(dict(zip(("source", "target"), codes, strict=True)))
    folder = options.output or Path("-".join(codes))
    _check_output(folder)
    hint = ""
    if found.unused:
        unused = [f"{path} {reason}" for path, reason in found.unused.items()]
        shown = "; ".join(unused[:_SHOWN_FILES])
        logger.info("files that are not used: %d, for example: %s", len(unused), shown)
        hint = f" Not used: {shown}"
    parts = dict(found.parts)
    for part in _HELD_OUT:
        if getattr(options, part):
            if part == _TEST:  # instead of all test sets of the places
                parts = {name: parts[name] for name in parts if name in (_TRAIN, _VALID)}
            places = _local_places(getattr(options, part), Wanted(codes), downloads)
            in_places = find_places(places, Wanted(codes, encoding=options.encoding))
            if len(in_places.parts) > 1:
                problem = f"`{part}` contains several sets: {', '.join(in_places.parts)}."
                raise DataError(problem, fix="Pass the files of one set.")
            parts[part] = in_places.parts[_TRAIN]
    corpora = {part: _corpus(files, wanted) for part, files in parts.items()}
    for part, corpus in corpora.items():
        _check_encoding(parts[part], options.encoding)
        check_plain_text(corpus, codes)
    reading = ReadOptions(
        *codes,
        on_bad_utf8="skip" if options.skip_unreadable else "error",
        skip_advice="pass `skip_unreadable`",
    )
    given = _given_sets(corpora, reading)
    known = list(chain.from_iterable(given.values()))
    account = Account()
    with _new_folder(folder) as place:
        # Copy the corpus, and look at a sample.
        whole = _files(place, _WHOLE, codes)
        sample = BlockSample(options.seed)
        _write(whole, sample.seen(account.read(corpora[_TRAIN], reading)))
        if not options.skip_unreadable:
            account.check()
        pairs = sample.pairs()
        _warn(options, codes, {_TRAIN: pairs, **given})
        # Draw the held-out sets.
        size = min(_MOST_HELD_OUT, account.num_usable // _HELD_OUT_SHARE)
        candidates = list[Texts]()
        if size or len(given) < len(_HELD_OUT):
            candidates = _candidates(sample, codes, size, place, hint)
        copies = count_copies(whole, [*candidates, *known])
        drawn = draw(candidates, copies, 2 * size, options.seed, known)
        half = len(drawn) // 2
        held_out = {_VALID: drawn[:half], _TEST: drawn[half : 2 * half]}
        if len(given) > 1:  # a validation set and a test set, or test sets with names
            del held_out[_TEST]
        held_out |= given
        sizes = {}
        for part, pairs_of_part in held_out.items():
            if not pairs_of_part:
                problem = f"No pair of the corpus is good enough for `{part}`: each is a copy, or "
                problem += "`nmt prepare` would report it."
                raise DataError(problem, fix="Pass more text, or `valid` and `test`.")
            sizes[part] = _write(_files(place, part, codes), pairs_of_part)
        num_drawn = sum(sizes[part] for part in held_out.keys() - given.keys())
        counts = {"read": account.num_pairs, _VALID: sizes.pop(_VALID), _TEST: sum(sizes.values())}
        # The rest is for training.
        removed = sentences_to_remove(chain.from_iterable(held_out.values()), copies)
        train = _files(place, _TRAIN, codes)
        counts[_TRAIN] = _write(train, _without(_read_copy(whole), removed))
        if not counts[_TRAIN]:
            why = "every pair shares a sentence with validation or testing"
            fix = "Pass a corpus without the sentences of the validation and test sets."
            raise DataError(f"No pair is left for training: {why}.", fix=fix)
        counts["copies"] = account.num_usable - counts[_TRAIN] - num_drawn
        for path in whole:
            path.unlink()
        # Write the configuration.
        training_text = CorpusConfig(source=(train[0],), target=(train[1],))
        num_characters = measure_text([training_text], codes).num_characters
        scale = scale_of(num_characters)
        machine = _kind_of_machine()
        lacks_gpu = scale is SCALES[-1] and machine != "GPU"
        if lacks_gpu:
            scale = WITHOUT_GPU
        start = Start(
            config=folder / _CONFIG_NAME,
            languages=codes,
            layout=_described(parts[_TRAIN]),
            first_pairs=pairs[:_SHOWN_PAIRS],
            counts=counts,
            left_out=account.left_out,
            examples=account.examples,
            num_characters=num_characters,
            max_minutes=scale.sections["training"]["max_minutes"],
            machine=machine,
            lacks_gpu=lacks_gpu,
            seed=options.seed,
            given=list(given),
            tests=list(sizes),
        )
        vocab_size = _vocab_size(train, scale.sections["tokenizer"]["vocab_size"])
        _write_configs(place, start, scale, vocab_size)
    return start


def _languages(text: str | None) -> Languages | None:
    """Return the codes in a pair of languages; None if the files decide."""
    if text is None:
        return None
    hyphens = [match.start() for match in re.finditer("-", text)]
    pairs = [(text[:place], text[place + 1 :]) for place in hyphens]
    if len(pairs) > 1:  # a code contains one, as in pt-BR-en
        pairs = [pair for pair in pairs if None not in map(code_of_name, pair)]
    for source, target in pairs:
        if source != target and all(re.fullmatch(LANGUAGE_CODE, x) for x in (source, target)):
            return source, target
    fix = "Pass both codes, such as `languages` de-en."
    raise ConfigError(f"`languages` {text} is not a pair of language codes.", fix=fix)


def _columns(names: Sequence[str]) -> tuple[Column, Column] | None:
    """Return the columns of source and target; None if the files decide."""
    if not names:
        return None
    columns = [int(name) if name.isdecimal() else name for name in names]
    if len(columns) != 2:
        fix = "Pass the source and the target, such as `columns` 1,2 or `columns` english,german."
        raise ConfigError(f"`columns` {','.join(names)}: expected two columns.", fix=fix)
    source, target = columns
    return source, target


def _local_places(places: Sequence[Path], wanted: Wanted, downloads: Path) -> list[Path]:
    """Download the places that are elsewhere, and replace patterns by their files."""
    local_places = []
    for place in matching_files(places):
        name = place.as_posix()
        if name.startswith(opus.PREFIX):
            local_places.append(opus.opus_corpus(name, wanted.languages, downloads))
        elif name.startswith(hubs.PREFIX):
            local_places.append(hubs.save_data_set(name, wanted.languages, downloads))
        else:
            local_places.append(place)
    return local_places


def _check_output(folder: Path) -> None:
    """Raise a ConfigError if the output folder exists."""
    if not folder.exists():
        return
    fix = "Choose another folder with `output`."
    if (folder / _CONFIG_NAME).is_file():
        fix = f"Continue with `{shell_command('train', folder / _CONFIG_NAME)}`, or c{fix[1:]}"
    raise ConfigError(f"{folder} already exists; nmt does not overwrite it.", fix=fix)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``folder``; after an error, nothing is left.

    Raises:
        ConfigError: The folder cannot be written.
    """
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        fix = "Choose a writable folder with `output`."
        with write_errors(folder, ConfigError, fix=fix), atomic_folder(folder) as place:
            yield place
    except BaseException:
        for parent in missing:  # from the innermost one
            with suppress(OSError):
                parent.rmdir()
        raise


def _corpus(files: PartFiles, wanted: Wanted) -> CorpusConfig:
    """Return the files of a part as a corpus of a configuration."""
    encoding = files.layout.encoding
    if files.targets:
        if wanted.columns is not None:
            fix = "Leave it out, or pass a file with both sides."
            raise ConfigError("`columns` has no effect on aligned text files.", fix=fix)
        return CorpusConfig(source=files.sources, target=files.targets, encoding=encoding)
    return CorpusConfig(
        path=files.sources,
        format=files.layout.format,
        columns=wanted.columns,
        encoding=encoding,
    )


def _given_sets(
    corpora: Mapping[str, CorpusConfig], reading: ReadOptions
) -> dict[str, list[Texts]]:
    """Return the pairs of the validation set and of the test sets that the user has.

    Raises:
        DataError: A set has no usable pair, or cannot be read.
    """
    given = dict[str, list[Texts]]()
    for part, corpus in corpora.items():
        if part == _TRAIN:
            continue
        account = Account()
        given[part] = list(account.read(corpus, reading))
        if not given[part]:
            fix = f"Pass text on both sides as `{part}`."
            raise DataError(f"`{part}` has no pair with text on both sides.", fix=fix)
        for note in layout_notes(corpus, (reading.source_language, reading.target_language)):
            logger.info("`%s`: %s: %d pairs", part, note, len(given[part]))
        files = corpus.source or corpus.path
        if len(files) > 1:
            logger.info("`%s` consists of %d files", part, len(files))
        if account.left_out:
            logger.warning("`%s`: %d pairs are left out", part, account.left_out.total())
    return given


def _check_encoding(files: PartFiles, wanted: str | None) -> None:
    """Check that no file is UTF-8 although the user has named another encoding.

    Raises:
        DataError: A file has letters in UTF-8, which are very unlikely in another encoding.
    """
    encoding = files.layout.encoding
    if wanted is None or encoding.startswith("utf-"):
        return
    for path in (*files.sources, *files.targets):
        # Without the last line, because a letter may be cut.
        start, _, _ = first_bytes(path, START_BYTES).rpartition(b"\n")
        with suppress(UnicodeDecodeError):
            if not start.decode("utf-8").isascii():
                fix = "Leave out `encoding`, or convert the other files to UTF-8."
                raise DataError(f"{path} is UTF-8, and not {encoding}.", fix=fix)


def _described(files: PartFiles) -> dict[str, str]:
    """Return format, encoding and columns of a part in words."""
    layout = files.layout
    names = [path.name for path in (*files.sources[:1], *files.targets[:1])]
    format_name = layout.format
    if files.targets and is_set(files.sources[0]):
        format_name = "test sets in SGML"
    if len(files.sources) > 1:
        format_name += f" in {len(files.sources):,} shards"
    columns = " and ".join(map(str, layout.columns or names))
    return {"format": format_name, "encoding": layout.encoding, "columns": columns}


def _files(folder: Path, part: str, codes: Languages) -> list[Path]:
    """Return the text files of both sides of a part."""
    return [folder / f"{part}.{code}" for code in codes]


def _write(paths: Sequence[Path], pairs: Iterable[Texts]) -> int:
    """Write pairs into two aligned files; return their number."""
    num_pairs = 0
    with (
        paths[0].open("wb") as source_file,
        paths[1].open("wb") as target_file,
        progress_bar(f"writing {paths[0].name}", unit="pairs", leave=False) as bar,
    ):
        for source, target in pairs:
            source_file.write(f"{source}\n".encode())
            target_file.write(f"{target}\n".encode())
            num_pairs += 1
            bar.update()
    return num_pairs


def _read_copy(paths: Sequence[Path]) -> Iterator[Texts]:
    """Yield the pairs that `_write` has written."""
    with (
        paths[0].open(encoding="utf-8", newline="\n") as sources,
        paths[1].open(encoding="utf-8", newline="\n") as targets,
    ):
        for source, target in zip(sources, targets, strict=True):
            yield source.removesuffix("\n"), target.removesuffix("\n")


def _without(pairs: Iterable[Texts], removed: Sequence[set[str]]) -> Iterator[Texts]:
    """Yield the pairs without a source or target that must be removed."""
    removed_sources, removed_targets = removed
    for source, target in pairs:
        if comparable(source) in removed_sources or comparable(target) in removed_targets:
            continue
        yield source, target


def _warn(options: InitOptions, codes: Languages, sets: Mapping[str, Sequence[Texts]]) -> None:
    """Log warnings about suspicious pairs. If the sides look swapped, log the command to type."""
    for part, pairs in sets.items():
        check = CorpusCheck(*codes, pairs)
        prefix = "" if part == _TRAIN else f"`{part}`: "
        for warning in check.warnings():
            logger.warning("%s%s", prefix, warning)
        is_swapped = any(check.swapped())
        for code, lines in zip(codes, zip(*pairs, strict=True), strict=False):
            detected = other_language(lines, code, codes)
            if detected is not None and not is_swapped:
                text = "%sthe text in %s looks like %s: are `languages` right?"
                logger.warning(text, prefix, code, detected)
        if part == _TRAIN and is_swapped:
            places = list(options.places)
            pair = "-".join(codes)
            if len(places) == 2:
                places.reverse()
            else:
                pair = "-".join(reversed(codes))
            folder = options.output or Path("-".join(codes))
            again = shell_command("init", *places, languages=pair, output=folder)
            logger.warning("if the sides are swapped, delete %s and run: %s", folder, again)


def _candidates(
    sample: BlockSample, codes: Languages, size: int, folder: Path, hint: str
) -> list[Texts]:
    """Return the pairs of a sample that are good enough to be held out.

    Raises:
        DataError: The corpus is too small.
    """
    pairs = sample.pairs()
    if not size:
        fix = f"Pass at least {_HELD_OUT_SHARE} pairs. A good model needs tens of thousands.{hint}"
        raise DataError(f"Too few pairs with text on both sides: {len(pairs)}.", fix=fix)
    with TemporaryDirectory(dir=folder) as scratch:
        reasons = reasons_against(pairs, codes, Path(scratch))
    misaligned = [row for row, problems in enumerate(reasons) if "misaligned" in problems]
    if len(misaligned) > _MISALIGNED_SHARE * len(pairs):
        text = "%.0f%% of the pairs are misaligned, the first near pair %d and the last near pair "
        text += "%d: `nmt prepare` names the lines"
        share = len(misaligned) / len(pairs)
        first = sample.number(misaligned[0])
        last = sample.number(misaligned[-1])
        logger.warning(text, 100 * share, first, last)
    return [pair for pair, problems in zip(pairs, reasons, strict=True) if not problems]


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


def _kind_of_machine() -> str:
    from nmt.device.precision import kind_of_machine  # noqa: PLC0415 - loads torch

    return kind_of_machine()


def _write_configs(place: Path, start: Start, scale: Scale, vocab_size: int) -> None:
    """Write the configuration, and for a small corpus one that starts from a pretrained model.

    Raises:
        ConfigError: The configuration is not valid.
    """
    folder = start.config.parent.resolve()
    name = name_of_folder(folder)
    folders = {}  # Keys of the configuration; by default, they follow from the name.
    if name != folder.name:
        for key, parent in (("prepared_dir", "prepared"), ("run_dir", "runs")):
            folders[key] = json.dumps(f"{parent}/{folder.name}", ensure_ascii=False)
    values = {
        "start": start,
        "name": name,
        "folders": folders,
        "scale": scale.sections,
        "vocab_size": vocab_size,
    }
    names = [_CONFIG_NAME]
    if start.suits_pretrained:
        names.append(_PRETRAINED_NAME)
    for file_name in names:
        text = render(f"start.{file_name}.j2", **values)
        (place / file_name).write_text(text, encoding="utf-8", newline="\n")
        load_config(place / file_name)
