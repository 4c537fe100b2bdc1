"""Every command: its options, its function, and the words of its help.

The one place that names extras. Examples and descriptions stand here, because they spell flags.
"""

from __future__ import annotations

from nmt.cli.builder import Entry

# By the words behind ``nmt``.
COMMANDS = {
    "init": Entry(
        "nmt.extras.planning.options:InitOptions",
        "nmt.extras.planning.init:init",
        """Split two aligned files, and write a configuration for them.

        The values of the configuration depend on the size of the text. Draws up to 1,000 pairs each
        for validation and testing, keeps their sentences out of the training text, and prints the
        next command.""",
        """
nmt init corpus.de corpus.en
nmt init corpus.de corpus.en --valid dev.de dev.en --test test.de test.en
nmt init deutsch.txt.gz english.txt.gz --languages de-en -o experiments/de-en""",
    ),
    "prepare": Entry(
        "nmt.commands.options:PrepareOptions",
        "nmt.commands.prepare:prepare",
        """Filter and tokenize corpora into a folder; print a report.

        Nothing is done where the configuration and the corpora have not changed. After an
        interruption, the same command continues.""",
        """
nmt prepare configs/demo.yaml
nmt prepare configs/demo.yaml --set tokenizer.vocab_size=2000 --report-only
nmt prepare configs/demo.yaml --report-only --report report
nmt prepare configs/demo.yaml --workers 8
nmt prepare configs/demo.yaml --verify
zcat pairs.tsv.gz | nmt prepare configs/demo.yaml --set data.train='[{tsv: -}]'
nmt prepare configs/demo.yaml --scheduler tcp://10.0.0.5:8786""",
    ),
    "augment": Entry(
        "nmt.commands.options:AugmentOptions",
        "nmt.commands.augment:augment",
        """Make pairs for training by translating text of one language.

        By default the text becomes the target (back-translation). What the guard still finds wrong
        after its second search is dropped and counted. The same command resumes by shards.""",
        """
nmt augment news.en --with runs/en-de -o news-bt
nmt augment news.en.gz --with runs/en-de -o news-bt --sample --seed 2
nmt augment news.de --with runs/teacher -o news-ft --forward""",
    ),
    "average": Entry(
        "nmt.commands.options:AverageOptions",
        "nmt.commands.average:average",
        """Average the weights of checkpoints of a run into one model.

        The mean of late checkpoints often translates better than each of them, at the same speed.
        Only checkpoints that the run has kept can be averaged: set training.keep_last (or
        keep_best) before training. FOLDER works wherever a run folder does: `nmt translate FOLDER`,
        `nmt evaluate FOLDER`. Its average.json lists the averaged checkpoints. Prints FOLDER.""",
        """
nmt average runs/base -o models/base
nmt average runs/base --best 5 -o models/base-best5
nmt average runs/base --step 9000 --step 9500 --step 10000 -o models/base-end
nmt translate "$(nmt average runs/base --last 5 -q -o models/base)" < in.de > out.en""",
    ),
    "export": Entry(
        "nmt.extras.exchange.options:ExportOptions",
        "nmt.extras.exchange.export:export",
        """Write a model as a folder that is complete in itself.

        FOLDER holds weights, configuration, tokenizer, a manifest with the hash of every file, and
        a model card (README.md). It works wherever a run folder does: `nmt translate FOLDER`, `nmt
        evaluate FOLDER`. Prints FOLDER.""",
        """
nmt export runs/base --to safetensors -o models/base
nmt export runs/base --to ctranslate2 --quantization int8 -o models/base-int8
nmt translate models/base-int8 < in.de > out.en""",
    ),
    "import": Entry(
        "nmt.extras.exchange.options:ImportOptions",
        "nmt.extras.exchange.import_model:import_model",
        """Make a model folder of a model that another system trained.

        FOLDER works wherever a run folder does: translate, evaluate, score, export, fine-tune
        (training.init_from). Models of Marian are searched as Marian searches them; `nmt export
        FOLDER --to ctranslate2` makes a folder that is faster on CPUs. Prints FOLDER.""",
        """
nmt import opus-mt-en-de -o models/en-de
nmt import marian/model.npz --languages en-de -o models/en-de
nmt translate models/en-de < in.en > out.de
nmt train my.yaml --set training.init_from=models/en-de""",
    ),
    "translate": Entry(
        "nmt.commands.options:TranslateOptions",
        "nmt.commands.translate:translate",
        """Translate lines: N in, N out, in order, blank lines kept.

        Reads standard input and writes standard output unless files are named. A line of more than
        50,000 characters is translated up to there, with a warning.""",
        """
nmt translate runs/demo in.de > out.en
echo "Guten Morgen!" | nmt translate runs/demo --beam-size 1
nmt translate runs/demo -i in.de.gz --format json --n-best 3
nmt translate runs/demo -i in.de --sample --top-p 0.9 --n-best 5
torchrun --nproc-per-node 4 -m nmt translate runs/demo -i in.de -o out.en""",
    ),
    "train": Entry(
        "nmt.commands.options:TrainOptions",
        "nmt.commands.train:train",
        """Train a model. Prepares the data if needed; resumes from the last checkpoint.

        The first Ctrl-C (SIGINT) or SIGTERM lets the current update finish, saves, and exits with
        130 or 143; the same command resumes. A second Ctrl-C ends at once. A run that has ended
        goes on with a larger budget, such as `--set training.max_minutes=60`.""",
        """
nmt train configs/demo.yaml
nmt train configs/demo.yaml --set training.max_minutes=10 --run-dir runs/longer
nmt train configs/base.yaml --dry-run
nmt train configs/base.yaml --devices 4
torchrun --nproc-per-node 4 -m nmt train configs/base.yaml""",
    ),
    "score": Entry(
        "nmt.commands.options:ScoreOptions",
        "nmt.commands.score:score",
        """Score given translations: log probability per token.

        Writes one line for each pair, in order: the score that the search would show for that
        translation, 0 at best. Blank to blank is 0; a blank translation of a line is the
        probability of ending at once; a translation of a blank line, and a pair too long for the
        model, is -inf (JSON: null).""",
        """
nmt score runs/demo --source test.en --target test.de > scores
paste in.en out.de | nmt score runs/demo --format json
nmt score runs/demo --with runs/second --source in.en.gz --target in.de.gz --sum -o scores.gz""",
    ),
    "evaluate": Entry(
        "nmt.commands.options:EvaluateOptions",
        "nmt.commands.evaluate:evaluate",
        """Score models or files with BLEU, chrF, chrF++ or TER.

        Exit code 6 means that a score is below --fail-under, or significantly worse than the
        baseline's with --fail-if-worse.""",
        """
nmt evaluate runs/demo
nmt evaluate runs/base -t wmt14 -l en-de --fail-under bleu=27
nmt evaluate out.en test.en
nmt evaluate --hypothesis out.en --reference test.en --baseline old.en --fail-if-worse
nmt evaluate runs/new --baseline runs/old --report report.json --report comment.md
nmt evaluate runs/a runs/b -t wmt14 -t wmt17 -l en-de
nmt translate runs/demo < in.de | nmt evaluate --hypothesis - --reference in.en""",
    ),
    "serve": Entry(
        "nmt.extras.serving.options:ServeOptions",
        "nmt.extras.serving.options:serve",
        """Serve models over HTTP: a JSON API, LibreTranslate's API, and a page.

        Requests of all clients share batches. On SIGTERM, /health/ready answers 503, running
        requests are answered, and the exit code is 0. Needs `pip install -e '.[serve]'`.""",
        """
nmt serve runs/demo
nmt serve best=runs/base --host 0.0.0.0 --api-keys keys.txt --allow-host translate.example.org
curl localhost:8080/v1/translate -H 'Content-Type: application/json' -d '{"texts": ["Hello."]}'""",
    ),
    "push": Entry(
        "nmt.extras.exchange.options:PushOptions",
        "nmt.extras.exchange.hub:push",
        """Upload a model folder to a hub of Hugging Face.

        Files are compared with their manifest beforehand. Set HF_TOKEN to your access token, and
        HF_ENDPOINT to use another hub. Prints the address of the commit.""",
        """
nmt export runs/mine --to safetensors -o models/mine
nmt evaluate models/mine -t wmt14 -l en-de --json > scores.json
nmt push models/mine hub:my-org/mine --license cc-by-4.0 --scores scores.json --dry-run""",
    ),
    "pull": Entry(
        "nmt.extras.exchange.options:PullOptions",
        "nmt.extras.exchange.hub:pull",
        """Download a model folder from a hub of Hugging Face.

        Every file is compared with the manifest; only files that cannot hold code are read. Prints
        the name with the commit, by which the same model can be had again.""",
        """
nmt pull hub:my-org/mine -o models/mine
nmt pull hub:my-org/mine@3f2a1c9 -o models/mine""",
    ),
    "config schema": Entry(
        "nmt.commands.options:SchemaOptions",
        "nmt.commands.config:schema",
        "Print the JSON schema of a configuration, for editors.",
        "nmt config schema > nmt.schema.json",
    ),
    "config keys": Entry(
        "nmt.commands.options:KeysOptions",
        "nmt.commands.config:keys",
        "Print keys with defaults, bounds and meaning, as Markdown.",
        "nmt config keys model",
    ),
    "config show": Entry(
        "nmt.commands.options:ShowOptions",
        "nmt.commands.config:show",
        "Print the resolved configuration, defaults and presets included.",
        "nmt config show configs/demo.yaml --set model.preset=modern",
    ),
    "config check": Entry(
        "nmt.commands.options:CheckOptions",
        "nmt.commands.config:check",
        "Check YAML configuration files; report all problems of all files.",
        "nmt config check configs/*.yaml",
    ),
    "doctor": Entry(
        "nmt.extras.planning.options:DoctorOptions",
        "nmt.extras.planning.doctor:doctor",
        """Check the installation and the machine.

        Trains and translates for a few seconds, too. A line that reports a problem is followed by
        its fix; then the exit code is 1.""",
        "nmt doctor",
    ),
    "inspect": Entry(
        "nmt.extras.inspection.options:InspectOptions",
        "nmt.extras.inspection.command:inspect",
        """Look inside a model: arithmetic, attention, decoding.

        Layers and heads are numbered from 1. A page is one file that needs no network.""",
        """
nmt inspect runs/demo --source "Anna sold a red lamp." -o page.html --open
nmt inspect runs/demo attention --source "Anna sold a red lamp." --layer 2 --head 1,3
nmt inspect runs/demo attention --source "Anna sold a red lamp." -o figure.svg
nmt inspect configs/base.yaml parameters
nmt inspect --worked-examples""",
    ),
}
# Headings of ``nmt --help``, and what stands below them.
GROUPS = {
    "Data": ("init", "prepare", "augment"),
    "Train": ("train", "average"),
    "Use": ("translate", "score", "serve"),
    "Measure": ("evaluate", "inspect"),
    "Models": ("import", "export", "pull", "push"),
    "Setup": ("config", "doctor"),
}
# Commands that have commands, and their help.
PARENTS = {"config": "Show, check and document configurations."}
# What others call commands, with hyphens -> ours, perhaps with all that is to be typed.
FOREIGN_COMMANDS = {
    **dict.fromkeys(("decode", "generate", "interactive"), "translate"),
    "test": "evaluate",
    "publish": "push",
    "upload": "push",
    "download": "pull",
    "average-checkpoints": "average",
    "build-vocab": "prepare",
    **dict.fromkeys(("finetune", "fine-tune"), "train CONFIG --set training.init_from=RUN"),
    "completion": "--install-completion",
    **{name: f"config {name}" for name in ("check", "show", "schema", "keys")},
}
