"""Sections of the configuration about corpora, filters, tokenizers and batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    create_model,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from nmt.config.filling import FORMATS, PLACES, with_path
from nmt.config.language_codes import Languages, matching
from nmt.config.model import Pattern
from nmt.config.paths import is_pattern
from nmt.config.section import (
    Binds,
    BindsData,
    BindsRun,
    Count,
    FilePath,
    Free,
    Many,
    Probability,
    Registered,
    Section,
    Share,
)
from nmt.errors import did_you_mean
from nmt.registry import names_of

T = TypeVar("T")
TAG_PATTERN = r"^<[^<>\s]+>$"
_LANGUAGE_TAG = re.compile(r"<2(.+)>|>>(.+)<<")
LANGUAGE_CODE = r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*$"
_CODE_IN_WORDS = {"allowed": "a language code such as de or pt-BR"}
LanguageCode = Annotated[str, Field(pattern=LANGUAGE_CODE, json_schema_extra=_CODE_IN_WORDS)]
LanguageTags = Literal["source", "target", "both"]
ANY_LANGUAGE = "mul"  # code of ISO 639 for multiple languages
# The symbol of a placeholder: the object replacement character of Unicode. The vocabulary of
# a model that has learned to place it contains it.
PLACEHOLDER = "\ufffc"
# The symbols around a target term in a source. The source vocabulary of a model that has learned
# glossaries contains them.
ANNOTATION = "\u27e6", "\u27e7"


def annotation(term: str) -> str:
    """Return a target term as the model reads it in place of the source term."""
    return f"{ANNOTATION[0]} {term}{ANNOTATION[1]}"


class Direction(NamedTuple):
    """The languages of a translation, by their codes."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


class NoiseConfig(Section):
    """Noise that makes the model robust. In each epoch, each kind changes different pairs.

    The vocabulary is learned from text with noise, so after a change of a share, `nmt train`
    prepares the data again.

    Args:
        upper_case: Share of pairs in capitals, on both sides.
        title_case: Share of pairs in title case (Like This), on both sides.
        no_final_punctuation: Share of pairs without final punctuation, on both sides.
        typos: Share of pairs with typos: a fifth of the source words get letters swapped, dropped
            or doubled.
        spacing: Share of pairs with dropped or doubled spaces in the source.
    """

    upper_case: Share = 0.0
    title_case: Share = 0.0
    no_final_punctuation: Share = 0.0
    typos: Share = 0.0
    spacing: Share = 0.0

    @property
    def rates(self) -> dict[str, float]:
        """Kinds of noise with a share above 0."""
        return {name: rate for name, rate in self.model_dump().items() if rate}


def tag_symbol(tag: str, symbols: Iterable[str]) -> str | None:
    """Return the symbol that a tag names: itself, ``<2tag>``, ``<tag>`` or ``>>tag<<``, or None.

    >>> tag_symbol("de", ["<2de>", "<2en>"]), tag_symbol("<bt>", ["<bt>"]), tag_symbol("fr", [])
    ('<2de>', '<bt>', None)
    """
    defined = set(symbols)
    for symbol in (tag, f"<2{tag}>", f"<{tag}>", f">>{tag}<<"):
        if symbol in defined:
            return symbol
    return None


def language_symbol(code: str, symbols: Iterable[str]) -> str | None:
    """Return the tag of a language: as in `tag_symbol`, or the only tag whose code matches.

    >>> language_symbol("ary", ["<2ary_Arab>", "<2en>"]), language_symbol("zh", ["<2zh-TW>"])
    ('<2ary_Arab>', '<2zh-TW>')
    """
    symbols = list(symbols)  # read twice
    exact = tag_symbol(code, symbols)
    if exact is not None:
        return exact
    # Language code -> its tag. All symbols that are not tags of languages are under None.
    tags = {code_of_tag(symbol): symbol for symbol in symbols}
    codes = matching(code, filter(None, tags))
    if len(codes) != 1:  # unknown or ambiguous
        return None
    return tags[codes[0]]


def code_of_tag(symbol: str) -> str | None:
    """Return the language of a tag such as ``<2de>`` or ``>>deu<<``; None for another symbol."""
    match = _LANGUAGE_TAG.fullmatch(symbol)
    if match is None:
        return None
    return match[1] or match[2]


def tagged_languages(
    tags: LanguageTags | None, direction: Languages
) -> tuple[str | None, str | None]:
    """Return the languages whose tags begin the source and the target; None for no tag.

    ``source``: Johnson et al. (2017), section 3. ``both``: Fan et al. (2021), section 3.

    >>> tagged_languages("both", ("en", "de")), tagged_languages("source", ("en", "de"))
    (('en', 'de'), ('de', None))
    """
    source, target = direction
    if tags == "source":
        return target, None
    if tags == "target":
        return None, target
    if tags == "both":
        return source, target
    return None, None


def chosen_tags(tags: LanguageTags | None, directions: Iterable[Languages]) -> LanguageTags | None:
    """Return the place of language tags: ``tags``, or the source if there are several targets.

    >>> chosen_tags(None, [("en", "de"), ("en", "fr")]), chosen_tags(None, [("en", "de")])
    ('source', None)
    """
    targets = {target for _, target in directions}
    if tags is None and len(targets) > 1:
        return "source"
    return tags


_FILES: Any = {
    "allowed": "a path, a pattern such as part*.de, or a list of paths and patterns",
    "default": None,
}
_Files = Annotated[Many[FilePath], Field(json_schema_extra=_FILES)]
_COLUMNS: Any = {"allowed": "a list of two or three numbers from 0, or names"}
_Column = NonNegativeInt | Annotated[str, Field(min_length=1)]
_Columns = Annotated[Many[_Column], Field(min_length=2, max_length=3)]


class CorpusConfig(Section):
    """One parallel corpus, read from exactly one place.

    The place is one of ``source`` + ``target``, ``path``, ``huggingface``, ``sacrebleu`` or
    ``demo``.

    Args:
        name: Name in reports and error messages. Default: derived from the file or data set.
        source_language: Language code of the source. Default: that of the run.
        target_language: Language code of the target. Default: that of the run.
        target_languages: Target languages of a corpus in which each line names its own: as
            ``>>fra<<`` in front of the source, in a third column of ``columns``, or in
            ``language_file``. Each language becomes a corpus whose name ends with its code, and
            which reads the whole text for its lines. With ``target_language``, only that one does.
        source_languages: The same for a corpus in which each line names its source language.
        language_file: File with a language code for each line of ``source`` and ``target``.
        source: Source text, one sentence per line; plain, .gz, .bz2, .xz, or .zst (needs
            backports.zstd). Several files are shards, in natural order.
        target: Target text, aligned line by line with ``source``; shards have the same names apart
            from the language. In a validation or test set, a list of files beside a single source
            has several references. Scores compare with all of them, but the loss only with the
            first.
        path: File with both sides, or its shards. ``-`` is standard input, for one training corpus.
        format: Format of ``path``. Default: the content or the suffix decides.
        columns: Source and target in ``path`` or ``huggingface``: numbers of columns from 0, names
            in the header, or keys. A third may name the language of the line, for
            ``target_languages`` or ``source_languages``. Default: the file decides.
        encoding: Encoding of the files, such as ``latin-1``. Default: UTF-8, or that of the byte
            order mark.
        tsv: The same as ``path`` with the ``format`` tsv.
        csv: The same as ``path`` with the ``format`` csv.
        jsonl: The same as ``path`` with the ``format`` jsonl.
        huggingface: Data set on the Hugging Face Hub (``wmt/wmt14``), or a local .parquet, .csv or
            .json file or folder.
        subset: Configuration of the ``huggingface`` data set, for example ``de-en``.
        split: Split of the ``huggingface`` data set.
        streaming: Stream the ``huggingface`` data set without downloading all of it first.
        sacrebleu: Test set of sacreBLEU, for example ``wmt14/full``.
        demo: Part of the built-in English-German demo corpus.
        weight: How often an epoch reads this corpus: 2 reads it twice, 0.5 reads a random half.
        max_pairs: Maximum number of sentence pairs, read from the start of the corpus.
        tag: Tag to put in front of every source sentence: a domain, ``<bt>``, or a language
            (``<2de>`` or ``de``).
        scores: File with one quality score per line, higher is better, for the filter ``scores``.
    """

    name: str | None = None
    source_language: LanguageCode | None = None
    target_language: LanguageCode | None = None
    target_languages: Many[LanguageCode] = ()
    source_languages: Many[LanguageCode] = ()
    language_file: FilePath | None = None
    source: _Files = ()
    target: _Files = ()
    path: _Files = ()
    format: Annotated[str, Registered("corpus format")] | None = None
    columns: _Columns | None = Field(default=None, json_schema_extra=_COLUMNS)
    encoding: str | None = None
    tsv: FilePath | None = Field(default=None, exclude=True)
    csv: FilePath | None = Field(default=None, exclude=True)
    jsonl: FilePath | None = Field(default=None, exclude=True)
    huggingface: str | None = None
    subset: str | None = None
    split: str = "train"
    streaming: bool = False
    sacrebleu: str | None = None
    demo: Literal["train", "valid", "test"] | None = None
    weight: BindsRun[float] = Field(default=1.0, gt=0, le=100)
    max_pairs: Count | None = None
    tag: str | None = Field(default=None, min_length=1)
    noise: BindsRun[NoiseConfig] = NoiseConfig()
    scores: FilePath | None = None

    @property
    def symbol(self) -> str:
        """The tag as a symbol of a vocabulary; empty without a tag."""
        if self.tag is None:
            return ""
        return self.tag if re.fullmatch(TAG_PATTERN, self.tag) else f"<{self.tag}>"

    def direction(self, default: Languages) -> Direction:
        """Return the languages of the corpus; ``default`` contains those of the run."""
        return Direction(self.source_language or default[0], self.target_language or default[1])

    @property
    def line_languages(self) -> tuple[str, ...]:
        """The languages of one side, if each line names its own; empty otherwise."""
        return self.target_languages or self.source_languages

    @property
    def language_key(self) -> str:
        """The key of the language of this side."""
        return "source_language" if self.source_languages else "target_language"

    @property
    def line_language(self) -> str | None:
        """The one of these languages whose lines are read; None for all lines."""
        return self.source_language if self.source_languages else self.target_language

    @property
    def has_references(self) -> bool:
        """Whether the target is a list of references for a single source."""
        if len(self.source) != 1 or len(self.target) < 2:
            return False
        return not is_pattern(self.source[0])

    @model_validator(mode="before")
    @classmethod
    def _with_path(cls, values: Any) -> Any:
        return with_path(values) if isinstance(values, Mapping) else values

    @field_validator("source", "target", "path", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if value is None:
            return ()
        return (value,) if isinstance(value, str | Path) else value

    @field_serializer("source", "target", "path")
    def _as_written(self, paths: tuple[Path, ...]) -> str | list[str] | None:
        texts = list(map(str, paths))
        return texts if len(texts) > 1 else next(iter(texts), None)

    def _disagreements(self) -> Iterator[str]:
        # The first key is ``source``, which stands for source and target.
        keys = [key for key in PLACES if key != "target"]
        set_keys = [key for key in (*keys, *FORMATS) if getattr(self, key) not in (None, ())]
        if bool(self.source) != bool(self.target):
            yield "source and target must be set together"
        elif len(set_keys) != 1:
            listed = ", ".join(set_keys) or "none"
            single_keys = ", ".join(keys[1:])
            yield f"set exactly one of: source + target, {single_keys} (found: {listed})"
        if self.huggingface is None and (self.subset is not None or self.streaming):
            yield "subset and streaming need huggingface, which is not set"
        if self.format is not None and not self.path:
            yield "format needs path, which is not set"
        if self.columns is not None and not (self.path or self.huggingface):
            yield "columns needs path or huggingface, which are not set"
        if self.encoding is not None and not (self.path or self.source):
            yield "encoding needs path, or source and target, which are not set"
        names_languages = len(self.columns or ()) > 2 or self.language_file
        if names_languages and not self.line_languages:
            yield "a third column and language_file need target_languages or source_languages"
        if self.target_languages and self.source_languages:
            yield "target_languages and source_languages cannot be combined: remove one"
        if self.language_file and not self.source:
            yield "language_file needs source and target, which are not set"
        if self.line_languages and self.scores:
            yield "scores and the languages of lines cannot be combined: remove one"


def _by_language(corpora: Iterable[CorpusConfig]) -> tuple[CorpusConfig, ...]:
    """Return a corpus for each language of the corpora in which each line names its own."""
    split: list[CorpusConfig] = []
    for corpus in corpora:
        if corpus.line_language or not corpus.line_languages:
            split.append(corpus)
            continue
        for code in corpus.line_languages:
            name = f"{corpus.name}-{code}" if corpus.name else None
            split.append(corpus.model_copy(update={corpus.language_key: code, "name": name}))
    return tuple(split)


_Corpora = Annotated[Many[CorpusConfig], AfterValidator(_by_language)]


_STEPS = "steps"  # Key of `StageConfig.until` for a number of updates.
_TEST_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_MIX: dict[str, Any] = {"allowed": "a mapping from training corpora to numbers above 0"}
_UNTIL: dict[str, Any] = {"allowed": "steps or a corpus of the mix, with a number"}


class StageConfig(Section):
    """One stage of a curriculum, with its own mixture of corpora.

    Args:
        mix: Share of the sentence pairs from each corpus, by name. Corpora without a share are not
            read, and ``weight`` is ignored.
        until: End of the stage: after N epochs of a corpus (``{NAME: N}``), or after N updates
            (``{steps: N}``). The last stage may omit ``until``; it runs to the end of training.
    """

    mix: dict[str, PositiveFloat] = Field(min_length=1, json_schema_extra=_MIX)
    until: dict[str, PositiveFloat] | None = Field(default=None, json_schema_extra=_UNTIL)


class _OneOrMany:
    """Marks a list of corpora that can be a single section; `nmt config keys` describes that."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> Any:
        return handler(schema)["items"]

    def _listed(self, value: object, validate: Callable[[Any], Any]) -> Any:
        # Not a union, so that an error in a single section has a path such as data.valid.source.
        if isinstance(value, Mapping | CorpusConfig):
            value = (CorpusConfig.model_validate(value),)
        return validate(value)


_Sets = Annotated[_Corpora, _OneOrMany()]


def _by_key(key: str, corpora: tuple[CorpusConfig, ...]) -> dict[str, CorpusConfig]:
    """Return the corpora of a list by their keys, such as ``data.train.0``."""
    return {f"{key}.{index}": corpus for index, corpus in enumerate(corpora)}


def _sets_by_key(key: str, sets: tuple[CorpusConfig, ...]) -> dict[str, CorpusConfig]:
    """Return validation sets by their keys; a single set has the key of the list itself."""
    if len(sets) == 1:
        return {key: sets[0]}
    return _by_key(key, sets)


class ReplayConfig(Section):
    """General sentence pairs that are mixed in, so that a model forgets less in a new domain.

    The default is null: no replay. Cannot be combined with ``stages`` or ``temperature``.

    Args:
        share: Share of the sentence pairs of an epoch that come from ``train`` of this section. The
            epoch reads the other corpora as often as without this section.
        train: Corpora of general sentence pairs, mixed by ``weight``.
        valid: Validation set of the general domain, or a list of sets. It is reported, but does not
            select the best checkpoint.
    """

    share: BindsRun[float] = Field(default=0.2, gt=0, lt=1)
    train: _Corpora = Field(min_length=1)
    valid: _Sets = ()


class PlaceholderConfig(Section):
    """Placeholders, which the model can learn to place: addresses, ``{name}``, ``%s``, emoji.

    In training pairs that have the same placeholders on both sides, in the same order, U+FFFC
    replaces each of them. Its subword is in the vocabulary, and translating uses it, too.

    Args:
        share: Share of these pairs in which placeholders are replaced. 0 changes nothing:
            translating then takes placeholders out of the text and inserts them by alignment.
        patterns: Regular expressions (Python) of further placeholders. They are also the default of
            ``decoding.protect``.
    """

    share: Share = 0.0
    patterns: Many[Pattern] = ()


class GlossaryConfig(Section):
    """Terms that the model learns to use: it reads them in place of words of the source.

    In each epoch, other words of the target sentence replace the source words that are aligned to
    them, between two symbols of the vocabulary. Translating with a glossary shows its terms in the
    same way. Both languages need spaces between words.

    Args:
        share: Share of the pairs in which terms are shown. 0 changes nothing: translating with a
            glossary then replaces the words that are aligned to a term.
    """

    share: Share = 0.0


class DataConfig(Section):
    """Parallel corpora for training, validation and testing.

    Args:
        train: Training corpora. Each epoch reads all of them, each as often as its ``weight`` says.
        valid: Validation set, or a list of sets, such as one for each pair of languages. They
            select the best checkpoint.
        test: Test sets by name, for ``nmt evaluate MODEL -t NAME``.
        temperature: Corpora are sampled in proportion to (pairs x weight)^(1 / temperature). 1
            keeps the proportions, 5 makes them nearly equal.
        stages: Curriculum: mixtures of the corpora, used one after the other.
        language_tags: Language tags such as ``<2de>``, added by `nmt`. ``source``: the tag of the
            target language, in front of the source. ``target``: this tag, in front of the target.
            ``both``: the tag of each language, in front of its side. null: ``source`` if the
            training corpora have several target languages.
        max_sentences: Most sentences of a line that the model translates as a whole; longer lines
            are split. null: the number that 90% of the training lines do not exceed, which ``nmt
            prepare`` counts.
        max_characters: Most characters of a line of several sentences that the model translates as
            a whole. null: the length that 99% of the training lines do not exceed, if it is known.
    """

    train: BindsData[_Corpora] = Field(min_length=1)
    valid: BindsData[_Sets]
    test: Free[dict[str, CorpusConfig]] = Field(default={})
    temperature: BindsRun[float] = Field(default=1.0, ge=0.1, le=100)
    stages: BindsRun[Many[StageConfig]] = ()
    language_tags: Annotated[LanguageTags | None, Binds("data", "run")] = None
    replay: BindsData[ReplayConfig | None] = None
    max_sentences: Free[Count | None] = None
    max_characters: Free[Count | None] = None
    placeholders: BindsData[PlaceholderConfig] = PlaceholderConfig()
    glossary: Annotated[GlossaryConfig, Binds("data", "run")] = GlossaryConfig()

    @property
    def training(self) -> tuple[CorpusConfig, ...]:
        """All training corpora, in the order of the token store: ``train``, then replay."""
        if self.replay is None:
            return self.train
        return self.train + self.replay.train

    @property
    def validation(self) -> tuple[CorpusConfig, ...]:
        """All validation sets, in the order of the token store: ``valid``, then replay."""
        if self.replay is None:
            return self.valid
        return self.valid + self.replay.valid

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """All corpora by their keys in a configuration, for example ``data.train.0``."""
        corpora = _by_key("data.train", self.train)
        if self.replay:
            corpora |= _by_key("data.replay.train", self.replay.train)
        return corpora | self.held_out

    @property
    def held_out(self) -> dict[str, CorpusConfig]:
        """Validation and test sets by their keys in a configuration."""
        sets = _sets_by_key("data.valid", self.valid)
        if self.replay:
            sets |= _sets_by_key("data.replay.valid", self.replay.valid)
        for name, corpus in self.test.items():
            sets[f"data.test.{name}"] = corpus
        return sets

    def _disagreements(self) -> Iterator[str]:
        yield from self._wrong_stages()
        if not self.valid:
            yield "valid needs at least one validation set"
        for corpus in self.validation:
            if corpus.name in self.test:
                yield f"valid and test both have a set named {corpus.name}"
        for index, corpus in enumerate(self.train):
            if corpus.has_references:
                source = corpus.source[0]
                example = f"{{source: {source}, target: {corpus.target[0]}}}"
                yield (
                    f"train.{index} has {len(corpus.target)} targets for one source, which only "
                    f"validation and test sets can have: make each a corpus, such as {example}"
                )
        for key, corpus in self.held_out.items():
            # Such as ``valid.0`` or, for a test set, its name.
            name = key.removeprefix("data.").removeprefix("test.")
            if corpus.noise.rates:
                yield f"{name} has a noise section, which only training corpora can have"
            if corpus.scores:
                yield f"{name} has scores, which only training corpora can have"

    def _wrong_stages(self) -> Iterator[str]:
        names = [corpus.name for corpus in self.train if corpus.name is not None]
        if self.stages and self.temperature != 1:
            yield "temperature and stages cannot be combined: remove one"
        if self.replay and (self.stages or self.temperature != 1):
            setting = "stages" if self.stages else "temperature"
            yield f"replay and {setting} cannot be combined: remove one"
        if self.stages and len(set(names)) < len(names):
            yield "stages need training corpora with different names"
        for index, stage in enumerate(self.stages):
            key = f"stages.{index}"
            until = stage.until or {}
            for name in stage.mix:
                # In ``until``, the word steps means updates, so no corpus of a mix has this name.
                if name not in names or name == _STEPS:
                    listed = ", ".join(names) or "no corpus has a name"
                    hint = did_you_mean(name, names)
                    yield f"{key}.mix: no training corpus is named {name} (names: {listed}).{hint}"
            is_last = index == len(self.stages) - 1
            # Only the last stage may omit ``until``.
            if len(until) > 1 or not (until or is_last):
                yield f"{key}.until: set exactly one of steps, or a corpus of the mix"
            for unit in until:
                if unit in (*stage.mix, _STEPS):
                    continue
                if unit == "score":
                    yield f"{key}.until: stages can no longer end at a score; use steps"
                else:
                    yield f"{key}.until: {unit} is not steps or a corpus of the mix"
            if until.get(_STEPS, 1) % 1:  # has a fraction
                yield f"{key}.until: steps must be a whole number"

    @field_validator("test")
    @classmethod
    def _plain_names(cls, value: dict[str, CorpusConfig]) -> dict[str, CorpusConfig]:
        invalid = [repr(name) for name in value if not re.fullmatch(_TEST_NAME, name)]
        if invalid:
            words = "letters, digits, hyphens and underscores"
            raise ValueError(f"{', '.join(invalid)} is not a valid name of a test set; use {words}")
        sets = {}
        for name, corpus in value.items():
            for part in _by_language([corpus]):
                sets[name if part is corpus else f"{name}-{part.line_language}"] = part
        return sets


def _off(value: object) -> object:
    return "off" if value is False else value  # YAML 1.1 reads an unquoted off as false


Action = Annotated[Literal["drop", "report", "off"], BeforeValidator(_off)]


class Rule(Section):
    """The action and the limit of a filter.

    Args:
        action: ``drop`` the pair, ``report`` it and keep it, or turn the filter ``off``.
        limit: Limit beyond which the filter acts on a pair. Each filter has a different default.
    """

    action: Action = "report"
    limit: int | float | None = Field(default=None, json_schema_extra={"allowed": "a number"})

    @property
    def bound(self) -> float:
        """``limit``, or minus infinity if it is None."""
        return -inf if self.limit is None else self.limit


@dataclass(frozen=True)
class _Limit:
    """Marks a filter with a limit, and checks it: ``Annotated[Rule, _Limit(0.5, 0, 1)]``.

    An action alone is a rule with the default limit: ``script: drop``.
    """

    default: float | None
    low: float = -inf
    high: float = inf

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Fill in the default limit before the checks of a rule, and check the limit after them."""
        return core_schema.no_info_wrap_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """Describe both forms of a rule: an action alone, and an action with a limit."""
        rule = "{action: report, limit: X}"
        if self.default is not None:
            rule = f"{{action: report, limit: {self.default:g}}} with a limit {self._bounds}"
        forms = [{"enum": ["drop", "report", "off"]}, handler(schema)]
        return {"anyOf": forms, "allowed": f"drop, report, off, or {rule}"}

    @property
    def _bounds(self) -> str:
        """The allowed limits in words: "of at most 0", "of at least 2" or "from 0 to 1"."""
        if self.low == -inf:
            return f"of at most {self.high:g}"
        if self.high == inf:
            return f"of at least {self.low:g}"
        return f"from {self.low:g} to {self.high:g}"

    def _checked(self, value: Any, validate: Callable[[Any], Rule]) -> Rule:
        """Return the rule of a value: a `Rule`, a mapping of its fields, or an action alone."""
        if isinstance(value, Rule):
            value = value.model_dump(exclude_unset=True)
        fields = dict(value) if isinstance(value, Mapping) else {"action": value}
        if fields.get("limit") is None:
            fields["limit"] = self.default
        rule = validate(fields)
        if rule.limit is not None and not self.low <= rule.limit <= self.high:
            bounds = self._bounds.removeprefix("of ")
            raise ValueError(f"limit is {rule.limit}; it must be {bounds}")
        return rule


class LanguageRule(Rule):
    """The action, the limit and the model of the filter ``language``.

    Args:
        action: ``drop`` the pair, ``report`` it and keep it, or turn the filter ``off``.
        limit: How many times more likely than the expected language another language must be.
        model: fastText model that identifies languages, such as lid.176.ftz, instead of py3langid.
            Needs the extra ``clean``.
    """

    model: FilePath | None = None


_Value = bool | int | float | str
_REPORT: Any = "report"  # Of a `Rule`, which is validated.


class FilterConfig(Section):
    """Filters of training pairs.

    Each filter drops the pairs that it finds, reports and keeps them, or is off. Ten reasons
    always drop a pair: ``blank``, ``untranslated`` (or unfinished, or obsolete, in TMX, XLIFF or
    PO), ``bad_utf8``, ``nul``, ``columns``, ``syntax``, ``language_code`` (the line names no
    language of ``target_languages``), ``characters`` (above ``max_characters``), ``length``, and
    ``bytes`` (above ``max_length`` only because the vocabulary spells characters of the pair in
    bytes, each of which the model reads).

    Args:
        max_length: Maximum length of either side, in subwords. For the reason ``length``, three
            characters that are spelled in bytes count as one subword.
        min_length: Minimum length of either side, in subwords, counted in the same way.
        max_length_ratio: Maximum ratio of the two lengths in subwords, counted in the same way,
            after 3 is added to both.
        max_characters: Maximum length of either side, in characters.
        length: A side is longer than ``max_length`` or shorter than ``min_length``.
        ratio: The lengths of the sides differ too much (``max_length_ratio``).
        copy_of_source: The target repeats the source. Limit: share of the target's words that also
            occur in the source, for targets of 5 words or more.
        duplicate: The pair is identical to an earlier pair.
        normalized_duplicate: Only case, punctuation or spaces differ from an earlier pair.
        near_duplicate: Only a few words of a long pair differ from an earlier pair. Limit: share of
            words that both pairs have (Jaccard index), for pairs of 16 words or more.
        held_out: The pair shares a sentence, exactly or nearly, with a validation or test set of
            the configuration. Either side is the same apart from spaces, or the source differs in
            one or two words or contains the sentence. ``drop`` downloads test sets of sacreBLEU and
            hubs.
        script: A side is not in the script of its language. Limit: share of a side's letters in a
            different script.
        language: A side is in an unexpected language (found by py3langid, or by ``model``). Limit:
            how many times more likely than the expected language this language must be.
        swapped: Source and target are swapped.
        mojibake: A side was decoded with the wrong encoding (found by ftfy). Needs the extra
            ``clean``.
        control: The text contains invisible characters, such as control characters.
        markup: The text contains tags or entities of HTML, XML, wikis or subtitles.
        numbers: A number is missing or different on one side.
        url: The text is mostly web or mail addresses. Limit: share of a side's characters that are
            in addresses.
        punctuation: The text is mostly punctuation or symbols. Limit: share of a side's characters
            that are punctuation or symbols.
        repetition: The text repeats the same words. Limit: share of a side's words that repeat the
            words directly before them.
        boilerplate: Many different sources have the same target. Limit: number of different
            sources.
        lexical: The words do not translate each other, according to a lexicon of the corpus. Limit:
            lowest allowed score, in standard deviations from the mean. Needs 200 lines or more.
        misaligned: The pair is in a range of shifted or unrelated lines. Slow, like ``lexical``.
        scores: The pair has a low score in the ``scores`` file of the corpus. Limit: lowest allowed
            score; no default.
        dual_cross_entropy: Two models find the pair unlikely, or disagree about it (Junczys-Dowmunt
            2018). Limit: lowest allowed score, from 0 to 1. Needs ``score_with`` of ``nmt
            prepare``.
        extra: Custom filters: registered name and parameters of each filter.
        on_bad_utf8: Stop at bytes that are not text in the encoding of the file, or drop the pair
            and count it.
        on_bad_row: Stop if more than 1% of the pairs of a corpus have NUL characters (``nul``),
            have too few or too many columns (``columns``), cannot be parsed (``syntax``) or name no
            language of the corpus (``language_code``), or drop and count any number of them.
    """

    max_length: int = Field(default=256, ge=1, le=65_535)
    min_length: Count = 1
    max_length_ratio: float = Field(default=4.0, ge=1.0)
    max_characters: Count = 10_000
    length: Literal["drop"] = "drop"
    ratio: Action = "drop"
    copy_of_source: Annotated[Rule, _Limit(0.8, 0, 1)] = _REPORT
    duplicate: Action = "report"
    normalized_duplicate: Action = "report"
    near_duplicate: Annotated[Rule, _Limit(0.87, 0.5, 1)] = _REPORT
    held_out: Action = "report"
    script: Annotated[Rule, _Limit(0.5, 0, 1)] = _REPORT
    language: Annotated[LanguageRule, _Limit(5.0, 1)] = _REPORT
    swapped: Action = "report"
    mojibake: Action = "report"
    control: Action = "report"
    markup: Action = "report"
    numbers: Action = "report"
    url: Annotated[Rule, _Limit(0.4, 0, 1)] = _REPORT
    punctuation: Annotated[Rule, _Limit(0.5, 0, 1)] = _REPORT
    repetition: Annotated[Rule, _Limit(0.15, 0, 1)] = _REPORT
    boilerplate: Annotated[Rule, _Limit(10, 2)] = _REPORT
    lexical: Annotated[Rule, _Limit(-3.5, high=0)] = _REPORT
    misaligned: Action = "report"
    scores: Annotated[Rule, _Limit(None)] = _REPORT
    dual_cross_entropy: Annotated[Rule, _Limit(0.01, 0, 1)] = _REPORT
    extra: dict[str, dict[str, _Value | list[_Value]]] = Field(default={})
    on_bad_utf8: Literal["error", "skip"] = "error"
    on_bad_row: Literal["error", "skip"] = "error"

    def rule(self, reason: str) -> Rule:
        """Return the action, and the limit if it has one, of a reason."""
        setting = getattr(self, reason)
        return setting if isinstance(setting, Rule) else Rule(action=setting)

    def _disagreements(self) -> Iterator[str]:
        names = names_of("filter of filters.extra")
        for name in self.extra:
            if name not in names:
                yield f"extra.{name} is not a registered filter.{did_you_mean(name, names)}"


_VocabSize = Annotated[int, Field(ge=5, le=1 << 20)]
_Symbol = Annotated[str, Field(pattern=r"^[^\s\u2581]+$")]
_RESERVED = re.compile("<(pad|unk|s|/s|0x[0-9A-F]{2})>")
_SYMBOLS_IN_WORDS: dict[str, Any] = {"allowed": "a list of texts, each without white space"}
_FROM: Any = "from"
_NumUnused = Annotated[int, Field(ge=0, le=1 << 20)]
_OR_SIDES = ", or one for each side: {source: ..., target: ...}"


def _both_sides(value: T | Mapping[Literal["source", "target"], T]) -> tuple[T, T]:
    """Return the values of source and target; a single value is that of both."""
    if isinstance(value, Mapping):
        return value["source"], value["target"]
    return value, value


# `from` is a keyword of Python, so no class can define a field of this name in its body.
_ModelFiles = FilePath | dict[Literal["source", "target"], FilePath] | None
_FIELDS: Any = {_FROM: (_ModelFiles, None)}
_WithModels: Any = create_model("_WithModels", __base__=Section, **_FIELDS)


class TokenizerConfig(_WithModels):  # type: ignore[misc]
    """The SentencePiece tokenizers.

    Args:
        from: File of an existing SentencePiece model to use instead of a new one; with ``joint:
            false``, one for each side. The other keys of this section then have no effect.
        kind: Units of text: subwords (``bpe`` or ``unigram``), words between spaces, or characters.
        vocab_size: Vocabulary size, including four special tokens. With ``joint: false``, you can
            set one size per side.
        pad_vocab_by: Number of padding subwords in the vocabulary; no text contains them.
        joint: Share one vocabulary between both languages; false trains two.
        byte_fallback: Encode unseen characters as bytes instead of losing them. Bytes use 256 of
            ``vocab_size``.
        character_coverage: Share of each language's characters that the vocabulary contains, as far
            as they fill at most half of it.
        normalization: Unicode normalization of SentencePiece, for both languages. ``identity``
            changes nothing, so that the model can write every text. All others change characters,
            such as a Chinese comma, that the model then cannot write; ``_cf`` also lower-cases.
        user_defined_symbols: Symbols that are never split, such as the tag ``<2de>`` or the
            placeholder ``__URL__``; in both vocabularies, without white space.
        sample_sentences: Maximum number of sentences to learn the vocabulary from, drawn at random.
    """

    kind: Literal["bpe", "unigram", "word", "char"] = "bpe"
    vocab_size: _VocabSize | dict[Literal["source", "target"], _VocabSize] = Field(
        default=8000, json_schema_extra={"allowed": f"a whole number from 5 to 1048576{_OR_SIDES}"}
    )
    pad_vocab_by: _NumUnused | dict[Literal["source", "target"], _NumUnused] = Field(
        default=0, json_schema_extra={"allowed": f"a whole number, at least 0{_OR_SIDES}"}
    )
    joint: bool = True
    byte_fallback: bool = True
    character_coverage: float = Field(default=0.9995, ge=0.98, le=1.0)
    normalization: Literal["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"] = "identity"
    user_defined_symbols: Many[_Symbol] = Field(default=(), json_schema_extra=_SYMBOLS_IN_WORDS)
    sample_sentences: int = Field(default=2_000_000, ge=1000)

    @property
    def models(self) -> tuple[Path, Path] | None:
        """Files of the existing models of both sides; None to learn new ones."""
        files = getattr(self, _FROM)
        if files is None:
            return None
        return _both_sides(files)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Sizes of the source and the target vocabulary."""
        return _both_sides(self.vocab_size)

    @property
    def unused(self) -> tuple[int, int]:
        """Unused entries (`pad_vocab_by`) of the source and the target vocabulary."""
        return _both_sides(self.pad_vocab_by)

    @property
    def min_vocab_size(self) -> int:
        """Smallest possible vocabulary size of this kind."""
        if not self.byte_fallback:
            return 5  # four special tokens and one unit of text
        # Also 256 bytes. The minimum for subwords is round, and leaves room for some of them.
        return 261 if self.kind in ("word", "char") else 300

    def _disagreements(self) -> Iterator[str]:
        for key in ("vocab_size", "pad_vocab_by", _FROM):
            value = getattr(self, key)
            # A joint vocabulary needs one value, two vocabularies need the values of both sides.
            if isinstance(value, dict) and (len(value) < 2 or self.joint):
                fix = "give both values"
                if self.joint:
                    fix = "set joint to false, or give one value"
                yield f"{key} has a value for each side: {fix}"
                return  # The checks below need the values of both sides.
        for symbol in self.user_defined_symbols:
            if _RESERVED.fullmatch(symbol):
                yield f"user_defined_symbols: every vocabulary has {symbol} already; leave it out"
        smaller = min(self.vocab_sizes)
        minimum = self.min_vocab_size
        if smaller < minimum:
            # Only with byte_fallback: without it, every size that the field allows is enough.
            fix = f"raise it to {minimum} or more, or set byte_fallback to false"
            yield f"vocab_size is {smaller}, but byte_fallback alone uses 256 subwords: {fix}"
        for size, num_unused in zip(self.vocab_sizes, self.unused, strict=True):
            # Large enough as a whole, but too small without the padding subwords.
            if num_unused and size >= minimum > size - num_unused:
                yield f"pad_vocab_by must be at most {size - minimum} for vocab_size {size}"


class BatchConfig(Section):
    """How to group sentence pairs into batches.

    Args:
        max_tokens: Maximum source and target tokens per batch, without padding. ``auto`` fills the
            memory; null limits sentences only. fairseq's ``max_tokens`` counts one padded side.
        max_sentences: Maximum sentence pairs per batch.
        tokens_per_update: Source and target tokens per update, over all processes; only with
            ``max_tokens: auto``.
        length_noise: Noise added to lengths when pairs are sorted into batches, as a share of the
            length; higher means more padding.
        gradient_accumulation: Number of batches per update; their gradients are summed.
        bpe_dropout: Probability of skipping a BPE merge, drawn in each epoch. 0.1 is usual and
            makes batches a fifth longer.
    """

    max_tokens: Annotated[int, Field(ge=16)] | Literal["auto"] | None = 4096
    max_sentences: Count | None = None
    tokens_per_update: int | None = Field(default=None, ge=16)
    length_noise: Share = 0.1
    gradient_accumulation: Count = 1
    bpe_dropout: Probability = 0.0

    def _disagreements(self) -> Iterator[str]:
        if self.max_tokens is None and self.max_sentences is None:
            yield "max_tokens null needs max_sentences, such as 128"
        if self.max_tokens == "auto":
            if self.max_sentences is not None:
                yield "max_tokens auto cannot be combined with max_sentences: remove one"
            if self.tokens_per_update is None:
                yield "max_tokens auto needs tokens_per_update, such as 16384"
            if self.gradient_accumulation != 1:
                yield "max_tokens auto chooses gradient_accumulation: remove it"
        elif self.tokens_per_update is not None:
            yield "tokens_per_update works only with max_tokens auto; use gradient_accumulation"
