"""``nmt distill``: teachers and a text -> a small, fast student.

Sequence-level knowledge distillation (Kim and Rush 2016). The steps are commands of their own::

    text -> translations of the teachers    `augment`
    -> the student                          `fit`
    -> an int8 model with a shortlist       `export`
    -> a table of teacher and student       `_measure`

Each step resumes after a kill, so the same command continues where it was stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nmt.checkpoint.files import MODEL, adapter_record
from nmt.checkpoint.model_folder import ModelFiles, find_model, recorded_data
from nmt.commands.augment import CORPUS, SETTINGS, augment, check_ours
from nmt.commands.config import load_config
from nmt.commands.options import AugmentOptions, given
from nmt.commands.train import fit
from nmt.config import loader
from nmt.config.data import CorpusConfig, Direction
from nmt.config.document import BESIDE, dump_document, read_document
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import is_same_language
from nmt.config.run import name_of_folder
from nmt.data.corpus import check_files, read_corpus
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.errors import ConfigError, DataError, shell_command
from nmt.extras.distillation.options import DistillOptions
from nmt.files.atomic import file_lock, open_output, remove_folder, write_errors, write_json
from nmt.files.json_file import read_json, sha256_of_file
from nmt.files.lines import open_binary
from nmt.inference.direction import LanguageOptions, Languages
from nmt.inference.engine import Ensemble
from nmt.inference.translator import Translator
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.metrics.result import System, show_score, text_table
from nmt.metrics.scoring import Resampling, score_systems
from nmt.registry import load_attribute

_CONFIG = "config.yaml"
_CORPUS = "corpus"
_MODEL = "model"
_REPORT = "report.json"
_DISTILLED = "data.train.0"
_EXCHANGE = "nmt.extras.exchange"
# Kasai et al. (2021): the decoder runs once per token, the encoder once per sentence, so layers are
# cheap in the encoder.
_STUDENT = {"model": {"encoder_layers": 6, "decoder_layers": 1}}
_DECODING = {"beam_size": 1, "shortlist": True}
_START = ("training.init_differences=[layers]", "model.dropout=0.1")
# Overrides of these keys would contradict the teacher.
_OF_TEACHER = ("model.", "tokenizer.", "training.init_")
_ONE_BY_ONE = 100  # Sentences that are translated one at a time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Size, quality and speed of one system."""

    name: str
    megabytes: float  # Size of the weights, in 10^6 bytes.
    bleu: float
    interval: str  # BLEU with its 95% confidence interval, as text.
    sentences_per_second: float  # The whole test set in one call.
    milliseconds: float  # Median time of one sentence alone.


@dataclass(frozen=True, slots=True)
class DistillReport:
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
        sets = f"on {self.test}"
        if self.test.startswith("data.valid"):
            sets += ", which also chose the best checkpoint; set `test` for a fair comparison"
        return f"{text_table(cells)}\n{sets}\n\nnext: {command}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


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
    files = [find_model(folder) for folder in options.teachers]
    chosen = LanguageOptions(options.from_, options.to)
    teacher = files[0]
    languages = Languages.of(teacher.config)
    direction = languages.choose(teacher.tokenizers, chosen).direction
    student = _student(options, teacher, direction)
    texts = [options.text]
    if options.references is not None:
        texts.append(options.references)
    for path in texts:
        open_binary(path).close()  # explains why a file cannot be read
    teaching = {
        "texts": [sha256_of_file(path) for path in texts],
        "beam_size": options.beam_size,
        "models": [each.sha256 for each in files],
        "languages": list(direction),
    }
    learning = {"student": student, "set": list(options.set_)}
    with write_errors(output, DataError, fix="Choose a writable folder on a disk with free space."):
        fixed = {}
        if (output / _CORPUS).exists():  # until the teachers translate, all settings may change
            fixed = teaching
        check_ours(output, fixed, "distill")
        output.mkdir(parents=True, exist_ok=True)
        with file_lock(output / ".lock", remove=True):
            report = output / _REPORT
            settings = output / SETTINGS
            if settings.is_file() and not learning.items() <= read_json(settings).items():
                # `fit` decides whether the same student can continue with these settings.
                report.unlink(missing_ok=True)
                if (output / _MODEL).exists():
                    remove_folder(output / _MODEL)
            write_json(settings, teaching | learning)
            if not report.is_file():
                write_json(report, _steps(options, files, student, direction))
            document = read_json(report)
    rows = [Row(**row) for row in document["rows"]]
    return DistillReport(str(output / _MODEL), document["test"], rows)


def _steps(
    options: DistillOptions,
    files: Sequence[ModelFiles],
    student: Mapping[str, Any],
    direction: Direction,
) -> dict[str, Any]:
    """Translate, train, export and measure; steps that are complete are not repeated."""
    output = options.output
    model = output / _MODEL
    teacher, *others = options.teachers
    with open_output(output / _CONFIG) as file:
        file.write(dump_document(student).encode())
    threads = given(options, "threads")
    own = [f"training.{name}={value}" for name, value in threads.items()]
    if not options.config and _can_start(files[0].config, options.set_):
        own += [f"training.init_from={json.dumps(str(teacher))}", *_START]
    overrides = (*own, *options.set_)
    # Reports problems before the long work; the size of the corpus is not known yet.
    config = loader.load_config(output / _CONFIG, overrides, count_characters=lambda *_: 0)
    load_attribute(f"{_EXCHANGE}.ctranslate2:CTranslate2Target")().adapt(config.inference)
    corpora = dict(config.data.corpora)
    del corpora[_DISTILLED]
    check_files(corpora)
    translation = AugmentOptions(
        model=options.teachers,
        text=options.text,
        forward=True,
        output=output / _CORPUS,
        **given(options, "references", "from_", "to", "beam_size", "threads"),
    )
    augment(translation)
    config = load_config(output / _CONFIG, overrides)  # may count the characters of the corpus
    fit(config)
    if not model.is_dir():
        make: Any = load_attribute(f"{_EXCHANGE}.options:ExportOptions")
        to_int8 = make(model=config.run_dir, output=model, to="ctranslate2", quantization="int8")
        load_attribute(f"{_EXCHANGE}.export:export")(to_int8)
    # The first test set, or the validation set if there is none.
    sets = config.data.held_out
    first = next(iter(sets))
    key = next((name for name in sets if name.startswith("data.test.")), first)
    corpus = read_corpus(sets[key], ReadOptions(*direction))
    pairs = [pair for pair in corpus if isinstance(pair, SentencePair)]
    ensemble = Translator.load(
        teacher,
        source_language=direction.source,
        target_language=direction.target,
        ensemble=Ensemble(tuple(others)),
        **given(options, "beam_size", "threads"),
    )
    size = sum(map(_num_bytes, files))
    exported = model / "model.bin"
    exported_size = exported.stat().st_size
    rows = [
        _measure("teacher", ensemble, size, pairs),
        _measure("student", Translator.load(model, **threads), exported_size, pairs),
    ]
    return {"test": key, "rows": [asdict(row) for row in rows]}


def _student(options: DistillOptions, teacher: ModelFiles, direction: Direction) -> dict[str, Any]:
    """Return the configuration of the student.

    Raises:
        ConfigError: The teacher has no validation set, and `valid` is not set.
    """
    of_teacher = recorded_data(teacher.record, teacher.folder)
    # Imported models of older versions have placeholders for their corpora, and the step 0.
    held_out: Mapping[str, CorpusConfig] = {}
    if of_teacher and teacher.step:
        held_out = of_teacher.held_out
    valid = []
    test = {}
    for key, corpus in held_out.items():
        languages = corpus.direction(teacher.config.languages)
        if all(map(is_same_language, direction, languages)):
            corpus_values = corpus.model_dump(mode="json", exclude_defaults=True)
            if key.startswith("data.valid"):
                valid.append(corpus_values)
            elif key.startswith("data.test."):
                test[key.removeprefix("data.test.")] = corpus_values
    data: dict[str, Any] = {"valid": valid, "test": test}
    values: Mapping[str, Any] = _STUDENT
    if options.config:
        values = read_document(options.config).values
    data |= values.get("data") or {}
    if options.valid:
        data["valid"] = _corpus(options.valid)
    if options.test:
        data["test"] = {"test": _corpus(options.test)}
    if not data["valid"]:
        problem = f"{options.teachers[0]} has no validation set for {direction}."
        raise ConfigError(problem, fix="Pass two files: `valid` SOURCE TARGET.")
    distilled = {"name": "distilled", "tsv": f"{BESIDE}{_CORPUS}/{CORPUS}"}
    data["train"] = [distilled, *(data.get("train") or ())]  # the first: _DISTILLED
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


def _corpus(paths: tuple[Path, Path]) -> dict[str, str]:
    source, target = paths
    return {"source": str(source), "target": str(target)}


def _can_start(teacher: InferenceConfig, overrides: Sequence[str]) -> bool:
    """Return whether the usual student starts with the weights of the teacher."""
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
    """Translate the test set at once, then some sentences one by one."""
    source = [pair.source for pair in test]
    translator.translate(source[:_ONE_BY_ONE])  # the first call is slower
    begin = time.perf_counter()
    results = translator.translate(source)
    seconds = time.perf_counter() - begin
    alone = []
    for line in source[:_ONE_BY_ONE]:
        begin = time.perf_counter()
        translator.translate([line])
        alone.append(time.perf_counter() - begin)
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
        milliseconds=1000 * median(alone),
    )
