"""``nmt distill``: teachers and a text -> a small, fast student.

Sequence-level knowledge distillation (Kim and Rush 2016). The steps are commands of their own::

    text -> translations of the teachers    `augment`, or `_use_translations` of another program
    -> the student                          `fit`
    -> an int8 model                        `export`
    -> a table of teacher and student       `_measure`

Each step resumes after a kill, so the same command continues where it was stopped.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nmt.checkpoint.files import MODEL, adapter_record
from nmt.checkpoint.model_folder import ModelFiles, find_model, recorded_data
from nmt.commands.augment import CORPUS, SETTINGS, augment, check_output_folder
from nmt.commands.config import load_config
from nmt.commands.options import AugmentOptions, CommandResult, user_values
from nmt.commands.train import fit
from nmt.config import loader
from nmt.config.data import CorpusConfig, Direction
from nmt.config.document import BESIDE, dump_document, read_document
from nmt.config.filling import TextSize
from nmt.config.flag import as_overrides
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import is_same_language
from nmt.config.run import name_of_folder
from nmt.data.corpus import check_files, read_corpus
from nmt.data.formats.pair import BadPair, ReadOptions, SentencePair
from nmt.errors import ConfigError, DataError, shell_command
from nmt.extras.distillation.options import DistillOptions
from nmt.files.atomic import file_lock, open_output, remove_folder, write_errors, write_json
from nmt.files.json_file import read_json, sha256_of_file
from nmt.files.lines import open_binary
from nmt.inference.direction import LanguageOptions, Languages
from nmt.inference.engine import Ensemble
from nmt.inference.guard import is_copy
from nmt.inference.translator import Translator
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.metrics.result import System, show_score, text_table
from nmt.metrics.scoring import Resampling, score_systems
from nmt.registry import load_attribute

logger = logging.getLogger(__name__)

# Files and folders in the output folder.
_CONFIG = "config.yaml"
_CORPUS = "corpus"  # Translations of the teachers, or of another program.
_MODEL = "model"  # The exported student.
_REPORT = "report.json"
_DISTILLED = "data.train.0"  # Key of the translations in the configuration of the student.
_EXCHANGE = "nmt.extras.exchange"
# Kasai et al. (2021): the decoder runs once per token, the encoder once per sentence, so layers are
# cheap in the encoder.
_STUDENT = {"model": {"encoder_layers": 6, "decoder_layers": 1}}
_DECODING = {"beam_size": 1}
# Overrides for a student that starts with the weights of the teacher.
_START = ("training.init_differences=[layers]", "model.dropout=0.1")
_TRAINING_KEYS = (
    "max_minutes",
    "r_drop_weight",
    "optimizer",
    "schedule",
    "validate_every",
    "save_every",
)
# Overrides of these keys would contradict the teacher.
_OF_TEACHER = ("model.", "tokenizer.", "training.init_")
_ONE_BY_ONE = 100  # Sentences that are translated one at a time.
_MOST_LEFT_OUT = 0.05  # A larger share of given translations that are left out is a warning.


@dataclass(frozen=True, kw_only=True)
class Row:
    """Size, quality and speed of one system."""

    name: str
    megabytes: float  # Size of the weights, in 10^6 bytes.
    bleu: float
    interval: str  # BLEU with its 95% confidence interval, as text.
    sentences_per_second: float  # The whole test set in one call.
    milliseconds: float  # Median time of one sentence alone.


@dataclass(frozen=True)
class DistillReport(CommandResult):
    """The student, and how it compares with the teacher."""

    model: str  # Folder of the exported student.
    test: str  # Key of the corpus that was translated, such as ``data.test.flickr2016``.
    rows: Sequence[Row]

    def as_text(self) -> str:
        """Return a table and the next command."""
        head = ["", "MB", "BLEU", "sentences/s", "ms for one"]
        cells = [head]
        for row in self.rows:
            megabytes = f"{row.megabytes:,.1f}"
            speed = f"{row.sentences_per_second:,.0f}"
            milliseconds = f"{row.milliseconds:,.1f}"
            cells.append([row.name, megabytes, row.interval, speed, milliseconds])
        command = shell_command("translate", self.model, input="FILE", output="FILE")
        note = f"on {self.test}"
        if self.test.startswith("data.valid"):
            note += ", which also chose the best checkpoint; set `test` for a fair comparison"
        return f"{text_table(cells)}\n{note}\n\nnext: {command}"


def distill(options: DistillOptions) -> DistillReport:
    """Train a student on translations of its teachers; export it, and compare both.

    Raises:
        ConfigError: An option is wrong, CTranslate2 is not installed, or the folder was created
            with different settings.
        CheckpointError: A teacher is missing or damaged.
        DataError: A text cannot be read, or the folder cannot be written.
        StoppedBySignal: A signal stopped the training; the same command continues it.
    """
    output = options.output
    load_attribute(f"{_EXCHANGE}.ctranslate2:import_ctranslate2")()  # fails before the work begins
    teachers = [find_model(folder) for folder in options.teachers]
    direction = _direction(options, teachers)
    student = _student(options, teachers, direction)
    texts = list(filter(None, (options.text, options.references, options.translations)))
    for path in texts:
        open_binary(path).close()  # explains why a file cannot be read
    # What the corpus of the student depends on.
    teacher_settings = {
        "texts": [sha256_of_file(path) for path in texts],
        "beam_size": options.beam_size,
        "models": [model.sha256 for model in teachers],
        "languages": list(direction),
    }
    student_settings = {"student": student, "set": list(options.set_)}
    with write_errors(output, DataError, fix="Choose a writable folder on a disk with free space."):
        fixed_settings = {}
        # Until the teachers translate, all settings may change.
        begun = output / _CORPUS
        if options.translations:
            begun /= CORPUS
        if begun.exists():
            fixed_settings = teacher_settings
        check_output_folder(output, fixed_settings, "distill")
        output.mkdir(parents=True, exist_ok=True)
        with file_lock(output / ".lock", remove=True):
            report = output / _REPORT
            settings = output / SETTINGS
            # The settings of an earlier call; `<=` asks whether they contain those of the student.
            if settings.is_file() and not student_settings.items() <= read_json(settings).items():
                # The student has changed. Measure and export it again; `fit` decides whether its
                # training can continue with these settings.
                report.unlink(missing_ok=True)
                if (output / _MODEL).exists():
                    remove_folder(output / _MODEL)
            write_json(settings, teacher_settings | student_settings)
            if not report.is_file():
                write_json(report, _steps(options, teachers, student, direction))
            document = read_json(report)
    rows = [Row(**row) for row in document["rows"]]
    return DistillReport(str(output / _MODEL), document["test"], rows)


def _steps(
    options: DistillOptions,
    teachers: Sequence[ModelFiles],
    student: Mapping[str, Any],
    direction: Direction,
) -> dict[str, Any]:
    """Translate, train, export and measure; steps that are complete are not repeated.

    Args:
        options: The options of the command.
        teachers: The verified files of ``options.teachers``, in the same order.
        student: The configuration of the student, without overrides.
        direction: The languages to translate.

    Returns:
        The content of the report file: ``test`` and ``rows`` of a `DistillReport`.
    """
    output = options.output
    model = output / _MODEL
    with open_output(output / _CONFIG) as file:
        file.write(dump_document(student).encode())
    computing = user_values(options, "device", "threads")
    defaults = as_overrides(computing, "training.")
    start: Sequence[str] = ()
    if teachers and not options.config and _can_start(teachers[0].config, options.set_):
        start = (*as_overrides({"training.init_from": options.teachers[0]}), *_START)
    # Reports problems before the long work; the size of the corpus is not known yet.
    config = loader.load_config(
        output / _CONFIG,
        (*defaults, *start, *options.set_),  # The user's overrides come last, so they win.
        measure_text=lambda *_: TextSize(0, 0),
    )
    load_attribute(f"{_EXCHANGE}.ctranslate2:CTranslate2Target")().adapt(config.inference)
    corpora = dict(config.data.corpora)
    del corpora[_DISTILLED]  # does not exist yet
    check_files(corpora)
    if options.translations:
        _use_translations(options.text, options.translations, direction, output / _CORPUS)
    else:
        translation = AugmentOptions(
            model=options.teachers,
            text=options.text,
            forward=True,
            output=output / _CORPUS,
            **user_values(options, "references", "from_", "to", "beam_size", "force"),
            **computing,
        )
        augment(translation)
    config = load_config(output / _CONFIG, (*defaults, *options.set_))
    if start:
        # Its new layers are trained with the values that suit a new model and this corpus.
        usual = loader.settings_of(config)
        training = {key: usual["training"][key] for key in _TRAINING_KEYS}
        values = as_overrides(training, "training.")
        values += as_overrides({"batch.max_tokens": usual["batch"]["max_tokens"]})
        config = load_config(output / _CONFIG, (*defaults, *values, *start, *options.set_))
    fit(config)
    if not model.is_dir():
        make: Any = load_attribute(f"{_EXCHANGE}.options:ExportOptions")
        to_int8 = make(model=config.run_dir, output=model, to="ctranslate2", quantization="int8")
        load_attribute(f"{_EXCHANGE}.export:export")(to_int8)
    # The first test set, or the first validation set if there is none.
    sets = config.data.held_out
    first_key = next(iter(sets))
    key = next((key for key in sets if key.startswith("data.test.")), first_key)
    corpus = read_corpus(sets[key], ReadOptions(*direction))
    # Without the lines that cannot be read as a pair.
    pairs = [pair for pair in corpus if isinstance(pair, SentencePair)]
    rows = []
    if teachers:
        first_teacher, *other_teachers = options.teachers
        ensemble = Translator.load(
            first_teacher,
            source_language=direction.source,
            target_language=direction.target,
            ensemble=Ensemble(tuple(other_teachers)),
            **user_values(options, "beam_size"),
            **computing,
        )
        rows.append(_measure("teacher", ensemble, sum(map(_num_bytes, teachers)), pairs))
    if options.device == "mps":  # CTranslate2 cannot use it
        computing["device"] = "cpu"
    num_bytes = (model / "model.bin").stat().st_size
    rows.append(_measure("student", Translator.load(model, **computing), num_bytes, pairs))
    return {"test": key, "rows": [asdict(row) for row in rows]}


def _direction(options: DistillOptions, teachers: Sequence[ModelFiles]) -> Direction:
    """Return the languages to translate.

    Raises:
        ConfigError: The languages of given translations are not known; or the first teacher has
            several languages, and none is chosen.
    """
    if teachers:
        teacher = teachers[0]
        languages = Languages.of(teacher.config)
        chosen = LanguageOptions(options.from_, options.to)
        return languages.choose(teacher.tokenizers, chosen).direction
    if options.from_ is None or options.to is None:
        problem = f"The languages of {options.text} and {options.translations} are not given."
        raise ConfigError(problem, fix="Pass both codes, such as `from` en `to` de.")
    return Direction(options.from_, options.to)


def _use_translations(text: Path, translations: Path, direction: Direction, folder: Path) -> None:
    """Write the corpus of the student from a text and its translations, unless it exists.

    Pairs with a blank side, and pairs whose sides are the same, are left out.

    Raises:
        DataError: A file cannot be read, or the files differ in their numbers of lines.
    """
    if (folder / CORPUS).exists():
        return
    folder.mkdir(exist_ok=True)
    left_out = Counter[str]()
    num_pairs = 0
    corpus = CorpusConfig(source=(text,), target=(translations,))
    with open_output(folder / CORPUS) as file:
        for pair in read_corpus(corpus, ReadOptions(*direction)):
            num_pairs += 1
            if isinstance(pair, BadPair):
                left_out[f"unreadable ({pair.reason})"] += 1
            elif not (pair.source.strip() and pair.target.strip()):
                left_out["blank"] += 1
            elif is_copy(pair.source, pair.target):
                left_out["copies of the source"] += 1
            else:
                sides = [side.replace("\t", " ") for side in (pair.source, pair.target)]
                file.write("{}\t{}\n".format(*sides).encode())
    counts = [f"{count:,} {reason}" for reason, count in left_out.most_common()]
    level = logging.INFO
    if left_out.total() > _MOST_LEFT_OUT * num_pairs:
        level = logging.WARNING
    summary = ", ".join(counts) or "none"
    logger.log(level, "%s: %s translations; left out: %s", translations, f"{num_pairs:,}", summary)


def _student(
    options: DistillOptions, teachers: Sequence[ModelFiles], direction: Direction
) -> dict[str, Any]:
    """Return the configuration of the student.

    Validation and test sets are those of the first teacher in this direction. They are replaced by
    those of the user's configuration, and both by the options ``valid`` and ``test``.

    Raises:
        ConfigError: There is no validation set, and `valid` is not set.
    """
    data: dict[str, Any] = {}
    if teachers:
        data = _sets_of(teachers[0], direction)
    values: Mapping[str, Any] = _STUDENT
    if options.config:
        values = read_document(options.config).values
    data |= values.get("data") or {}  # null is a section without keys
    if options.valid:
        data["valid"] = _corpus(options.valid)
    if options.test:
        data["test"] = {"test": _corpus(options.test)}
    if not data.get("valid"):
        problem = f"The student has no validation set for {direction}."
        if teachers:
            problem = f"{options.teachers[0]} has no validation set for {direction}."
        raise ConfigError(problem, fix="Pass two files: `valid` SOURCE TARGET.")
    distilled = {"name": "distilled", "tsv": f"{BESIDE}{_CORPUS}/{CORPUS}"}
    # The first corpus has the key `_DISTILLED`.
    data["train"] = [distilled, *(data.get("train") or ())]
    return {
        **values,
        "decoding": _DECODING | (values.get("decoding") or {}),
        "name": values.get("name") or name_of_folder(options.output),
        "source_language": direction.source,
        "target_language": direction.target,
        "prepared_dir": f"{BESIDE}prepared",
        "run_dir": f"{BESIDE}run",
        "data": data,
    }


def _sets_of(teacher: ModelFiles, direction: Direction) -> dict[str, Any]:
    """Return the sections ``valid`` and ``test`` of a teacher, with its sets in this direction."""
    teacher_data = recorded_data(teacher.record, teacher.folder)
    # Imported models of older versions have placeholders for their corpora, and the step 0.
    held_out: Mapping[str, CorpusConfig] = {}
    if teacher_data and teacher.step:
        held_out = teacher_data.held_out
    valid = []
    test = {}
    for key, corpus in held_out.items():
        languages = corpus.direction(teacher.config.languages)
        # Both languages are the same. Sets of replay, which have other keys, are left out.
        if all(map(is_same_language, direction, languages)):
            corpus_values = corpus.model_dump(mode="json", exclude_defaults=True)
            if key.startswith("data.valid"):
                valid.append(corpus_values)
            elif key.startswith("data.test."):
                test[key.removeprefix("data.test.")] = corpus_values
    return {"valid": valid, "test": test}


def _corpus(paths: tuple[Path, Path]) -> dict[str, str]:
    """Return the section of a corpus that is a source file and a target file."""
    source, target = paths
    return {"source": str(source), "target": str(target)}


def _can_start(teacher: InferenceConfig, overrides: Sequence[str]) -> bool:
    """Return whether the usual student starts with the weights of the teacher."""
    # What CTranslate2 cannot express, so that the student could not be exported.
    faults = load_attribute(f"{_EXCHANGE}.ctranslate2:not_expressed")(teacher.model)
    # The student then has the same width: wider ones are slow.
    is_small = teacher.model.model_dim <= 512
    contradicts = any(key.startswith(_OF_TEACHER) for key in overrides)
    return is_small and not teacher.language_tags and not faults and not contradicts


def _num_bytes(files: ModelFiles) -> int:
    """Return the size of the weights; those of an adapted model include its base model."""
    size = files.manifest.files[MODEL].size
    base = files.config.base_model
    if base and adapter_record(files.folder / MODEL):
        size += _num_bytes(find_model(base))
    return size


def _measure(
    name: str, translator: Translator, num_bytes: int, test: Sequence[SentencePair]
) -> Row:
    """Translate the test set at once, then some sentences one by one; score the translations."""
    source = [pair.source for pair in test]
    translator.translate(source[:_ONE_BY_ONE])  # the first call is slower
    begin = time.perf_counter()
    results = translator.translate(source)
    seconds = time.perf_counter() - begin
    sentence_seconds = []
    for line in source[:_ONE_BY_ONE]:
        begin = time.perf_counter()
        translator.translate([line])
        sentence_seconds.append(time.perf_counter() - begin)
    references = [pair.target for pair in test]
    language = MetricOptions(target_language=translator.direction.target)
    scorer = MetricScorer("bleu", [references], language)
    texts = [result.text for result in results]
    system = System(name, texts)
    ((scored,), _, _) = score_systems([system], [scorer], baseline=None, resampling=Resampling())
    (score,) = scored.scores
    return Row(
        name=name,
        megabytes=num_bytes / 1e6,
        bleu=score.value,
        interval=show_score(score),
        sentences_per_second=len(source) / seconds,
        milliseconds=1000 * median(sentence_seconds),
    )
