"""What commands take and return: options, shared groups first, and results. Loads no torch.

The ``title`` of a class of options is a heading in the help.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args

from nmt.config.flag import OF_THE_MODEL, Flag, Options, as_overrides, changed, file_name
from nmt.errors import CheckpointError, ConfigError, NmtError
from nmt.files.lines import is_standard
from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS

Count = int | None
File = Path | None
Files = tuple[Path, ...]
Text = str | None
Texts = tuple[str, ...]
Format = Literal["text", "json"]  # how lines are read or written


def file_or_standard(text: str) -> Path | None:
    """Read a file name; ``-``, standard input or output, becomes None."""
    return None if text == "-" else file_name(text)


def format_name(text: str) -> str:
    """Check the name of a line format; ``jsonl`` means ``json``.

    Raises:
        ValueError: The format does not exist.
    """
    if text not in (*get_args(Format), "jsonl"):
        raise ValueError(f"{text!r} is not one of {', '.join(get_args(Format))}")
    return text.removesuffix("l")


def _override(text: str) -> str:
    """Check that an override is one word; otherwise its value would be read as an argument.

    Raises:
        ConfigError: The override is ``KEY`` or, as in YAML, ``KEY: VALUE``.
    """
    if "=" not in text:
        key, _, value = text.partition(":")
        override = f"`set` {key or 'KEY'}={value.strip() or 'VALUE'}"
        raise ConfigError(
            f"`set` {text}: expected KEY=VALUE.",
            fix=f"Join key and value with an equals sign, without spaces: {override}",
        )
    return text


def _model_folder(text: str) -> Path:
    """Read the name of a model folder.

    Raises:
        CheckpointError: The user has no permission to read the folder.
    """
    folder = file_name(text)
    # Without access to its parents, `is_dir` would raise an error.
    is_folder = os.access(folder, os.F_OK) and folder.is_dir()
    if is_folder and not os.access(folder, os.R_OK | os.X_OK):
        raise CheckpointError(
            f"You have no permission to read {folder}.",
            fix="Make the folder readable (chmod -R u+rX), or copy the folder.",
        )
    return folder


_MODEL = "Run folder, or folder of an exported, averaged or imported model."
_OVERRIDE = "Override a configuration key (`nmt config keys` lists all keys). Repeatable."
_CHECKPOINT = "Checkpoint of a run folder: best, last, average or step-N."
_OUTPUT = "Output file; .gz, .bz2 and .xz are compressed."
_FOLDER = "Output model folder: a new or empty folder."
_DEVICE = (
    "Device; auto uses an NVIDIA GPU if there is one, cuda:1 is the second GPU, "
    "mps is Apple's GPU, which auto never chooses."
)
_DEVICES = "[auto|cpu|cuda|cuda:N|mps]"
_TAG = "Tag to put in front of every source line, such as a domain, for models trained with tags."
_FROM = "Language of the source, if the model translates from several languages."
_TO = "Language to translate into, if the model has several target languages."
_SENTENCES = (
    "Lines with several sentences: auto translates them sentence by sentence if they have more "
    "than the lines of training or are longer, split always, keep never."
)
_GLOSSARY = (
    "Glossary: lines of a source term, a target term and an optional note, separated by tabs; | "
    "separates several forms of a term."
)
_BEAM = "Beam size; 1 is greedy search. Larger is slower."
_BATCH = "Maximum source tokens per batch, padding included."
_PENALTY = "Length penalty (exponent); higher favours longer translations."

ConfigFile = Annotated[Path, Flag("YAML configuration file.", argument=True)]
Model = Annotated[Path, Flag(_MODEL, argument=True, parser=_model_folder)]
Overrides = Annotated[Texts, Flag(_OVERRIDE, metavar="KEY=VALUE", parser=_override)]
Checkpoint = Annotated[str, Flag(_CHECKPOINT, metavar="NAME")]
OutputFile = Annotated[File, Flag(_OUTPUT, "o", parser=file_or_standard, shown="standard output")]
OutputFolder = Annotated[Path, Flag(_FOLDER, "o", "FOLDER")]
Tag = Annotated[Text, Flag(_TAG, metavar="TAG")]
FromLanguage = Annotated[Text, Flag(_FROM, metavar="CODE")]
ToLanguage = Annotated[Text, Flag(_TO, metavar="CODE")]
Sentences = Annotated[Literal["auto", "split", "keep"], Flag(_SENTENCES)]
GlossaryFile = Annotated[File, Flag(_GLOSSARY, metavar="TSV")]
Device = Annotated[str, Flag(_DEVICE, metavar=_DEVICES)]
TrainingDevice = Annotated[Text, Flag(_DEVICE, metavar=_DEVICES, shown="training.device, or auto")]
Threads = Annotated[Count, Flag("Number of CPU threads.", min=1, shown="all cores")]
BeamSize = Annotated[Count, Flag(_BEAM, "b", min=1, shown=OF_THE_MODEL)]
BatchTokens = Annotated[Count, Flag(_BATCH, min=1, shown=OF_THE_MODEL)]
SampleSeed = Annotated[Count, Flag("Random seed of `sample`.", min=0, shown=OF_THE_MODEL)]
LengthPenalty = Annotated[float | None, Flag(_PENALTY, min=0, shown=OF_THE_MODEL)]
Json = Annotated[bool, Flag("Print the result as one JSON object.")]
_Mean = Literal["arithmetic", "geometric"] | None
_WEIGHTS = Flag(separator=",", metavar="X,X", shown="equal weights")


class ModelOptions(Options):
    """Which models to load, and on which device.

    Args:
        with_: Additional model of an ensemble, with the same languages and vocabulary as MODEL.
            Repeatable.
        weights: Ensemble weights of MODEL and of each `with`, separated by commas.
        ensemble_mean: Mean of an ensemble: of probabilities (arithmetic) or of log probabilities
            (geometric).
    """

    title = "Model"

    checkpoint: Checkpoint = "best"
    device: Device = "auto"
    threads: Threads = None
    with_: Annotated[Files, Flag(metavar="MODEL2")] = ()
    weights: Annotated[tuple[float, ...] | None, _WEIGHTS] = None
    ensemble_mean: Annotated[_Mean, Flag(shown="arithmetic")] = None

    def __post_init__(self) -> None:
        if not self.with_ and self.ensemble_mean is not None:
            raise ConfigError(
                "`ensemble_mean` needs `with`.", fix="Add `with` MODEL2, or remove `ensemble_mean`."
            )


class TranslatorOptions(ModelOptions):
    """Which models to load, on which device, and with which engine.

    Args:
        engine: Inference engine: auto, torch or ctranslate2. auto uses CTranslate2 on CPUs if it is
            installed and supports all options, otherwise torch. `verbose` prints the choice.
        dtype: Number type of the weights: auto, float32, bfloat16, float16 (GPU only) or int8
            (CTranslate2 only, fastest on CPUs). auto is float32 on CPUs and 16 bits on GPUs. In
            bfloat16, about 3% of the translations depend on the other lines (measured on a CPU).
    """

    title = "Model"

    engine: Annotated[str, Flag(metavar="NAME")] = "auto"
    dtype: Annotated[str, Flag(metavar="TYPE")] = "auto"


class SearchOptions(Options):
    """How to search for translations.

    Args:
        shortlist: Restrict each sentence to likely target tokens, learned from the training data.
            Faster; a few translations change.
        no_guard: Do not check translations: no alarms, and no second search when a translation is
            suspicious (loops, implausible length).
        no_split: Translate long lines whole. By default, lines longer than the training sentences
            are split into segments. Not possible with learned positions.
    """

    title = "Search"

    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    shortlist: Annotated[bool | None, Flag(shown=OF_THE_MODEL)] = None
    batch_tokens: BatchTokens = None
    no_guard: bool = False
    no_split: bool = False
    sentences: Sentences = "auto"
    glossary: GlossaryFile = None
    set_: Overrides = ()

    def decoding(self) -> dict[str, Any]:
        """Return the decoding options that the user has set."""
        return user_values(self, "beam_size", "length_penalty", "shortlist", "batch_tokens")


class MbrOptions(Options):
    """Minimum Bayes risk decoding.

    Args:
        mbr: Choose the candidate most similar to all others by this metric. Better quality, slower.
        mbr_candidates: Candidates per sentence for `mbr`; more is slower.
        mbr_from: Source of the candidates for `mbr`: random samples or beam search.
    """

    title = "Minimum Bayes risk decoding"

    mbr: Annotated[Text, Flag(metavar="chrf|bleu|comet[:MODEL]")] = None
    mbr_candidates: Annotated[Count, Flag(min=2, shown="32")] = None
    mbr_from: Annotated[Literal["samples", "beam"] | None, Flag(shown="samples")] = None


def user_values(options: Any, *names: str) -> dict[str, Any]:
    """Return those of the options ``names`` that the user has set, that is, that are not None."""
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


class PreparationOptions(Options):
    """How to prepare data; `nmt train` uses the defaults.

    Args:
        report_only: Print the report without writing prepared data.
        report_dir: Output folder for report.json, report.html and lists of rejected pairs.
        force: Prepare again even if nothing has changed.
        workers: Number of worker processes. The output does not depend on it.
        scheduler: Distribute the work with Dask: address of the scheduler, or local to start one.
        score_with: Two models, one per direction, for the filter dual_cross_entropy.
    """

    title = "Preparation"

    report_only: bool = False
    report_dir: Annotated[File, Flag(metavar="FOLDER")] = None
    force: bool = False
    workers: Annotated[Count, Flag(min=1, shown="1, in this process")] = None
    scheduler: Annotated[Text, Flag(metavar="local|ADDRESS")] = None
    score_with: Annotated[Files, Flag(separator=",", metavar="RUN,RUN")] = ()


class PrepareOptions(PreparationOptions):
    """Which configuration to prepare, and how.

    Args:
        verify: Check an existing prepared folder against its manifest; write nothing.
        list_: List the prepared folders with their sizes and the runs that use them: those in
            prepared, or those beside prepared_dir of CONFIG.
        remove: Remove a prepared folder that no run uses.
    """

    title = "Preparation"

    config: Annotated[File, Flag("YAML configuration file.", argument=True)] = None
    verify: bool = False
    list_: bool = False
    remove: Annotated[File, Flag(metavar="FOLDER")] = None
    set_: Overrides = ()
    json: Json = False

    def __post_init__(self) -> None:
        chosen = changed(self, "verify", "list_", "remove")  # these prepare nothing
        unused_names = [*chosen[1:], *changed(self, *PreparationOptions.__dataclass_fields__)]
        if self.remove:
            unused_names += changed(self, "config", "set_")
        if chosen and unused_names:
            name = unused_names[0]
            raise ConfigError(
                f"`{chosen[0]}` cannot be combined with `{name}`.", fix=f"Remove `{name}`."
            )
        if not (self.config or self.list_ or self.remove):
            raise ConfigError(
                "`nmt prepare` needs a configuration.", fix="Run `nmt prepare CONFIG`."
            )


class TrainOptions(Options):
    """The configuration to train, the run folder, and how to resume.

    Args:
        run_dir: Run folder, in place of run_dir of the configuration.
        strict_resume: Fail if the newest checkpoint is damaged. By default, an older checkpoint is
            used.
        exact: Refuse to resume if the weights might differ from those of an uninterrupted run.
        devices: Number of processes; each uses one GPU, or an equal share of the CPU cores.
        dry_run: Estimate memory, FLOPs and time without training.
    """

    title = "Training"

    config: ConfigFile
    set_: Overrides = ()
    run_dir: Annotated[File, Flag(metavar="FOLDER")] = None
    strict_resume: bool = False
    exact: bool = False
    device: TrainingDevice = None
    threads: Threads = None
    devices: Annotated[int, Flag(min=1)] = 1
    dry_run: bool = False
    json: Json = False

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of configuration keys: those of the user, then the options that are keys."""
        computing = as_overrides(user_values(self, "device", "threads"), "training.")
        return (*self.set_, *computing, *as_overrides(user_values(self, "run_dir")))


class AverageOptions(Options):
    """The run and the checkpoints to average.

    Args:
        run: Run folder created by `nmt train`.
        last: Average the N newest checkpoints, or all if there are fewer.
        best: Average the N checkpoints with the best validation scores.
        step: Average the checkpoint of step N. Repeat it for each checkpoint.
    """

    run: Annotated[Path, Flag(argument=True)]
    output: OutputFolder
    last: Annotated[Count, Flag(min=1, shown="10")] = None
    best: Annotated[Count, Flag(min=1)] = None
    step: Annotated[tuple[int, ...], Flag(min=1)] = ()
    json: Json = False

    def __post_init__(self) -> None:
        names = changed(self, "last", "best", "step")
        if len(names) > 1:
            raise ConfigError(
                f"`{'` and `'.join(names)}` cannot be combined.", fix="Pass only one."
            )
        repeated = {step for step in self.step if self.step.count(step) > 1}
        if repeated:
            listed = ", ".join(map(str, sorted(repeated)))
            raise ConfigError(
                f"`step` {listed} is repeated.",
                fix="Pass each checkpoint once; all checkpoints have the same weight.",
            )


class AugmentOptions(Options):
    """The text to translate, the model, and the search.

    Args:
        text: Monolingual text; may be compressed.
        model: Model that translates the text. Repeatable: models with the same languages and
            vocabulary translate together, as an ensemble.
        output: Output folder.
        forward: Use the text as the source side of the new corpus (forward translation).
        references: Translations of the text, line by line, with `forward`: the translation of the
            beam that is most similar to the reference (smoothed BLEU) is used.
        sample: Sample translations instead of searching; often better for training.
        shard_lines: Lines per shard; an interrupted run resumes at the last complete shard.
        force: Also use a model whose translations were no better than by chance in its last
            validation.
        engine: Inference engine; auto uses CTranslate2 on CPUs if it supports all options.
        guard: Search again when a translation is suspicious.
    """

    text: Annotated[Path, Flag(argument=True)]
    model: Annotated[Files, Flag(metavar="MODEL")]
    output: Annotated[Path, Flag(short="o", metavar="FOLDER")]
    forward: bool = False
    references: File = None
    from_: FromLanguage = None
    to: ToLanguage = None
    tag: Tag = None
    sample: bool = False
    seed: SampleSeed = None
    beam_size: BeamSize = None
    sentences: Sentences = "auto"
    glossary: GlossaryFile = None
    shard_lines: Annotated[int, Flag(min=1)] = 10_000
    force: bool = False
    checkpoint: Checkpoint = "best"
    device: Device = "auto"
    threads: Threads = None
    set_: Overrides = ()
    json: Json = False
    engine: Annotated[Literal["auto", "torch", "ctranslate2"], Flag(hidden=True)] = "auto"
    guard: Annotated[bool, Flag(hidden=True)] = True


# Outputs in addition to translations and their scores. Text output can show only the first.
_OUTPUTS = ("alignments", "attention", "token_scores")
_FORMAT = Flag(metavar="[text|json]", parser=format_name)


class LineOptions(Options):
    """How to read and write lines.

    Args:
        input: Text to translate, line by line; may be compressed.
        format: Output format: plain text, or one JSON object per line.
        input_format: Input format: plain text, or one JSON object per line with the fields source,
            from, to, tag, prefix, required, forbidden. Only source is mandatory. Other fields are
            copied to JSON output.
        n_best: Translations per line. If N > 1, text output is one `number ||| text ||| score` per
            translation.
        alignments: Add word alignments (from attention) in Pharaoh format, such as `0-0 1-2`.
        attention: Add the attention weights between target and source words; JSON output only.
        token_scores: Add the log probability of every token; JSON output only.
        min_confidence: Mark translations whose confidence (expected chrF, 0 to 100) is below X or
            not rated, with ` ||| low confidence` in text, low_confidence in JSON.
        stream: Translate each line before reading the next one, for interactive use.
    """

    title = "Input and output"

    input: Annotated[File, Flag(short="i", parser=file_or_standard, shown="standard input")] = None
    output: OutputFile = None
    format: Annotated[Format, _FORMAT] = "text"
    input_format: Annotated[Format, _FORMAT] = "text"
    n_best: Annotated[Count, Flag(min=1, shown=OF_THE_MODEL)] = None
    alignments: bool = False
    attention: bool = False
    token_scores: bool = False
    min_confidence: float | None = None
    stream: bool = False
    from_: FromLanguage = None
    to: ToLanguage = None
    tag: Tag = None

    @property
    def outputs(self) -> frozenset[str]:
        """Return the requested outputs other than texts and scores."""
        return frozenset(name for name in _OUTPUTS if getattr(self, name))


class SamplingOptions(Options):
    """How to sample translations.

    Args:
        sample: Sample `n_best` translations from the model instead of searching.
        temperature: Softmax temperature of `sample`; below 1, probable tokens become more probable.
        top_p: Nucleus for `sample`: the smallest set of tokens with total probability P.
        top_k: Number of most probable tokens that `sample` can choose from; 0 means all.
    """

    title = "Sampling"

    sample: bool = False
    temperature: Annotated[float | None, Flag(shown=OF_THE_MODEL)] = None
    top_p: Annotated[float | None, Flag(metavar="P", shown=OF_THE_MODEL)] = None
    top_k: Annotated[Count, Flag(min=0, metavar="K", shown=OF_THE_MODEL)] = None
    seed: SampleSeed = None


def refuse_beam(beam_size: int | None, mode: str) -> None:
    """Refuse a beam size beside the option ``mode``, which replaces beam search."""
    if beam_size not in (None, 1):
        raise ConfigError(
            f"`beam_size` {beam_size} cannot be combined with {mode}.",
            fix="Remove one of the two options; `n_best` sets the number of translations per line.",
        )


class TranslateOptions(LineOptions, SearchOptions, SamplingOptions, MbrOptions, TranslatorOptions):
    """The model, the text to translate, and the form of the output.

    Args:
        file: Text to translate; the same as `input`.
    """

    model: Model
    file: Annotated[File, Flag(argument=True)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.file is not None and self.input is not None:
            raise ConfigError(
                f"{self.file} and `input` {self.input} cannot be combined.", fix="Pass only one."
            )
        if self.sample:
            refuse_beam(self.beam_size, "`sample`")
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 100:
            raise ConfigError(
                f"`min_confidence` is {self.min_confidence:g}.",
                fix="Use a chrF score from 0 to 100.",
            )
        self.check_output(self.n_best or 1)

    def check_output(self, n_best: int) -> None:
        """Check that the output format can show the requested outputs.

        Args:
            n_best: Translations per line.

        Raises:
            ConfigError: Plain text cannot show them.
        """
        if self.format == "json":
            return
        names = [f"`{name}`" for name in _OUTPUTS[1:] if getattr(self, name)]  # need JSON
        problem = ""
        if self.min_confidence is not None and (self.alignments or n_best > 1):
            problem = "`min_confidence` together with alignments or several translations"
        elif names:
            problem = " and ".join(names)
        elif self.alignments and n_best > 1:
            problem = f"the alignments of {n_best} translations"
        if problem:
            raise ConfigError(
                f"Plain text output cannot show {problem}.",
                fix="Add `format` json, or remove these options.",
            )

    @property
    def source(self) -> Path | None:
        """Return the file to translate; None is standard input."""
        return self.input or self.file

    @property
    def search(self) -> dict[str, Any]:
        """Return the decoding options that the user has set, of the search and of sampling."""
        changes = user_values(self, "temperature", "top_p", "top_k", "seed", "n_best")
        if self.sample:
            changes["sampling"] = True
        return self.decoding() | changes


class ScoreOptions(ModelOptions):
    """Which sentence pairs to score, and how to write the scores.

    Args:
        source: Source text. Without `source` and `target`, reads source<TAB>target lines from
            standard input.
        target: Translations to score, aligned line by line.
        sum: Sum of log probabilities, without length normalisation.
        format: Output format: one number per line, or one JSON object per line with all tokens.
    """

    title = "Scoring"

    model: Model
    source: File = None
    target: File = None
    output: OutputFile = None
    sum: bool = False
    format: Format = "text"
    length_penalty: LengthPenalty = None
    from_: FromLanguage = None
    to: ToLanguage = None
    tag: Tag = None
    batch_tokens: BatchTokens = None
    set_: Overrides = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is None) != (self.target is None):
            missing = "source" if self.source is None else "target"
            raise ConfigError(
                f"`{missing}` is missing.",
                fix="Pass both `source` and `target`, or write source<TAB>target to standard "
                "input.",
            )
        if self.source and is_standard(self.source) and is_standard(self.target):
            raise ConfigError(
                "Standard input can be read only once.", fix="Pass a file for `source` or `target`."
            )


_BS = "bs; ar with `fail_if_worse`"
_NUM_RESAMPLES = f"{DEFAULT_RESAMPLES} for bs, {DEFAULT_TRIALS} for ar"


class TestOptions(Options):
    """The translations or models to evaluate, and the references.

    Args:
        models: Run or model folders; or two files: translations, then the reference.
        hypothesis: Translations to score; - is standard input. {test} in the path of this and other
            texts stands for the name of each test set. Repeatable.
        source: Source text for the model to translate.
        reference: Reference translations. Repeatable, for several references per sentence.
        test: Test set: a name in the model's configuration or in sacreBLEU, or any name if
            `reference` contains {test}. Repeatable.
        languages: Language pair, for example en-de. It selects the tokenizer of BLEU.
        limit: Score only the first N sentences. The scores are not added to the page of the run.
        list_: Print the names that `test` accepts, then exit.
    """

    title = "Test set and systems"

    models: Annotated[Files, Flag(argument=True, metavar="MODEL")] = ()
    hypothesis: Files = ()
    source: File = None
    reference: Files = ()
    test: Annotated[Texts, Flag(short="t", metavar="NAME", shown="all in the configuration")] = ()
    tag: Tag = None
    languages: Annotated[Text, Flag(short="l", metavar="PAIR")] = None
    limit: Annotated[Count, Flag(min=1)] = None
    list_: bool = False


class ScoringOptions(Options):
    """Metrics, and how texts are prepared for them.

    Args:
        metric: Metrics, separated by commas: bleu, chrf, chrf++, ter, comet, or comet:MODEL with a
            checkpoint or a name on the Hugging Face Hub. Repeatable. The default is chrf,bleu for
            languages that are written without spaces.
        tokenize: Tokenizer of BLEU: 13a, zh, ja-mecab, ko-mecab, intl, char, flores200 or none.
        lowercase: Ignore case.
        external: External scoring program. It reads JSON lines with source, hypothesis and
            references, and writes one number per line; higher is better.
    """

    title = "Scores"

    metric: Annotated[Texts, Flag(metavar="NAME", shown="bleu,chrf")] = ()
    tokenize: Annotated[Text, Flag(metavar="NAME", shown="by language, usually 13a")] = None
    lowercase: bool = False
    external: Annotated[Text, Flag(metavar="COMMAND")] = None


class GateOptions(Options):
    """Which baseline to compare with, and when to fail.

    Args:
        baseline: System to compare with (p-values): translations, a model, or a report.json.
        significance: Paired significance test: bootstrap resampling (bs) or approximate
            randomization (ar).
        alpha: Significance level, from 0 to 1.
        fail_if_worse: Exit with code 6 if any score is significantly worse than the baseline's.
        fail_under: Minimum scores; exit with code 6 if a score is lower. Repeatable.
        resamples: Number of resamples for confidence intervals and p-values; 0 turns both off.
        seed: Random seed of the resampling.
    """

    title = "Comparison and gates"

    baseline: Annotated[File, Flag(metavar="FILE|RUN|REPORT.json")] = None
    significance: Annotated[Literal["bs", "ar"] | None, Flag(shown=_BS)] = None
    alpha: Annotated[float, Flag(min=0, max=1)] = 0.05
    fail_if_worse: bool = False
    fail_under: Annotated[Texts, Flag(metavar="bleu=27,chrf=55")] = ()
    resamples: Annotated[Count, Flag(min=0, max=10**6, shown=_NUM_RESAMPLES)] = None
    seed: Annotated[int, Flag(min=0)] = DEFAULT_SEED


class AnalysisOptions(Options):
    """Analyses that show the weaknesses of a system.

    Args:
        slices: Score subsets: by length, case, rare words, numbers, names, warnings, and overlap
            with the training data.
        slice_: Score subsets by your own labels, one label per line of FILE. Repeatable.
        robustness: Translate again with typos, changed case or spaces, and report the loss.
        contrastive: Contrastive test: lines of source, correct and wrong translation and category,
            separated by tabs. Reports how often the model prefers the correct translation.
    """

    title = "Analysis"

    slices: bool = False
    slice_: Annotated[Texts, Flag(metavar="NAME=FILE")] = ()
    robustness: bool = False
    contrastive: File = None


class OutputOptions(Options):
    """Output of `nmt evaluate`: reports and translations.

    Args:
        report: Report file; its extension sets the format: .json (with all translations, usable as
            `baseline`), .md (for a pull request), .xml (JUnit, for CI) or .html. Repeatable.
        sentence_level: Print one JSON object per sentence, with its texts, in place of the summary.
            With `json`, add them to the summary.
        score_only: Print only this score, a line for each test set and system. Repeatable.
        save_hypotheses: Output file for the translations of the model.
    """

    title = "Output"

    report: Files = ()
    sentence_level: bool = False
    score_only: Annotated[Texts, Flag(metavar="NAME")] = ()
    save_hypotheses: File = None
    json: Json = False


class EvaluateOptions(
    TestOptions, ScoringOptions, GateOptions, AnalysisOptions, OutputOptions,
    SearchOptions, MbrOptions, TranslatorOptions,
):  # fmt: skip
    """All options of `nmt evaluate`."""

    @property
    def baseline_model(self) -> Path | None:
        """The baseline, if it is a model folder."""
        return self.baseline if self.baseline and self.baseline.is_dir() else None


_Layout = Literal["text", "markdown"] | None


class KeysOptions(Options):
    """Which keys to describe.

    Args:
        section: Section, such as training.schedule, or key. Leave it out to print all keys.
        format: Output format: wrapped text, or Markdown tables.
    """

    section: Annotated[str, Flag(argument=True)] = ""
    format: Annotated[_Layout, Flag(shown="text in a terminal, else markdown")] = None


class ShowOptions(Options):
    """Which configuration to print."""

    config: ConfigFile
    set_: Overrides = ()


class CheckOptions(Options):
    """Which configurations to check.

    Args:
        configs: YAML configuration files.
    """

    configs: Annotated[Files, Flag(argument=True, metavar="CONFIG")]
    set_: Overrides = ()


class CommandResult(Protocol):
    """Result of a command; the command line prints it as text or JSON.

    A result can also have ``failure``, an `NmtError` that is raised after printing; and
    ``is_document``: True for text with its own line breaks, which stay as they are on a terminal.
    """

    def as_text(self) -> str:
        """Return text for users, without the last line break."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: by default, the fields of a dataclass."""
        fields: Any = self
        values = asdict(fields)
        return {
            name: str(item) if isinstance(item, Path) else item for name, item in values.items()
        }


@dataclass(frozen=True)
class TextResult:
    """The result of a command as a text, and as plain data."""

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)  # the same content, for JSON
    failure: NmtError | None = None
    is_document: bool = False  # see `CommandResult`

    def as_text(self) -> str:
        """Return the text without the last line break."""
        return self.text.removesuffix("\n")

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dict(self.values)
