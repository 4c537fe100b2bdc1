"""Where the translations that are scored come from: a model, or files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from nmt.config.loader import load_config, refuse_idle
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.evaluation.options import EvaluateOptions
from nmt.evaluation.test_set import STANDARD_INPUT, EvaluationSet, read_text
from nmt.files.line_streams import open_output
from nmt.metrics.sacrebleu import default_tokenizer
from nmt.translation.guard import GuardCount

_READ = ("decoding", "data", "source_language", "target_language")
"""What an evaluation reads of a configuration."""
_TOKENIZED_ENDINGS = 100
"""So many lines ending in a space and a full stop look as if they were tokenized."""


def load_model_config(options: EvaluateOptions) -> RunConfig | None:
    """Read the configuration of the model, before anything slow is loaded; None without a model.

    Decoding flags are overrides of its decoding section, so that they are checked as such.

    Raises:
        CheckpointError: The folder is not there, or is no model.
        ConfigError: The configuration, a flag or an override is wrong, or an override idle.
    """
    if options.model is None:
        return None
    path = options.model / "config.yaml"
    if not path.is_file():
        if options.model.is_dir():
            problem = f"{path} does not exist."
        else:
            wrong = "is no folder" if options.model.exists() else "does not exist"
            problem = f"{options.model} {wrong}."
        raise CheckpointError(
            problem,
            fix="Name a run folder or an exported model folder, for example runs/demo.",
        )
    flags = [f"decoding.{name}={value}" for name, value in options.decoding.items()]
    # One translation is scored; a beam smaller than the model's n_best is no contradiction here.
    config = load_config(path, [*options.overrides, *flags, "decoding.n_best=1"])
    refuse_idle(options.overrides, _READ)
    return config


def name_systems(paths: Sequence[Path]) -> dict[str, Path]:
    """Name systems after their files: shortly if that tells them apart."""
    short = {shown_name(path): path for path in paths}
    return short if len(short) == len(paths) else {str(path): path for path in paths}


def shown_name(path: Path) -> str:
    """Name a file of translations in reports."""
    return "standard input" if path == STANDARD_INPUT else path.name


def model_name(options: EvaluateOptions) -> str:
    """Name the model in reports, with those that translate together with it."""
    others = options.ensemble.others if options.ensemble else ()
    return " + ".join(map(str, (options.model, *others)))


def read_hypotheses(path: Path, whole: EvaluationSet, limit: int | None) -> tuple[str, ...]:
    """Read translations of the whole set, or of just the sentences that are scored.

    Raises:
        DataError: Missing or damaged, or not as many lines as the set.
    """
    lines = read_text(path)
    if len(lines) != len(whole) and len(lines) != limit:
        raise DataError.not_parallel(
            str(path),
            whole.name,
            (len(lines), len(whole)),
            fix="Line i must translate sentence i of the test set: translate all of it, and drop "
            "no line.",
        )
    return lines[:limit]


def translate_set(
    options: EvaluateOptions, config: RunConfig, chosen: EvaluationSet, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Translate the source lines with the model.

    Raises:
        ConfigError: There is no model, or the set has no source lines.
        CheckpointError: The model cannot be loaded.
    """
    if options.model is None or chosen.source is None:
        raise ConfigError("A model needs source lines.", fix="Add --source FILE.")
    from nmt.translation.translator import Translator  # noqa: PLC0415 - files need no torch

    translator = Translator.load(
        options.model,
        device=options.device,
        dtype=options.dtype,
        checkpoint=options.checkpoint,
        threads=options.threads,
        note=say,
        ensemble=options.ensemble,
        guard=options.guard,
    )
    if options.mbr is not None:
        translator = translator.with_mbr(options.mbr.build(config.target_language))
    say(f"translating {len(chosen):,} lines of {chosen.name} with {model_name(options)}")
    results = translator.translate(chosen.source, **config.decoding.model_dump())
    if found := GuardCount().plus(results).note():
        say(found)
    return tuple(result.text for result in results)


def save_lines(path: Path, lines: Iterable[str]) -> DataError | None:
    """Write lines to a file. Return why that is impossible: what it costs is for others to say."""
    try:
        with open_output(path) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    except DataError as error:
        return error
    return None


def find_remarks(
    systems: Iterable[tuple[str, Sequence[str]]], chosen: EvaluationSet, options: EvaluateOptions
) -> Iterator[str]:
    """Yield what looks like a mistake but may be meant, a sentence each."""
    for name, lines in systems:
        endings = sum(line.endswith(" .") for line in lines)
        if endings >= min(_TOKENIZED_ENDINGS, len(lines)):
            yield (
                f"{name}: {endings:,} lines end in a space and a full stop; scores of tokenized "
                "text cannot be compared with others."
            )
    if options.mbr is not None and options.mbr.utility in (*options.metrics, *options.gates):
        name = {"chrf": "chrF", "bleu": "BLEU"}[options.mbr.utility]
        yield f"MBR with {name} was asked for, so {name} is optimistic; look at other metrics, too."
    tokenizer = options.tokenize or default_tokenizer(chosen.target_language)
    sample = "".join(chosen.references[0][:100])
    if tokenizer == "13a" and sum("\u3040" <= c <= "\u9fff" for c in sample) > len(sample) / 3:
        is_japanese = sum("\u3041" <= c <= "\u30fa" for c in sample) > len(sample) / 10  # kana
        language, code, fitting = (
            ("Japanese", "ja", "ja-mecab or char") if is_japanese else ("Chinese", "zh", "zh")
        )
        yield (
            f"The references look {language}, but BLEU's tokenizer is 13a; name the languages "
            f"(-l en-{code}) or the tokenizer (--tokenize {fitting})."
        )
