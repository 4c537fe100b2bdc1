"""Whole command lines and configurations of other toolkits, typed at nmt.

The flags and keys are those of the documentation of each toolkit.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

import nmt as nmt_api
from nmt.cli.app import app
from nmt.config.run import RunConfig
from nmt.errors import ConfigError, NmtError

api: Any = nmt_api  # Its wrong calls would be wrong types, too.

CONFIG = """
name: mine
source_language: de
target_language: en
data: {train: [{source: in.de, target: in.en}], valid: {source: in.de, target: in.en}}
model: {preset: tiny}
training: {max_steps: 2}
"""
FAIRSEQ = """
--share-decoder-input-output-embed --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0
--lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001
--max-tokens 4096 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --eval-bleu
--eval-bleu-detok moses --eval-bleu-args '{"beam": 5, "max_len_a": 1.2}' --eval-bleu-remove-bpe
--best-checkpoint-metric bleu --maximize-best-checkpoint-metric --patience 10
--max-epoch 50 --update-freq 2 --seed 3
"""
MARIAN = """
--model model/model.npz --type transformer --train-sets in.de in.en --max-length 100
--vocabs vocab.spm vocab.spm --mini-batch-fit -w 9500 --mini-batch 1000 --maxi-batch 1000
--early-stopping 10 --cost-type=ce-mean-words --valid-freq 5000 --save-freq 5000 --disp-freq 500
--valid-metrics ce-mean-words perplexity --valid-sets dev.de dev.en --quiet-translation
--beam-size 6 --normalize=0.6 --log train.log --enc-depth 6 --dec-depth 3 --transformer-heads 8
--transformer-postprocess-emb d --transformer-dropout 0.1 --label-smoothing 0.1 --learn-rate 0.0003
--lr-warmup 16000 --lr-decay-inv-sqrt 16000 --optimizer-params 0.9 0.98 1e-09 --clip-norm 5
--tied-embeddings-all --devices 0 1 2 3 --sync-sgd --seed 1111 --exponential-smoothing
"""
SOCKEYE = """
--source in.de --target in.en --validation-source dev.de --validation-target dev.en --output model
--num-layers 6:6 --transformer-model-size 512 --transformer-attention-heads 8
--transformer-feed-forward-num-hidden 2048 --batch-type max-word --batch-size 5000
--optimizer adam --optimizer-betas 0.9:0.98 --initial-learning-rate 0.06325 --label-smoothing 0.1
--learning-rate-scheduler-type inv-sqrt-decay --learning-rate-warmup 4000 --embed-dropout 0.1
--transformer-dropout-attention 0.1 --decode-and-evaluate 500 --checkpoint-interval 500
--max-num-checkpoint-not-improved 60 --keep-last-params 60 --seed 1 --update-interval 8
--optimized-metric perplexity --shared-vocab --weight-tying-type src_trg_softmax
"""
TRANSLATION = """
--model_name_or_path t5-small --do_train --do_eval --source_lang en --target_lang ro
--source_prefix 'translate English to Romanian: ' --dataset_name wmt16 --dataset_config_name ro-en
--output_dir out --per_device_train_batch_size=4 --per_device_eval_batch_size=4
--overwrite_output_dir --predict_with_generate --num_train_epochs 3 --learning_rate 5e-5
--warmup_steps 500 --save_total_limit 2 --fp16 --seed 42 --label_smoothing_factor 0.1
--max_source_length 128 --num_beams 4 --lr_scheduler_type cosine --gradient_accumulation_steps 2
"""
# A line, some values of the YAML, and some of the words without a counterpart.
LINES = (
    (f"train data-bin/iwslt14 --arch transformer_iwslt_de_en --fp16 --save-dir ck {FAIRSEQ}",
     {"model.embeddings": "decoder-tied", "training.optimizer.kind": "adamw",
      "training.optimizer.betas": [0.9, 0.98], "training.schedule.peak_lr": 5e-4,
      "training.schedule.shape": "inverse_sqrt", "training.loss": "cross_entropy",
      "training.precision": "float16", "training.max_epochs": 50},
     ("--arch transformer_iwslt_de_en", "--eval-bleu-detok moses",
      '--eval-bleu-args {"beam": 5, "max_len_a": 1.2}')),
    (f"train {MARIAN}",
     {"data.train": [{"source": "in.de", "target": "in.en"}],
      "data.valid": {"source": "dev.de", "target": "dev.en"}, "batch.max_tokens": "auto",
      "model.decoder_layers": 3, "model.embeddings": "tied", "training.patience": 10},
     ("--lr-decay-inv-sqrt 16000", "--devices 0 1 2 3", "--vocabs vocab.spm vocab.spm",
      "--optimizer-params 0.9 0.98 1e-09", "-w 9500")),
    (f"train {SOCKEYE}",
     {"data.valid": {"source": "dev.de", "target": "dev.en"}, "model.encoder_layers": 6,
      "training.optimizer.betas": [0.9, 0.98], "training.validation.metric": "loss"},
     ("--batch-type max-word", "--batch-size 5000", "--weight-tying-type src_trg_softmax")),
    (f"train {TRANSLATION}",
     {"source_language": "en", "target_language": "ro", "batch.max_sentences": 4,
      "training.schedule.shape": "cosine", "training.keep_last": 2, "decoding.beam_size": 4},
     ("--model_name_or_path t5-small", "--do_train", "--per_device_eval_batch_size 4")),
    ("prepare --source-lang de --target-lang en --trainpref in --validpref dev --testpref te"
     " --destdir data-bin --workers 20 --joined-dictionary",
     {"source_language": "de", "tokenizer.joint": True}, ("--validpref dev", "--destdir data-bin")),
    ("train -m m.npz -t in.de in.en -v v.spm v.spm --seed 3 --after 20e", {"training.seed": 3},
     ("-m m.npz", "v.spm", "--after 20e")),
    ("train M/tokenizer --task translation_multi --max-update 9 --reset-meters",
     {"training.max_steps": 9}, ("M/tokenizer", "--task translation_multi", "--reset-meters")),
    ("train --do_train --bf16 True --output_dir out", {"training.precision": "bfloat16"},
     ("--do_train",)),
    ("prepare --source in.de --target in.en --output data-bin --seed 3", {"training.seed": 3},
     ("--output data-bin",)),
)  # fmt: skip


def nmt(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line), prog_name="nmt")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: dict[str, Path]) -> None:
    """A working directory with a model ``M``, a configuration and two lines of text."""
    monkeypatch.chdir(tmp_path)
    Path("M").symlink_to(runs["plain"])
    Path("c.yaml").write_text(CONFIG, "utf-8")
    Path("in.de").write_text("ein Hund\n", "utf-8")
    Path("in.en").write_text("a dog\n", "utf-8")


def settings_in(answer: str) -> dict[str, Any]:
    """The YAML of an answer, nested; every value is one that nmt accepts."""
    block = re.search(r"Set these values in it:\n((?:    .*\n)+)", answer)
    assert block is not None, answer
    values: dict[str, Any] = yaml.safe_load(block[1])
    return values


def value_at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def rest_of(answer: str) -> list[str]:
    """The words without a counterpart."""
    block = re.search(r"Without a counterpart:\n((?:    .*\n)+)", answer)
    return [line.strip().partition(" (here")[0] for line in block[1].splitlines()] if block else []


@pytest.mark.parametrize(("line", "values", "rest"), LINES)
def test_a_whole_line_is_answered_with_its_values_as_yaml(
    line: str, values: dict[str, Any], rest: tuple[str, ...]
) -> None:
    answer = nmt(line).stderr
    settings = settings_in(answer)
    assert {key: value_at(settings, key) for key in values} == values
    assert [words for words in rest if words not in rest_of(answer)] == []


def typed_line(answer: str) -> str | None:
    found = re.search(r"fix: Type: nmt (.*?)(?: \(|$)", answer, re.MULTILINE)
    return found[1] if found else None


@pytest.mark.parametrize("line", [
    f"train c.yaml {FAIRSEQ}",
    "train c.yaml -vs in.de -vt in.en --encoder transformer --num-layers 1:1",
    "train c.yaml -w 9500 --lr-decay-inv-sqrt 16000 --valid-metrics perplexity",
    "translate M --beam 5 --lenpen 0.6 --remove-bpe --input in.de --max-len-a 1.2 --max-len-b 10",
    "evaluate in.en -i in.en -l de-en -m bleu chrf ter -tok 13a -w 4 --chrf-word-order 2",
    "evaluate --sys in.en --ref in.en --metrics bleu --lc",
    "evaluate M --src in.de --ref in.en --beam 1",
    "score in.en in.en",
    "evaluate in.en in.en -i in.en --metrics chrf --chrf-beta 3",
    "translate --path M M/tokenizer --beam 5 --input in.de --buffer-size 1024",
    "translate -m M -v v.spm v.spm -b 6 -n 0.6 -w 4000 -i in.de",
    "translate --input in.de --models M --batch-size 64 --length-penalty-beta 0.0 --nbest-size 2",
    "average --inputs M --num-epoch-checkpoints 10 --output folder",
    # Command words of other tools, too.
    "fairseq-interactive data-bin --path M:M --beam 5 --lenpen 0.6 --input in.de --cpu",
    "fairseq-generate data-bin/iwslt --path M --sampling --sampling-topp 0.9 --temperature 0.7",
    "marian-decoder -m M -v v.spm v.spm -b6 -n0.6 -i in.de --alignment hard",
    "marian-scorer -m M --train-sets in.de in.en -v v.spm v.spm --summary",
    "sockeye-average -n 8 --strategy best --output avg M",
    "sockeye-score --source in.de --target in.en --model M --softmax-temperature 1.0",
    "sockeye.translate -m M M -i in.de --weights 0.5 0.5 --ensemble-mode linear",
    "sacrebleu --list",
    "sacrebleu in.en -i in.en -m bleu chrf ter --force",
    "joeynmt train c.yaml --skip-test",
    "onmt_translate -model M -src in.de -gpu -1 -replace_unk",
    "score in.de in.en --model M",
    "evaluate in.en in.en --metrics bleu",
    "evaluate in.en --ref in.en",
    "translate M -i=in.de --cpus 1",
    "config c.yaml",
])  # fmt: skip
def test_a_line_behind_type_is_accepted_without_the_words_that_nmt_does_not_have(line: str) -> None:
    answer = nmt(line).stderr
    typed = typed_line(answer)
    assert typed is not None, answer
    again = nmt(re.sub("^train", "config check", typed))
    assert again.exit_code == 0, (typed, again.stderr)
    assert not {words.split()[0] for words in rest_of(answer)} & {*shlex.split(typed)}


@pytest.mark.parametrize("line", [
    "translate -m A B -i in.de -o out --beam-size 5 --ensemble-mode linear",
    "translate data-bin/x --path checkpoint_best.pt --beam 5 --remove-bpe --gen-subset test",
    "translate -m model.npz -v vocab.spm vocab.spm -b 6 -n 0.6 --maxi-batch 100 -i in.de -o out",
    "translate M -s in.de -t in.en --beam 3",
    "translate M --src in.de --output in.en --beam 3",
    "translate M in.de in.en",
    "average M --output in.en --num-checkpoints 3",
    "init in.de in.en --src-lang xx --tgt gone.en",
    "train c.yaml --gpu 99",
    "train gone.yaml --lr 1",
    "train",
    "distill M",
    "train c.yaml c.yaml",
    "evaluate in.de",
    "evaluate --bleu --cpu",
    "evaluate --hypotheses in.en --references in.en --metrics bleu rouge1",
    "sacrebleu -t wmt17 -l en-de --echo src",
    "marian-vocab --max-size 32000",
    "joeynmt test c.yaml",
    "joeynmt translate c.yaml --ckpt best.ckpt",
    "translate M --input in.de --beam 4 --sampling",
    "translate M --gpu 0 --config decoder.yml",
    "export M --format onnx -o x",
    "pull opus-mt-en-de",
    "push M",
])  # fmt: skip
def test_a_line_that_would_fail_or_replace_a_file_is_not_proposed(line: str) -> None:
    assert typed_line(nmt(line).stderr) is None


JOEY = """
name: iwslt
data: {train: data/train, dev: data/dev, src: de, trg: en, level: bpe, lowercase: true}
testing: {beam_size: 5, max_output_length: 100}
training:
  random_seed: 42
  optimizer: adam
  adam_betas: [0.9, 0.999]
  scheduling: plateau
  learning_rate: 0.0003
  batch_size: 4096
  batch_type: token
  epochs: 100
  validation_freq: 1000
  use_cuda: true
  model_dir: models/iwslt
model:
  encoder: {type: transformer, num_layers: 6, num_heads: 4, hidden_size: 256, dropout: 0.3,
            ff_size: 1024, layer_norm: pre, embeddings: {embedding_dim: 256, dropout: 0.1}}
  decoder: {type: transformer, num_layers: 3, num_heads: 4, hidden_size: 256, dropout: 0.3,
            ff_size: 512}
"""
LOCOMOTIVE = """
{"from": {"name": "German", "code": "de"}, "to": {"name": "English", "code": "en"},
 "version": "1.0", "sources": [{"source": "opus://Ubuntu"}], "vocab_size": 32000,
 "save_checkpoint_steps": 250, "train_steps": 20000, "valid_steps": 500, "batch_size": 8192,
 "accum_count": 8, "enc_layers": 6, "dec_layers": 6, "heads": 8, "transformer_ff": 2048,
 "optim": "adam", "decay_method": "noam", "learning_rate": 2, "max_grad_norm": 0}
"""
MARIAN_YAML = """
type: transformer
train-sets: [in.de, in.en]
vocabs: [vocab.spm, vocab.spm]
enc-depth: 6
dec-depth: 6
transformer-heads: 8
learn-rate: 0.0003
lr-warmup: 16000
lr-decay-inv-sqrt: [16000]
optimizer-params: [0.9, 0.98, 1e-09]
tied-embeddings-all: true
valid-freq: 5000
early-stopping: 10
"""
FAIRSEQ_YAML = """
task: {_name: translation, data: data-bin, source_lang: de, target_lang: en}
criterion: {_name: label_smoothed_cross_entropy, label_smoothing: 0.1}
optimizer: {_name: adam, adam_betas: [0.9, 0.98]}
lr_scheduler: {_name: inverse_sqrt, warmup_updates: 4000}
dataset: {max_tokens: 4096}
optimization: {lr: [0.0005], max_update: 50000, clip_norm: 0.0, update_freq: [2]}
model: {_name: transformer, dropout: 0.3, share_all_embeddings: true}
"""
CONFIGURATIONS = (
    (JOEY,
     {"source_language": "de", "target_language": "en", "training.optimizer.kind": "adamw",
      "model.encoder_layers": 6, "model.decoder_layers": 3, "model.model_dim": 256,
      "model.decoder_ff_dim": 512, "model.norm_position": "pre", "model.dropout": 0.3,
      "training.device": "cuda", "training.seed": 42, "decoding.beam_size": 5},
     ('training.scheduling: "plateau"', "data.lowercase: true", "testing.max_output_length: 100")),
    (LOCOMOTIVE,
     {"source_language": "de", "target_language": "en", "training.max_steps": 20000,
      "training.schedule.shape": "noam", "model.ff_dim": 2048, "training.save_every": 250},
     ("batch_size: 8192", 'from.name: "German"')),
    (MARIAN_YAML,
     {"data.train": [{"source": "in.de", "target": "in.en"}], "model.embeddings": "tied",
      "training.schedule.peak_lr": 0.0003, "training.patience": 10},
     ("optimizer-params: [0.9, 0.98, 1e-09]", 'type: "transformer"')),
    (FAIRSEQ_YAML,
     {"source_language": "de", "training.schedule.peak_lr": 0.0005, "batch.max_tokens": 4096,
      "batch.gradient_accumulation": 2, "model.embeddings": "tied", "model.dropout": 0.3,
      "training.optimizer.betas": [0.9, 0.98], "training.max_steps": 50000},
     ('task.data: "data-bin"',)),
)  # fmt: skip


@pytest.mark.parametrize(("text", "values", "rest"), CONFIGURATIONS)
@pytest.mark.parametrize("command", ["train", "config check"])
def test_a_configuration_of_another_toolkit_is_answered_with_its_values(
    command: str, text: str, values: dict[str, Any], rest: tuple[str, ...]
) -> None:
    Path("theirs.yaml").write_text(text, "utf-8")
    answer = nmt(f"{command} theirs.yaml").stderr
    settings = settings_in(answer)
    assert {key: value_at(settings, key) for key in values} == values
    assert [words for words in rest if words not in rest_of(answer)] == []


def test_the_values_of_a_configuration_end_its_answer_where_options_are_refused_too() -> None:
    Path("theirs.yml").write_text(MARIAN_YAML, "utf-8")
    answer = nmt("train -c theirs.yml --after-batches 100 --tempdir /tmp").stderr
    assert settings_in(answer)["training"]["patience"] == 10
    assert "--tempdir /tmp" in answer


def test_the_files_of_a_training_corpus_are_not_taken_for_a_validation_set() -> None:
    corpus = {"path_src": "in.de", "path_tgt": "in.en"}
    theirs = {"data": {"one": corpus, "valid": corpus}, "enc_layers": 2, "rnn_size": 8,
              "train_steps": 3, "save_model": "m", "optim": "adam"}  # fmt: skip
    Path("theirs.yaml").write_text(yaml.safe_dump(theirs), "utf-8")
    answer = nmt("train theirs.yaml").stderr
    assert settings_in(answer)["data"] == {"valid": {"source": "in.de", "target": "in.en"}}
    assert 'data.one.path_src: "in.de"' in rest_of(answer)


@pytest.mark.parametrize(("call", "right"), [
    (lambda: api.train("c.yaml"), "nmt.train(nmt.TrainOptions(config='c.yaml'))"),
    (lambda: api.train(config="c.yaml"), "nmt.train(nmt.TrainOptions(config='c.yaml'))"),
    (lambda: api.train(cfg="c.yaml"), "Did you mean config?"),
    (lambda: api.evaluate(model="M"), "Did you mean models?"),
    (lambda: api.evaluate(models="M"), "nmt.evaluate(nmt.EvaluateOptions(models='M'))"),
    (lambda: api.average("M"), "nmt.AverageOptions(run='M', output='...')"),
    (lambda: api.Translator("M"), "nmt.Translator.load("),
])  # fmt: skip
def test_a_wrong_call_is_answered_with_the_right_one(call: Callable[[], Any], right: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(right)):
        call()
    with pytest.raises(AttributeError, match=re.escape("nmt.Translator.load(")):
        api.load("M")


def test_a_text_beside_options_is_no_wrong_call() -> None:
    with pytest.raises(NmtError, match="M is already an nmt model"):
        api.import_model(api.ImportOptions(source="M", output="x"), origin="Mine.")


def test_several_translations_behind_one_flag_are_systems_and_not_references() -> None:
    typed = typed_line(nmt("evaluate in.en -i in.en in.de -m bleu").stderr)
    assert typed is not None
    assert "--hypothesis in.en --hypothesis in.de" in typed


def test_a_text_behind_a_configuration_is_not_taken_for_a_validation_set() -> None:
    answer = nmt("train c.yaml --src in.de --lr 1").stderr
    assert "data.valid" not in answer
    assert "--src in.de" in rest_of(answer)


def test_the_values_make_a_configuration_that_is_accepted() -> None:
    for text, _, _ in CONFIGURATIONS:
        Path("theirs.yaml").write_text(text, "utf-8")
        settings = settings_in(nmt("train theirs.yaml").stderr)
        base = yaml.safe_load(CONFIG)
        for section in ("data", "training"):
            settings[section] = base[section] | settings.get(section, {})
        RunConfig.model_validate(base | settings)


@pytest.mark.parametrize(("line", "words"), [
    ("train c.yaml --set training.validation_every=5", "training.validate_every?"),
    ("distill M", "needs TEXT nmt distill M TEXT --output FOLDER"),
    ("train c.yaml d.yaml", "only one CONFIG c.yaml d.yaml"),
    ("train c.yaml training.max_steps=3", "Type: c.yaml --set training.max_steps=3"),
    ("evaluate in.en in.en --metric bleu chrf", "--metric bleu,chrf"),
    ("evaluate in.en in.en --metric comet", "unbabel-comet"),
    ("translate M in.de in.en", "only one FILE in.de in.en"),
    ("score in.en in.en", "nmt evaluate in.en in.en"),
    ("train c.yaml --device gpu", "No CUDA device auto or cpu"),
    ("translate M/checkpoints/best in.de --beam 3", "--checkpoint best"),
    ("translate --models M M --src in.de", "M --with M --input in.de"),
    ("score M a b c", "only one MODEL --source configs/demo.sample.en"),
    ("average M M -o x", "only one RUN M and M"),
    ("average M --last 1 2 -o x", "only one RUN 2"),
    ("export M --format onnx -o x", "safetensors, ctranslate2 nmt export M --to OTHER -o x"),
    ("augment c.yaml", "needs TEXT Without c.yaml augment TEXT --model MODEL --output FOLDER"),
    ("distill c.yaml", "needs TEACHER Without c.yaml distill TEACHER TEXT --output FOLDER"),
    ("pull opus-mt-en-de", "ORG/NAME, nmt pull OTHER --output FOLDER"),
    ("translate M a b.de", "quote 'a b.de'"),
    ("translate run/M in.de", "run/M exist. Train"),
    ("train c.yaml --set model=transformer", "model.preset=transformer-base"),
    ("train c.yaml --set langs=de-en", "source_language and target_language?"),
    ("config check c.yaml --set trainer={}", "did you mean training?"),
    ("config check c.yaml --set training.device=cpu --set training.precision=half", "slow auto"),
    ("config check c.yaml --set 'decoding={sampling: true, beam_size: 4}'", "no effect sampling"),
    ("train --lang-pairs de-en --source-lang en_XX --lr 1 --fp16 --seed 1", "en_XX float16"),
])  # fmt: skip
def test_a_mistake_is_answered_in_one_step(line: str, words: str) -> None:
    Path("d.yaml").write_text(CONFIG, "utf-8")
    Path("a b.de").write_text("ein Hund\n", "utf-8")
    answer = nmt(line).stderr
    assert [word for word in words.split() if word not in answer] == []
    assert "--run-dir" not in answer


@pytest.mark.parametrize("wrong", ["path_src", "src", "sorce", "train_file"])
@pytest.mark.parametrize("place", ["train", "stages", "test"])
def test_no_answer_repeats_the_wrong_key_of_a_list(place: str, wrong: str) -> None:
    text = yaml.safe_load(CONFIG)
    text["data"][place] = [{wrong: "in.de", "target": "in.en"}]
    if place == "test":
        text["data"][place] = {"news": text["data"][place][0]}
    Path("wrong.yaml").write_text(yaml.safe_dump(text), "utf-8")
    answer = nmt("config check wrong.yaml").stderr
    found = re.findall(r"unknown key (\S+?); (?:did you mean (\S+)\?)?", answer)
    assert found
    assert all(key != near for key, near in found)
