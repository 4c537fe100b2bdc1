"""Every command: its options, its function, and the text of its help.

Only this module names extras. Examples and descriptions are here because they contain flags.
"""

from __future__ import annotations

from nmt.cli.builder import Entry

# Words after ``nmt`` -> the command.
COMMANDS = {
    "init": Entry(
        "nmt.extras.planning.options:InitOptions",
        "nmt.extras.planning.init:init",
        """Split two aligned files and write a configuration for them.

        Holds out up to 1,000 sentence pairs for validation and 1,000 for testing, and removes their
        sentences from the training text. Hyperparameters are chosen for the size of the corpus.
        Prints the next command.""",
        """
nmt init corpus.en corpus.de
nmt init corpus.en corpus.de --valid dev.en dev.de --test test.en test.de -o experiments/own-sets
nmt init english.txt.gz german.txt.gz --languages en-de -o experiments/en-de""",
    ),
    "prepare": Entry(
        "nmt.commands.options:PrepareOptions",
        "nmt.commands.prepare:prepare",
        """Filter and tokenize the training data; print a report.

        `nmt train` prepares the data too, so this step is optional. If the configuration and the
        corpora have not changed, the data are not prepared again. To continue after an
        interruption, run the same command.""",
        """
nmt prepare configs/demo.yaml
nmt prepare configs/demo.yaml --set tokenizer.vocab_size=500 --report-only --report-dir report
nmt prepare configs/demo.yaml --verify
zcat pairs.tsv.gz | nmt prepare en-de/config.yaml --set data.train='[{tsv: -}]' --workers 2""",
    ),
    "augment": Entry(
        "nmt.commands.options:AugmentOptions",
        "nmt.commands.augment:augment",
        """Translate monolingual text into additional training data (back-translation).

        The text becomes the target side of the new corpus; with --forward, the source side.
        The search is repeated for suspicious translations (loops, implausible length). If the
        second search fails too, the line is dropped and counted. To continue after an interruption,
        run the same command.""",
        """
nmt augment news.en --model runs/demo -o news-bt
nmt augment news.en.gz --model runs/demo -o news-sampled --sample --seed 2
nmt augment news.en --model runs/demo -o news-ft --forward""",
    ),
    "average": Entry(
        "nmt.commands.options:AverageOptions",
        "nmt.commands.average:average",
        """Average the weights of several checkpoints of a run into one model.

        The average of late checkpoints often translates better than each single checkpoint, at the
        same speed. Only checkpoints that the run has kept can be averaged: set training.keep_last
        (or keep_best) before training. You can use FOLDER like a run folder. FOLDER/average.json
        lists the averaged checkpoints. Prints FOLDER.""",
        """
nmt average runs/demo -o models/average
nmt translate "$(nmt average runs/demo --last 2 -q -o models/last)" in.en > out.de""",
    ),
    "export": Entry(
        "nmt.extras.exchange.options:ExportOptions",
        "nmt.extras.exchange.export:export",
        """Export a model to a self-contained folder.

        FOLDER contains weights, configuration, tokenizer, a manifest with the hash of every file,
        and a model card (README.md). You can use it like a run folder. Prints FOLDER.""",
        """
nmt export runs/demo --to safetensors -o models/demo
nmt export runs/demo --to ctranslate2 --quantization int8 -o models/demo-int8""",
    ),
    "import": Entry(
        "nmt.extras.exchange.options:ImportOptions",
        "nmt.extras.exchange.import_model:import_model",
        """Import a pretrained Marian or OPUS-MT model.

        You can use FOLDER like a run folder: translate, evaluate, score, export, or fine-tune
        (training.init_from). To fine-tune, copy the model section of FOLDER/config.yaml into your
        configuration. Decoding follows Marian's rules. For faster translation on CPUs, run `nmt
        export FOLDER --to ctranslate2`. Prints FOLDER.""",
        """
nmt import opus-mt-en-de -o models/en-de
nmt import marian/model.npz --languages en-de -o models/en-de
nmt train my.yaml --set training.init_from=models/en-de""",
    ),
    "translate": Entry(
        "nmt.commands.options:TranslateOptions",
        "nmt.commands.translate:translate",
        """Translate text: N lines in, N lines out, in order, blank lines included.

        Reads standard input and writes standard output unless you pass files. Lines are cut after
        50,000 characters, with a warning.""",
        """
nmt translate runs/demo configs/demo.sample.en > out.de
echo "Anna sold a red lamp." | nmt translate runs/demo --beam-size 1
nmt translate runs/demo -i in.en.gz --format json --n-best 3
nmt translate runs/demo -i in.en --sample --top-p 0.9 --n-best 5
torchrun --nproc-per-node 4 -m nmt translate runs/demo -i in.en -o out.de""",
    ),
    "train": Entry(
        "nmt.commands.options:TrainOptions",
        "nmt.commands.train:train",
        """Train a model: prepare the data if needed, resume from the last checkpoint.

        On Ctrl-C (SIGINT) or SIGTERM, training finishes the current update, saves a checkpoint, and
        exits with code 130 or 143. To resume, run the same command. A second Ctrl-C stops at once.
        To continue a completed run, raise its budget, for example `--set
        training.max_minutes=60`.""",
        """
nmt train configs/demo.yaml
nmt train configs/demo.yaml --set training.max_minutes=10 --run-dir runs/longer
nmt train configs/base.yaml --dry-run
nmt train configs/base.yaml --devices 4""",
    ),
    "score": Entry(
        "nmt.commands.options:ScoreOptions",
        "nmt.commands.score:score",
        """Score existing translations: log probability per token.

        Writes one score per sentence pair, in order. The score is the one that beam search would
        give to the translation; 0 is the maximum. If source and translation are both blank, the
        score is 0. A blank translation scores the probability of an immediate end of sentence. A
        blank source, or a pair too long for the model, scores -inf (JSON: null).""",
        """
nmt score runs/demo --source configs/demo.sample.en --target configs/demo.sample.de > scores
paste test.en test.de | nmt score runs/demo --format json
nmt score runs/demo --with runs/longer --source test.en --target test.de --sum -o scores.gz""",
    ),
    "evaluate": Entry(
        "nmt.commands.options:EvaluateOptions",
        "nmt.commands.evaluate:evaluate",
        """Score models or translations with BLEU, chrF, chrF++ or TER.

        Without --test, a model is scored on all test sets of its configuration. Exit code 6 means
        that a quality gate failed: --fail-under or --fail-if-worse.""",
        """
nmt evaluate runs/demo
nmt evaluate out.de configs/demo.sample.de
nmt evaluate --hypothesis new.de --reference test.de --baseline old.de --fail-if-worse
nmt evaluate runs/longer --baseline runs/demo --report report.json --report comment.md
nmt translate runs/demo test.en | nmt evaluate --hypothesis - --reference test.de
nmt evaluate runs/demo runs/longer -t wmt14 -t wmt17 -l en-de --fail-under bleu=27""",
    ),
    "report": Entry(
        "nmt.extras.analysis.runs:ReportOptions",
        "nmt.extras.analysis.runs:report",
        """Show the learning curves of one run or several runs as an HTML page.

        The page of several runs compares results, settings and curves. `nmt train` writes
        RUN/report.html by itself; this command writes it again. Pages need no network. Prints the
        path of the page.""",
        """
nmt report runs/demo
nmt report runs/demo runs/longer -o runs.html""",
    ),
    "serve": Entry(
        "nmt.extras.serving.options:ServeOptions",
        "nmt.extras.serving.options:serve",
        """Serve models over HTTP: JSON API, LibreTranslate API, web page.

        In float32, batching never changes a translation: each client gets the same result as if it
        were alone. On SIGTERM, /health/ready returns 503, pending requests are finished, and the
        exit code is 0. Needs the extra `serve`; `nmt doctor` prints how to install it.""",
        """
nmt serve runs/demo
nmt serve best=runs/demo --host 0.0.0.0 --api-keys keys.txt --allow-host translate.example.org
curl localhost:8080/v1/translate -H 'Content-Type: application/json' -d '{"texts": ["Hello."]}'""",
    ),
    "push": Entry(
        "nmt.extras.exchange.options:PushOptions",
        "nmt.extras.exchange.hub:push",
        """Upload a model folder to the Hugging Face Hub.

        The files are checked against their manifest first. Set HF_TOKEN to your access token. Set
        HF_ENDPOINT to use another server. Prints the URL of the commit.""",
        """
nmt evaluate models/demo --json > scores.json
nmt push models/demo hub:my-org/mine --license cc-by-4.0 --scores scores.json --dry-run""",
    ),
    "pull": Entry(
        "nmt.extras.exchange.options:PullOptions",
        "nmt.extras.exchange.hub:pull",
        """Download a model folder from the Hugging Face Hub.

        Every file is checked against the manifest. Only file types that cannot contain code are
        read. Prints the name with the commit, to download exactly the same model later.""",
        """
nmt pull hub:my-org/mine@3f2a1c9 -o models/mine""",
    ),
    "config schema": Entry(
        "nmt.commands.options:SchemaOptions",
        "nmt.commands.config:schema",
        "Print the JSON schema of configuration files, for editors.",
        "nmt config schema > nmt.schema.json",
    ),
    "config keys": Entry(
        "nmt.commands.options:KeysOptions",
        "nmt.commands.config:keys",
        "Describe configuration keys: default, allowed values, meaning.",
        """
nmt config keys model.dropout
nmt config keys > KEYS.md""",
    ),
    "config show": Entry(
        "nmt.commands.options:ShowOptions",
        "nmt.commands.config:show",
        "Print a configuration with all defaults and presets filled in.",
        """
nmt config show configs/demo.yaml --set model.preset=modern
nmt config show configs/base.yaml > mine.yaml""",
    ),
    "config check": Entry(
        "nmt.commands.options:CheckOptions",
        "nmt.commands.config:check",
        "Check configuration files; report all problems with line numbers.",
        "nmt config check configs/demo.yaml mine.yaml",
    ),
    "doctor": Entry(
        "nmt.extras.planning.options:DoctorOptions",
        "nmt.extras.planning.doctor:doctor",
        """Check the installation and the hardware.

        Also trains and translates for a few seconds. Each problem is printed with its fix. If there
        is a problem, the exit code is 1.""",
        "nmt doctor",
    ),
    "inspect": Entry(
        "nmt.extras.inspection.options:InspectOptions",
        "nmt.extras.inspection.command:inspect",
        """Look inside a model: attention, decoding, every number.

        Layers and heads are numbered from 1. HTML pages are self-contained and work offline.""",
        """
nmt inspect runs/demo --source "Anna sold a red lamp." -o page.html --open
nmt inspect runs/demo attention --source "Anna sold a red lamp." --layer 2 -o figure.svg
nmt inspect configs/base.yaml parameters
nmt inspect --worked-examples""",
    ),
}
# Headings of ``nmt --help`` -> their commands.
GROUPS = {
    "Data": ("init", "prepare", "augment"),
    "Train": ("train", "average"),
    "Use": ("translate", "score", "serve"),
    "Measure": ("evaluate", "report", "inspect"),
    "Models": ("import", "export", "pull", "push"),
    "Setup": ("config", "doctor"),
}
# Commands with subcommands -> their help.
PARENTS = {"config": "Print, check and explain configurations."}
# Commands of other tools, with hyphens -> the command to type here.
FOREIGN_COMMANDS = {
    **dict.fromkeys(("decode", "generate", "interactive"), "translate"),
    "test": "evaluate",
    **dict.fromkeys(("publish", "upload"), "push"),
    "download": "pull",
    "average-checkpoints": "average",
    "build-vocab": "prepare",
    **dict.fromkeys(("finetune", "fine-tune"), "train CONFIG --set training.init_from=RUN"),
    "completion": "--install-completion",
    **{name: f"config {name}" for name in ("check", "show", "schema", "keys")},
}
