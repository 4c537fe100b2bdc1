"""What the places of ``nmt init`` contain: files, archives and folders with parallel text.

Whatever is not certain is an error with the commands to choose from, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, permutations, product
from pathlib import Path

from nmt.config.language_codes import Languages, is_same_language
from nmt.data.checks import CorpusCheck
from nmt.data.corpus import refuse_device
from nmt.data.formats import FORMATS, all_formats, layout_of, sample_of
from nmt.data.formats.file_names import (
    NAMES,
    SOURCE,
    TARGET,
    Part,
    direction_of,
    format_of_name,
    is_set,
    part_of,
    sides_of,
    without_variant,
)
from nmt.data.formats.layout import Layout, UncertainError, Wanted
from nmt.data.formats.pair import ReadOptions, SentencePair
from nmt.errors import DataError, join_words, shell_command
from nmt.files.archive import is_archive_file, is_document, members_of
from nmt.files.encoding import marked_encoding, standard_encoding
from nmt.files.lines import first_bytes, open_binary, plain_name

TEXT = "aligned text files"  # Format in a `Layout`, also of the two sides of a set.
_MOST_SHOWN = 6  # commands or files in a message
_NO_TEXT = NAMES["no_text"]  # What to do, by the suffix of a file.
_SAMPLED_PAIRS = 200  # whose languages are identified
_MARK_BYTES = 4  # Number of first bytes that may be a byte order mark.
_ALIGNED = Layout(TEXT)


@dataclass(frozen=True)
class PartFiles:
    """The files of one part, which are either pairs of files or files with both sides.

    Args:
        layout: Format and encoding. The format of aligned text files is `TEXT`.
        sources: Files with the source, in the order of ``targets``; or files with both sides.
        targets: Files with the target; empty if each file has both sides.
    """

    layout: Layout
    sources: tuple[Path, ...]
    targets: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Places:
    """Parallel text in files, archives and folders. A path may lead into an archive.

    Args:
        languages: Codes of the source and the target language.
        parts: Files of each part; the training part is always there. Several test sets have
            their names in the place of ``test``.
        unused: Why a file is not used, by its path.
    """

    languages: Languages
    parts: Mapping[str, PartFiles]
    unused: Mapping[Path, str]


@dataclass(frozen=True)
class _File:
    """A file in a place.

    Args:
        path: The file; in an archive, the path leads into it.
        name: Path from the place, with the name of the place.
        part: Part that the path from the place tells.
    """

    path: Path
    name: str
    part: Part | None


@dataclass(frozen=True)
class _Corpus:
    """One file with both sides, or one for each side.

    Args:
        files: The file, or source and target.
        languages: Languages that the file or the names tell; None if they do not tell.
        name: What the names of the files share.
        layout: Format of a file with both sides.
    """

    files: tuple[_File, ...]
    languages: Languages | None
    name: str
    layout: Layout = _ALIGNED

    @property
    def paths(self) -> list[Path]:
        """The paths of the files."""
        return [file.path for file in self.files]


@dataclass(frozen=True)
class _Search:
    """What the user has passed, and the files that are not used."""

    places: Sequence[Path]
    wanted: Wanted
    unused: dict[Path, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The places in messages."""
        return join_words(map(str, self.places))

    def command(self, places: Iterable[Path], languages: Iterable[str] | None) -> str:
        """Return the command for other places or languages."""
        columns = ",".join(map(str, self.wanted.columns or ()))
        return shell_command(
            "init",
            *places,
            languages="-".join(languages or ()) or None,
            columns=columns or None,
            format=self.wanted.format,
            encoding=self.wanted.encoding,
        )


def find_places(places: Sequence[Path], wanted: Wanted) -> Places:
    """Find parallel text. Reads the beginnings of files, and the lists of archives.

    Args:
        places: Two files; a file with both sides; an archive; a folder; or shards of both sides.
        wanted: What the user has said about the files.

    Raises:
        ConfigError: The format or the encoding is unknown.
        DataError: A place is missing, damaged, or has no parallel text; or it is not certain which
            files or languages are meant. The message shows the commands to choose from.
    """
    search = _Search(places, wanted)
    files = list(_files_in(search))
    sides = [] if wanted.format else [file for file in files if not _has_suffix_of_format(file)]
    if len(files) == len(sides) == len(places) == 2:
        pairs = _aligned_files(search, *sides)
    else:
        pairs = _pairs_by_name(sides, wanted.languages)
    corpora = list(pairs)
    in_pairs = set(chain.from_iterable(pair.paths for pair in pairs))
    stems = {path.stem for path in in_pairs}
    named_sides = {file for file in sides if any(sides_of(file.name))}
    for file in files:
        if file.path in in_pairs:
            continue
        try:
            if pairs and file in named_sides:
                raise DataError(
                    f"{file.path} is in another language, or lacks its other side.",
                    fix="Pass both sides of each file, or leave it out.",
                )
            corpora.append(_file_with_both_sides(search, file))
        except DataError as error:
            if len(files) == 1 or file.path in places:
                raise
            if file.path.suffix == ".xml" and file.path.stem in stems:
                continue  # where OPUS has the pairs from
            search.unused[file.path] = error.problem.removeprefix(str(file.path)).lstrip(": ")
    if not corpora:
        problem = f"{search.shown}: no parallel text."
        for path, reason in islice(search.unused.items(), _MOST_SHOWN):
            problem += f"\n    {path} {reason}"
        raise DataError(problem, fix="Pass two aligned text files, or a file with both sides.")
    is_ordered = len(files) == len(places)  # by the user
    languages = wanted.languages or _languages(search, corpora, is_ordered)
    for corpus in corpora:
        _check_columns(search, corpus, languages)
    return Places(languages, _parts(search, languages, corpora), search.unused)


def _files_in(search: _Search) -> Iterator[_File]:
    """Yield the files of all places that may be text, also those in archives."""
    for place in search.places:
        place_name = place.absolute().name  # also of the working directory
        if place.is_dir():
            for path in sorted(filter(Path.is_file, place.rglob("*"))):
                yield from _texts_of(search, path, path.relative_to(place), place_name)
            continue
        refuse_device(place)
        if is_archive_file(place):
            yield from _texts_of(search, place, Path(), place_name)
        else:
            open_binary(place).close()  # explains why a file cannot be read
            advice = _NO_TEXT.get(place.suffix.lower())
            if advice:
                raise DataError(f"{place} is not a text file.", fix=advice)
            yield _File(place, str(place), part_of(Path(*place.parts[-2:])))


def _texts_of(search: _Search, path: Path, name: Path, place: str) -> Iterator[_File]:
    """Yield a file, or the files of an archive.

    Args:
        search: Gets the files that are not used.
        path: The file or archive.
        name: Its path from the place.
        place: Name of the place.
    """
    texts = {path: (name, "")}
    if name.suffix.lower() not in _NO_TEXT and is_archive_file(path):
        members = members_of(path)
        texts = {path / each.name: (name / each.name, each.problem) for each in members}
        if len(texts) < len(members):
            raise DataError(
                f"{path} contains several files with the same name.",
                fix="Unpack the archive, and pass the files.",
            )
    for text, (relative, problem) in texts.items():
        if problem:
            search.unused[text] = f"is {problem}"
        elif relative.suffix.lower() in _NO_TEXT:
            search.unused[text] = f"is not a text file. {_NO_TEXT[relative.suffix.lower()]}"
        elif relative.suffix != ".ids" and not is_document(str(relative)):
            yield _File(text, f"{place}/{relative}", part_of(relative))


def _plain(file: _File) -> str:
    name = Path(file.name)
    return str(name.parent / plain_name(name))


def _has_suffix_of_format(file: _File) -> bool:
    return not is_set(file.path) and format_of_name(file.name) is not None


def _aligned_files(search: _Search, source: _File, target: _File) -> list[_Corpus]:
    """Return the corpus of two files that the user has passed as source and target.

    Empty if each of them has both sides.
    """
    if source.path == target.path:
        raise DataError(
            f"SOURCE and TARGET are the same file, {source.path}.",
            fix="Pass a text and a file of translations: `nmt init SOURCE TARGET`.",
        )
    # The languages in both names: where the rest is the same, or else the last ones.
    named: Languages | None = None
    for (code, rest), (other_code, other_rest) in product(
        sides_of(source.name), sides_of(target.name)
    ):
        if _are_languages(code, other_code):
            named = code, other_code
            if rest == other_rest:
                break
    wanted = search.wanted.languages
    if named is None and not is_set(source.path):
        samples = [sample_of(file.path, search.wanted.encoding) for file in (source, target)]
        if any(all(map(each.recognises, samples)) for each in all_formats()):
            return []
    elif named and wanted and _are_same(named, wanted[::-1]):
        problem = f"By their names, {source.path} is {named[0]} and {target.path} is {named[1]}."
        swapped = search.command([target.path, source.path], wanted)
        raise _uncertain(problem, [swapped, search.command(search.places, named)])
    return [_Corpus((source, target), named, "")]


def _pairs_by_name(files: Sequence[_File], wanted: Languages | None) -> list[_Corpus]:
    """Return the pairs of files whose names differ only in the language, or in the side."""
    groups: dict[str, dict[str, list[_File]]] = {}
    for file in files:
        for side, rest in sides_of(file.name):
            groups.setdefault(rest, {}).setdefault(side, []).append(file)
    corpora: dict[frozenset[_File], _Corpus] = {}
    for rest, by_side in groups.items():
        for source, target in permutations(by_side, 2):
            languages = None
            if (source, target) != (SOURCE, TARGET):
                languages = source, target
                is_other = wanted is not None and not _are_same(languages, wanted)
                if is_other or not _are_languages(source, target):
                    continue
            for pair in product(by_side[source], by_side[target]):
                corpora.setdefault(frozenset(pair), _Corpus(pair, languages, rest))
    return list(corpora.values())


def _are_languages(source: str, target: str) -> bool:
    """Whether two sides are different languages."""
    is_side = bool({SOURCE, TARGET} & {source, target})
    return not is_side and not is_same_language(source, target)


def _are_same(languages: Languages, others: Languages) -> bool:
    return all(map(is_same_language, languages, others))


def _file_with_both_sides(search: _Search, file: _File) -> _Corpus:
    """Return the corpus in a file with both sides.

    Raises:
        DataError: The file has no format, or its columns or languages are not certain.
    """
    wanted = search.wanted
    direction = direction_of(file.name)
    try:
        layout = layout_of(file.path, wanted)
    except UncertainError as error:
        if wanted.languages is None and direction is not None:
            choice = replace(search.wanted, languages=direction)
            return _file_with_both_sides(replace(search, wanted=choice), file)
        most_choices = islice(error.choices, _MOST_SHOWN)
        choices = [replace(search, wanted=choice) for choice in most_choices]
        if not choices:
            raise
        commands = [each.command(search.places, each.wanted.languages) for each in choices]
        raise _uncertain(error.problem, commands) from error
    source, target = layout.languages or (None, None)
    languages = (source, target) if source and target else direction
    return _Corpus((file,), wanted.languages or languages, _plain(file), layout=layout)


def _check_columns(search: _Search, corpus: _Corpus, languages: Languages) -> None:
    """Check that columns without names of languages are in the order of the languages.

    Raises:
        DataError: Most texts are in the language of the other column.
    """
    path = corpus.paths[0]
    columns = corpus.layout.columns
    if columns is None or search.wanted.columns or all(corpus.layout.languages or [None]):
        return
    options = ReadOptions(*languages, "skip")
    reader = FORMATS[corpus.layout.format].open(path, corpus.layout, options)
    block = [list(islice(column, _SAMPLED_PAIRS)) for column in reader.columns]
    pairs = [pair[:2] for pair in reader.parse(*block, 1) if isinstance(pair, SentencePair)]
    if not any(CorpusCheck(*languages, pairs).swapped()):
        return
    source, target = columns
    problem = f"{path}: column {source} seems to be {languages[1]}, and {target} {languages[0]}."
    commands = [search.command(search.places, languages[::-1])]
    wanted = replace(search.wanted, columns=(target, source))
    swapped = replace(search, wanted=wanted)
    commands.append(swapped.command(search.places, languages))
    raise _uncertain(problem, commands)


def _languages(search: _Search, corpora: Sequence[_Corpus], is_ordered: bool) -> Languages:
    """Return source and target language.

    Args:
        search: What the user has passed.
        corpora: All corpora.
        is_ordered: Whether the user has passed the files, those with the source first.

    Raises:
        DataError: The files do not tell them, or they differ.
    """
    choices: dict[Languages, None] = {}
    orders = set()
    for corpus in corpora:
        if corpus.languages is None:
            continue
        both_orders = (corpus.languages, corpus.languages[::-1])
        choices |= dict.fromkeys(both_orders)
        direction = direction_of(corpus.files[0].name)
        has_both_sides = len(corpus.files) == 1
        if is_ordered or has_both_sides:
            orders.add(corpus.languages)
        if direction in both_orders and (has_both_sides or not is_ordered):
            orders.add(direction)
    if not choices:
        raise DataError(
            f"{search.shown}: neither the names nor the content of the files tell the languages.",
            fix=f"Add their codes, for example: {search.command(search.places, ('en', 'de'))}",
        )
    if len(orders) == 1 and len(choices) == 2:
        return orders.pop()
    raise _uncertain(
        f"{search.shown}: it is not certain which languages are source and target.",
        [search.command(search.places, choice) for choice in choices],
    )


def _parts(
    search: _Search, languages: Languages, corpora: Sequence[_Corpus]
) -> dict[str, PartFiles]:
    """Return the files of each part. If there is only one part, it is for training.

    Raises:
        DataError: A part has the same text several times, perhaps in several formats; or there is
            no text for training.
    """
    by_part: dict[Part, list[_Corpus]] = {}
    for corpus in corpora:
        by_part.setdefault(corpus.files[0].part or "train", []).append(corpus)
    if len(by_part) == 1:
        by_part = {"train": list(corpora)}
    if "train" not in by_part:
        raise DataError(
            f"{search.shown}: no text for training.",
            fix=f"Its files are for {' and '.join(by_part)}; add others.",
        )
    parts: dict[str, PartFiles] = {}
    for part, each_corpus in by_part.items():
        paths = list(chain.from_iterable(corpus.paths for corpus in each_corpus))
        texts = {without_variant(corpus.name) for corpus in each_corpus}
        layouts = {corpus.layout for corpus in each_corpus}
        if len(set(paths)) < len(paths) or len(texts) < len(each_corpus) or len(layouts) > 1:
            problem = f"Several files can be the {part} set, and may contain the same text."
            wanted = search.wanted.languages
            raise _uncertain(problem, [search.command(each.paths, wanted) for each in each_corpus])
        test_sets = {_set_name(corpus): [corpus] for corpus in each_corpus}
        if part == "test" and len(test_sets) == len(each_corpus) > 1:
            for name, test_set in test_sets.items():
                parts[name] = _part_files(search, languages, test_set)
        else:
            parts[part] = _part_files(search, languages, each_corpus)
    return parts


def _set_name(corpus: _Corpus) -> str:
    """Return a name for a test set, by its path in the place."""
    path = Path(corpus.name)
    folders = path.parent.parts[1:]
    return re.sub(r"\W+", "-", "-".join([*folders, path.stem])).strip("-")


def _part_files(search: _Search, languages: Languages, corpora: Sequence[_Corpus]) -> PartFiles:
    """Return the files of corpora with the same layout, each with the source first."""
    sources = []
    targets = []
    for corpus in corpora:
        paths = corpus.paths
        if corpus.languages == languages[::-1]:
            paths.reverse()
        sources.append(paths[0])
        targets += paths[1:]
    marks = {marked_encoding(first_bytes(path, _MARK_BYTES)) for path in (*sources, *targets)}
    encoding = marks.pop()
    if marks or encoding is None:  # readers find out the encoding of each file
        encoding = search.wanted.encoding
    layout = corpora[0].layout
    if encoding is not None:
        layout = replace(layout, encoding=standard_encoding(encoding))
    return PartFiles(layout, tuple(sources), tuple(targets))


def _uncertain(problem: str, commands: Sequence[str]) -> DataError:
    """Return an error with the commands to choose from."""
    shown = "".join(f"\n    {command}" for command in commands[:_MOST_SHOWN])
    return DataError(problem, fix=f"Choose one of these commands:{shown}")
