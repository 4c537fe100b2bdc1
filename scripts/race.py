"""Race of toolkits: BLEU after 2.5, 5 and 10 minutes of training on the same cores.

    taskset -c 0,1 python scripts/race.py run --data multi30k --results race.jsonl
    python scripts/race.py draw race.jsonl -o race.svg

All toolkits train a Transformer of one size on the same subwords of Multi30k, German to English,
and translate test_2016_flickr with their own beam search. BLEU is sacreBLEU, cased, of detokenized
text. The subwords are those that `nmt prepare` learns for `configs/multi30k.yaml`.

Settings: nmt's and Hugging Face's were chosen on the validation set of Multi30k, for 8 and 12
minutes. The recipes that fairseq, OpenNMT-py and JoeyNMT document are for hours on a GPU: the
warm-up of the first two takes 4,000 and 8,000 updates, more than two cores make in 10 minutes.
Therefore the three race with the learning rate, warm-up, dropout and about the batch size of
Hugging Face, and with what they document for all the rest. nmt and Hugging Face use bfloat16 if the
processor has it, the others float32.

The limit is the wall-clock time of the training command, with its start-up, loading, validations
and saves. Preparing text and vocabulary does not count. nmt and Hugging Face train once for each
limit, because their learning rates fall to zero at the end. The schedules of the other toolkits do
not depend on the end: one training serves all limits, and the newest checkpoint at each limit is
translated. The settings and their sources are in `TOOLKITS` and in the templates of the toolkits.

Each result is a line of the results file. Results that the file already has are skipped, so that
a race can be stopped at any time and continued later. The other toolkits are installed in virtual
environments below $PEERS_HOME; a toolkit without one is skipped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import filterfalse, product
from pathlib import Path
from string import Template
from typing import Any

import sacrebleu
import sentencepiece
from race_chart import Curve, draw

ROOT = Path(__file__).resolve().parents[1]
HUGGING_FACE = str(Path(__file__).with_name("race_hugging_face.py"))
PARTS = ("train", "val", "test_2016_flickr")
# The size of the preset `tiny` of nmt, and the width of the beam.
SIZE = {"layers": 3, "width": 256, "ff_width": 1024, "heads": 4, "beam_size": 5}
# A training goes on for some seconds after its limit: a checkpoint that is being written at the
# limit is then complete, and newer than the limit.
GRACE_SECONDS = 15.0
# nmt counts `training.max_minutes` from when the data are prepared, which takes this long here.
START_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of training that are not those of a toolkit's documentation."""

    learning_rate: float = 0.0
    warmup: int = 0  # updates
    max_tokens: int = 4096  # of a batch; Hugging Face's: both sides, the others': the longer side
    dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """A training, with the files and limits that all toolkits share."""

    settings: Settings
    work: Path  # text, pieces and vocabulary
    folder: Path
    python: Path
    seed: int
    seconds: float
    threads: int
    save_every: int  # updates

    def fill(self, template: str, **values: object) -> str:
        """Replace the names of settings, paths and sizes by their values."""
        names = {**asdict(self.settings), **SIZE}
        for name in ("work", "folder", "seed", "save_every"):
            names[name] = getattr(self, name)
        return Template(template).substitute(names | values)

    def write(self, text: str) -> str:
        """Write a configuration; return its path."""
        path = self.folder / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def program(self, name: str) -> str:
        """Return the path of a program of the toolkit."""
        return str(self.python.with_name(name))

    def output_of(self, *command: object, form: str = "pieces") -> list[str]:
        """Return the lines that a command writes when it reads the test set.

        Args:
            command: Program and arguments.
            form: Form of the test set: ``pieces`` or ``text``.

        Raises:
            RuntimeError: The command failed.
        """
        with (self.work / form / "test_2016_flickr.de").open("rb") as file:
            completed = subprocess.run(
                [*map(str, command)], stdin=file, capture_output=True, cwd=ROOT, check=False
            )
        if completed.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{completed.stderr.decode()[-2000:]}")
        return _lines(completed.stdout)


# For each toolkit, `_train_TOOLKIT` returns the command that trains, and `_translate_TOOLKIT` the
# translations of the test set: lines of pieces; of nmt, lines of text.


def _nmt(work: Path, command: str, options: Mapping[str, object]) -> list[str]:
    """Return an nmt command for the corpora in ``work``, with additional settings."""
    corpora = []
    for part in PARTS:
        text = work / "text" / part
        corpora.append(f"{{source: {text}.de, target: {text}.en}}")
    train, valid, test = corpora
    settings: dict[str, object] = {"data.train": f"[{train}]", "data.valid": valid}
    settings["data.test.flickr2016"] = test
    settings["prepared_dir"] = work / "prepared"
    settings.update(options)
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "nmt", command, "configs/multi30k.yaml", *flags]


def _train_nmt(run: Run) -> list[str]:
    minutes = max(run.seconds - START_SECONDS, 5) / 60
    options = {
        "run_dir": run.folder / "run",
        "training.max_steps": "null",
        "training.max_minutes": minutes,
        "training.threads": run.threads,
        "training.seed": run.seed,
        "training.device": "cpu",
    }
    return [*_nmt(run.work, "train", options), "--json", "-q"]


def _translate_nmt(run: Run, _: Path) -> list[str]:
    model = run.folder / "run"
    command = [run.python, "-m", "nmt", "translate", model, "-q"]
    options = ["--threads", run.threads, "-b", SIZE["beam_size"]]
    return run.output_of(*command, *options, form="text")


def _train_hugging_face(run: Run) -> list[str]:
    job = {
        **asdict(run.settings),
        **SIZE,
        "work": str(run.work),
        "model": f"{run.folder}/model",
        "seed": run.seed,
        "threads": run.threads,
        "until": time.time() + run.seconds,
    }
    path = run.write(json.dumps(job))
    return [str(run.python), HUGGING_FACE, path]


def _translate_hugging_face(run: Run, _: Path) -> list[str]:
    return run.output_of(run.python, HUGGING_FACE, run.folder / "config.yaml", "--translate")


FAIRSEQ = """--cpu --seed=$seed --arch=transformer_iwslt_de_en --share-all-embeddings
--encoder-layers=$layers --encoder-embed-dim=$width --encoder-ffn-embed-dim=$ff_width
--decoder-layers=$layers --decoder-embed-dim=$width --decoder-ffn-embed-dim=$ff_width
--encoder-attention-heads=$heads --decoder-attention-heads=$heads
--optimizer=adam --adam-betas=(0.9,0.98) --clip-norm=0.0 --weight-decay=0.0001 --dropout=$dropout
--lr=$learning_rate --lr-scheduler=inverse_sqrt --warmup-updates=$warmup --max-tokens=$max_tokens
--criterion=label_smoothed_cross_entropy --label-smoothing=0.1
--disable-validation --save-interval-updates=$save_every --save-dir=$folder --no-epoch-checkpoints
--no-last-checkpoints --no-save-optimizer-state --log-format=simple"""


def _train_fairseq(run: Run) -> list[str]:
    data = run.work / "fairseq"
    if not (data / "train.de-en.en.idx").exists():  # binarize, which does not count
        dictionary = run.work / "dictionary.txt"
        pieces = read_lines(run.work / "vocabulary.txt")
        write_lines(dictionary, [f"{piece} 1" for piece in pieces])
        options = run.fill(
            "-s de -t en --joined-dictionary --trainpref $work/pieces/train "
            "--validpref $work/pieces/val"
        )
        run.output_of(run.program("fairseq-preprocess"), *options.split(), "--srcdict", dictionary,
                      "--destdir", data)  # fmt: skip
    arguments = run.fill(FAIRSEQ).split()
    return [run.program("fairseq-train"), str(data), *arguments]


def _translate_fairseq(run: Run, checkpoint: Path) -> list[str]:
    options = run.fill("-s de -t en --cpu --beam $beam_size --batch-size 128 --buffer-size 1000")
    command = [run.program("fairseq-interactive"), run.work / "fairseq", "--path", checkpoint]
    # A translation is the line H-INDEX, score, pieces. The program sorts sentences by length.
    translations = {}
    for line in run.output_of(*command, *options.split()):
        tag, *cells = line.split("\t")
        if tag.startswith("H-"):
            index = int(tag.removeprefix("H-"))
            translations[index] = cells[1]
    return [translations[index] for index in sorted(translations)]


OPENNMT = """{
data: {corpus: {path_src: $work/pieces/train.de, path_tgt: $work/pieces/train.en, transforms: []}},
src_vocab: $work/vocabulary.txt, tgt_vocab: $work/vocabulary.txt, share_vocab: true,
src_vocab_size: 8000, tgt_vocab_size: 8000, save_data: $folder/data, save_model: $folder/model,
save_checkpoint_steps: $save_every, keep_checkpoint: -1, seed: $seed,
train_steps: 1000000, valid_steps: 1000000, bucket_size: 32768,
batch_type: tokens, batch_size: $max_tokens, normalization: tokens, accum_count: [1],
model_dtype: fp32, optim: adam, adam_beta2: 0.998, learning_rate: $learning_rate,
decay_method: noam, warmup_steps: $warmup, max_grad_norm: 0, label_smoothing: 0.1,
param_init: 0, param_init_glorot: true, dropout: [$dropout], attention_dropout: [$dropout],
encoder_type: transformer, decoder_type: transformer, position_encoding: true,
enc_layers: $layers, dec_layers: $layers, heads: $heads, hidden_size: $width,
word_vec_size: $width, transformer_ff: $ff_width, share_embeddings: true,
share_decoder_embeddings: true}"""


def _train_opennmt(run: Run) -> list[str]:
    config = run.write(run.fill(OPENNMT))
    return [run.program("onmt_train"), "-config", config]


def _translate_opennmt(run: Run, checkpoint: Path) -> list[str]:
    options = run.fill("-src $work/pieces/test_2016_flickr.de -output $folder/output "
                       "-beam_size $beam_size -model")  # fmt: skip
    run.output_of(run.program("onmt_translate"), *options.split(), checkpoint)
    return read_lines(run.folder / "output")


# Only validations save, so they are more frequent than after 1,000 updates.
JOEY = """{
name: race, model_dir: $folder/model, use_cuda: false, random_seed: $seed,
data: {dataset_type: plain, train: $work/pieces/train, dev: $work/pieces/val,
  test: $work/pieces/test_2016_flickr, sample_dev_subset: 200,
  src: {lang: de, level: word, max_length: 250, lowercase: false, normalize: false,
    voc_file: $work/joey.txt},
  trg: {lang: en, level: word, max_length: 250, lowercase: false, normalize: false,
    voc_file: $work/joey.txt}},
testing: {beam_size: $beam_size, beam_alpha: 1.0, batch_size: 64, max_output_length: $longest,
  eval_metrics: [], load_model: $checkpoint},
training: {optimizer: adam, adam_betas: [0.9, 0.999], normalization: tokens,
  scheduling: warmupinversesquareroot, learning_rate: $learning_rate, learning_rate_warmup: $warmup,
  learning_rate_min: 0.00000001, label_smoothing: 0.1, batch_size: $max_tokens, batch_type: token,
  early_stopping_metric: ppl, epochs: 10000, logging_freq: $save_every, overwrite: true,
  validation_freq: $save_every, keep_best_ckpts: -1, print_valid_sents: []},
model: {initializer: xavier_uniform, embed_initializer: xavier_uniform, bias_initializer: zeros,
  tied_embeddings: true, tied_softmax: true, encoder: $stack, decoder: $stack}}"""
JOEY_STACK = """{type: transformer, num_layers: $layers, num_heads: $heads, hidden_size: $width,
  embeddings: {embedding_dim: $width, scale: true, dropout: 0.0}, ff_size: $ff_width,
  dropout: $dropout, layer_norm: pre}"""

# JoeyNMT 2.3.0 passes an argument that torch has removed.
JOEY_PROGRAM = """import runpy, torch.optim.lr_scheduler as module
plateau = module.ReduceLROnPlateau
module.ReduceLROnPlateau = lambda *args, verbose=False, **options: plateau(*args, **options)
runpy.run_module("joeynmt", run_name="__main__")"""


def _joey(run: Run, command: str, **values: object) -> list[str]:
    """Write vocabulary and configuration of JoeyNMT; return a command that uses them."""
    pieces = ["<unk>", "<pad>", "<s>", "</s>"]
    pieces += read_lines(run.work / "vocabulary.txt")
    write_lines(run.work / "joey.txt", pieces)
    stack = run.fill(JOEY_STACK)
    config = run.write(run.fill(JOEY, stack=stack, **values))
    return [str(run.python), "-c", JOEY_PROGRAM, command, config]


def _train_joey(run: Run) -> list[str]:
    # A validation also translates, which nobody reads; the perplexity does not depend on it.
    return [*_joey(run, "train", checkpoint="null", longest=1), "--skip-test"]


def _translate_joey(run: Run, checkpoint: Path) -> list[str]:
    command = _joey(run, "translate", checkpoint=checkpoint, longest=100)
    return run.output_of(*command)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """How a toolkit trains and translates."""

    label: str
    package: str
    environment: str  # below $PEERS_HOME; "" is this Python
    train: Callable[[Run], list[str]]
    translate: Callable[[Run, Path], list[str]]
    settings: Settings
    checkpoints: str = ""  # pattern of their names, if one training serves all limits


TOOLKITS = {
    # configs/multi30k.yaml
    "nmt": Toolkit("nmt", "nmt", "", _train_nmt, _translate_nmt, Settings()),
    # The documentation describes fine-tuning only. The optimizer, its schedule and the clipping are
    # the defaults of TrainingArguments; the values were chosen for 12 minutes on Multi30k.
    "hugging-face": Toolkit(
        "Hugging Face", "transformers", "hf", _train_hugging_face, _translate_hugging_face,
        Settings(1e-3, 500, 1536, 0.1),
    ),
    # examples/translation/README.md
    "fairseq": Toolkit(
        "fairseq", "fairseq", "fairseq", _train_fairseq, _translate_fairseq,
        Settings(1e-3, 500, 1024, 0.1), "checkpoint_*.pt",
    ),
    # docs/source/FAQ.md. The learning rate of noam is a factor: this one reaches 1e-3.
    "opennmt-py": Toolkit(
        "OpenNMT-py", "OpenNMT-py", "onmt", _train_opennmt, _translate_opennmt,
        Settings(0.358, 500, 1024, 0.1), "model_step_*.pt",
    ),
    # configs/transformer_iwslt14_deen_bpe.yaml, with the schedule of fairseq
    "joeynmt": Toolkit(
        "JoeyNMT", "joeynmt", "joey", _train_joey, _translate_joey,
        Settings(1e-3, 500, 1024, 0.1), "model/[0-9]*.ckpt",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """A score after a time: a line of the results file."""

    toolkit: str  # a name of `TOOLKITS`
    version: str
    minutes: float  # the limit
    seed: int
    bleu: float
    seconds: float  # from the start of the command to its end, or to its checkpoint
    updates: int
    cpu: str
    threads: int
    date: str
    load: float  # average number of running processes in the last minute of the training


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text; of NAME.gz if there is no file NAME."""
    if path.exists():
        return _lines(path.read_bytes())
    compressed = path.with_name(f"{path.name}.gz")
    return _lines(gzip.decompress(compressed.read_bytes()))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines of text."""
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def _lines(text: bytes) -> list[str]:
    """Split a text at line feeds; a line feed at the end adds no line."""
    lines = text.decode().split("\n")  # str.splitlines also splits at other characters
    if not lines[-1]:
        lines.pop()
    return lines


def read_results(path: Path) -> list[Result]:
    """Return the results of a file; an empty list if there is no file."""
    if not path.exists():
        return []
    return [Result(**json.loads(line)) for line in read_lines(path)]


def missing(
    results: Iterable[Result], name: str, seed: int, minutes: Iterable[float]
) -> list[float]:
    """Return the limits that have no result yet, in ascending order."""
    finished = set()
    for result in results:
        if result.toolkit == name and result.seed == seed:
            finished.add(result.minutes)
    return sorted({*minutes} - finished)


def newest(checkpoints: Mapping[Path, float], limit: float) -> Path | None:
    """Return the newest checkpoint whose last write is not after ``limit``; None if there is none.

    Args:
        checkpoints: Path -> time of the last write.
        limit: Time.
    """
    in_time = (path for path, written in checkpoints.items() if written <= limit)
    return max(in_time, key=checkpoints.__getitem__, default=None)


def cpu_name() -> str:
    """Return the name of the processor, with the numbers that tell its generation."""
    path = Path("/proc/cpuinfo")
    facts = {}
    if path.exists():
        text = path.read_text(encoding="utf-8")
        facts = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    if not facts:
        return "?"
    return "{model name}, family {cpu family}, model {model}".format_map(facts)


def prepare(data: Path, work: Path) -> Any:
    """Write the texts, their pieces and the vocabulary to ``work``; return the tokenizer."""
    sides = product(PARTS, ("de", "en"))
    names = [f"{part}.{side}" for part, side in sides]
    for folder in ("text", "pieces", "outputs"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        lines = read_lines(data / name)
        write_lines(work / "text" / name, lines)
    command = _nmt(work, "prepare", {})
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    model = str(work / "prepared" / "tokenizer" / "joint.model")
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=model)
    for name in names:
        lines = read_lines(work / "text" / name)
        pieces_of_lines = tokenizer.encode(lines, out_type=str)
        write_lines(work / "pieces" / name, map(" ".join, pieces_of_lines))

    def is_special(piece_id: int) -> bool:
        return tokenizer.is_control(piece_id) or tokenizer.is_unknown(piece_id)

    piece_ids = filterfalse(is_special, range(tokenizer.get_piece_size()))
    vocabulary = list(map(tokenizer.id_to_piece, piece_ids))
    write_lines(work / "vocabulary.txt", vocabulary)
    # Binarized pieces and vocabulary of an earlier call.
    shutil.rmtree(work / "fairseq", ignore_errors=True)
    return tokenizer


def execute(command: Sequence[str], log: Path, max_seconds: float) -> float | None:
    """Run a command, and end it with all its processes at a limit.

    Args:
        command: Program and arguments.
        log: File for standard output and standard error.
        max_seconds: The limit.

    Returns:
        The seconds that the command took; None if the limit ended it.

    Raises:
        RuntimeError: The command failed.
    """
    start = time.time()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, cwd=ROOT,
                                   stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            exit_code = process.wait(max_seconds)
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if exit_code is None:
        return None
    if exit_code != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{command[0]} ended with exit code {exit_code}:\n{tail}")
    return time.time() - start


def train_and_score(
    run: Run, name: str, limits: Sequence[float], tokenizer: Any
) -> Iterator[Result]:
    """Train once; yield a result for each limit that has a checkpoint.

    Args:
        run: The training.
        name: The toolkit, a name of `TOOLKITS`.
        limits: Minutes. Several only if the toolkit writes checkpoints.
        tokenizer: Joins the pieces of a translation.

    Raises:
        RuntimeError: The training failed.
    """
    toolkit = TOOLKITS[name]
    if toolkit.environment:
        query = f"import importlib.metadata as m; print(m.version('{toolkit.package}'))"
        version, *_ = run.output_of(run.python, "-c", query)
    else:
        version, *_ = run.output_of("git", "rev-parse", "--short", "HEAD")
    references = read_lines(run.work / "text" / "test_2016_flickr.en")
    command = toolkit.train(run)
    log = run.folder / "log.txt"
    start = time.time()
    max_seconds = 3 * run.seconds + 300
    if toolkit.checkpoints:
        max_seconds = run.seconds + GRACE_SECONDS
    training_seconds = execute(command, log, max_seconds)
    # The training of a toolkit with checkpoints has no end of its own.
    if training_seconds is None and not toolkit.checkpoints:
        raise RuntimeError(f"the training did not end within {max_seconds:.0f} seconds")
    load, *_ = os.getloadavg()  # average of the last minute
    for minutes in limits:
        if toolkit.checkpoints:
            paths = run.folder.glob(toolkit.checkpoints)
            files = {path: path.stat().st_mtime for path in paths}
            limit = start + minutes * 60
            checkpoint = newest(files, limit)
            if checkpoint is None:
                print(f"{name}: no checkpoint after {minutes:g} minutes; lower --save-every")
                continue
            seconds = files[checkpoint] - start
            # The last number in the name of a checkpoint counts its updates.
            *_, last_number = re.findall(r"\d+", checkpoint.stem)
            updates = int(last_number)
        else:
            assert training_seconds is not None
            seconds = training_seconds
            checkpoint = run.folder
            *_, last_line = read_lines(log)
            updates = json.loads(last_line)["step"]
        try:
            lines = toolkit.translate(run, checkpoint)
        except RuntimeError as error:  # another checkpoint may be better
            print(f"{name}, {minutes:g} minutes: {error}", flush=True)
            continue
        if name != "nmt":  # which writes text, the others write pieces
            lines = [tokenizer.decode(line.split()) for line in lines]
        output = run.work / "outputs" / f"{name}.{run.seed}.{minutes:g}.en"
        write_lines(output, lines)
        bleu = sacrebleu.corpus_bleu(lines, [references])
        yield Result(
            toolkit=name,
            version=version,
            minutes=minutes,
            seed=run.seed,
            bleu=round(bleu.score, 2),
            seconds=round(seconds, 1),
            updates=updates,
            cpu=cpu_name(),
            threads=run.threads,
            date=time.strftime("%Y-%m-%d"),
            load=round(load, 1),
        )


def race(options: argparse.Namespace) -> None:
    """Train and score what the results file lacks."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also ends the training
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: options.threads])
    num_threads = str(options.threads)
    os.environ["OMP_NUM_THREADS"] = num_threads
    os.environ["MKL_NUM_THREADS"] = num_threads
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # JoeyNMT loads its own checkpoints
    work = options.work.resolve()
    home = Path(os.environ.get("PEERS_HOME", "peers")).resolve()
    tokenizer = prepare(options.data, work)
    for seed, name in product(options.seed, options.toolkit):
        toolkit = TOOLKITS[name]
        python = Path(sys.executable)
        if toolkit.environment:
            python = home / toolkit.environment / "bin" / "python"
        if not python.exists():
            print(f"{name}: skipped, because {python} does not exist")
            continue
        results = read_results(options.results)
        limits = missing(results, name, seed, options.minutes)
        # The limits of each training, in minutes.
        trainings = [[limit] for limit in limits]
        if toolkit.checkpoints and limits:
            trainings = [limits]
        for training_limits in trainings:
            max_minutes = training_limits[-1]
            folder = work / "runs" / f"{name}.{seed}.{max_minutes:g}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            # Smaller batches make more updates, but the disk has no room for more checkpoints.
            save_every = options.save_every * 4096 // toolkit.settings.max_tokens
            run = Run(
                settings=toolkit.settings,
                work=work,
                folder=folder,
                python=python,
                seed=seed,
                seconds=60 * max_minutes,
                threads=options.threads,
                save_every=save_every,
            )
            try:
                for result in train_and_score(run, name, training_limits, tokenizer):
                    line = json.dumps(asdict(result))
                    print(line, flush=True)
                    with options.results.open("a", encoding="utf-8") as file:
                        file.write(f"{line}\n")
            except RuntimeError as error:  # other trainings can still race
                print(f"{name}: {error}", flush=True)
            if not options.keep:
                shutil.rmtree(folder)


def curves_of(results: Sequence[Result]) -> list[Curve]:
    """Group results by toolkit, in the order of `TOOLKITS`, and by minutes.

    The color of a toolkit does not depend on which other ones have results.
    """
    curves = []
    for color, (name, toolkit) in enumerate(TOOLKITS.items()):
        scores: dict[float, list[float]] = {}  # minutes -> BLEU of each seed
        for result in sorted(results, key=lambda result: result.minutes):
            if result.toolkit == name:
                scores.setdefault(result.minutes, []).append(result.bleu)
        if scores:
            curves.append(Curve(toolkit.label, color, name == "nmt", scores))
    return curves


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table of the means and half the range of the seeds, and its conditions."""
    limits = sorted({result.minutes for result in results})
    headers = [f"{limit:g} min" for limit in limits]
    lines = [f"| toolkit | {' | '.join(headers)} |"]
    lines.append("|---" * (len(limits) + 1) + "|")
    for curve in curves_of(results):
        cells = [curve.label]
        for limit in limits:
            scores = curve.scores.get(limit, ())
            cell = ""
            if scores:
                cell = f"{statistics.mean(scores):.1f}"
            if len(scores) > 1:
                score_range = max(scores) - min(scores)
                cell += f" ± {score_range / 2:.1f}"
            cells.append(cell)
        lines.append(f"| {' | '.join(cells)} |")
    conditions = set()
    for result in results:
        conditions.add(f"{result.cpu}, {result.threads} threads, {result.date}")
        conditions.add(f"{result.toolkit}: version {result.version}")
    loads = [result.load for result in results]
    conditions.add(f"load at the end of a training: {min(loads):g} to {max(loads):g}")
    late_trainings = []
    for result in results:
        if result.seconds > 60 * result.minutes:
            time_taken = f"{result.seconds:.0f} seconds, limit {result.minutes:g} minutes"
            late_trainings.append(f"{result.toolkit}, seed {result.seed}: {time_taken}")
    return "\n".join([*lines, "", *sorted(conditions), *late_trainings])


def main() -> None:
    """Run the race, or draw its results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train and score what the results file lacks")
    run.add_argument("--data", type=Path, required=True, help="folder of train.de, val.de, ...")
    run.add_argument("--results", type=Path, required=True, help="JSON Lines file to add to")
    run.add_argument("--work", type=Path, default=Path("runs/race"), help="folder of other files")
    run.add_argument("--toolkit", nargs="+", choices=TOOLKITS, default=[*TOOLKITS])
    run.add_argument("--minutes", nargs="+", type=float, default=[2.5, 5, 10])
    run.add_argument("--seed", nargs="+", type=int, default=[1, 2])
    run.add_argument("--threads", type=int, default=2, help="threads, and CPU cores")
    run.add_argument(
        "--save-every", type=int, default=25, help="batches of 4096 tokens between two checkpoints"
    )
    run.add_argument("--keep", action="store_true", help="keep the folder of each training")
    drawing = commands.add_parser("draw", help="write an SVG, print a table")
    drawing.add_argument("results", type=Path)
    drawing.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "run":
        race(options)
    else:
        results = read_results(options.results)
        chart = draw(curves_of(results))
        options.output.write_text(chart, encoding="utf-8")
        print(table(results))


if __name__ == "__main__":
    main()
