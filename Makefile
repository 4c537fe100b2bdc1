# Every target installs what it needs into .venv first, and leaves nothing outside this folder but
# pip's download cache.

PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.core
DEV := .venv/.dev
DEMO := runs/demo
DEMO_PREPARED := prepared/demo
BENCH_MODEL ?= runs/multi30k-de-en
DEMO_SAMPLE := configs/demo.sample
# Compiled kernels of the tests run one thread each; pytest brings the parallelism. Tests start
# hundreds of programs. Without bytecode, each of them would compile the package again, so the
# variable that forbids to write bytecode is empty here.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=
# Tests, and what they start, leave files in the temporary folder: theirs goes when they end.
IN_SCRATCH = folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && TMPDIR="$$folder" $(TEST_ENV)
PYTEST = $(BIN)/pytest -q -n $(PYTEST_WORKERS) --dist worksteal
PYTEST_WORKERS ?= 2
# Property tests are in both runs; the profile says how many examples each of them tries.
QUICK = HYPOTHESIS_PROFILE=quick $(PYTEST) -m 'not long'
LONG = HYPOTHESIS_PROFILE=long $(PYTEST) -m 'long or hypothesis'
# On Linux without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu saves gigabytes.
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install -q -c .ci/constraints.txt \
  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.DEFAULT_GOAL := help
.PHONY: help install setup demo test test-long tests coverage check lint types format bench clean-demo
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(CORE)  ## install the package into .venv

setup: $(DEV)  ## install the package and the developer's tools into .venv

demo: $(CORE)  ## train a small model in minutes, translate with it and score it
	@printf '\n== prepare: build the vocabulary and encode the demo corpus\n'
	$(BIN)/nmt prepare configs/demo.yaml
	@printf '\n== train: takes a few minutes; run it again to resume after an interruption\n'
	$(BIN)/nmt train configs/demo.yaml
	@printf '\n== inspect: draw the attention of the model\n'
	$(BIN)/nmt inspect $(DEMO) --source "$$(head -n 1 $(DEMO_SAMPLE).en)" -o $(DEMO)/inspect.html
	@printf '\n== translate: sentences that are not in the training data\n'
	$(BIN)/nmt translate -q $(DEMO) -i $(DEMO_SAMPLE).en -o $(DEMO)/sample.de
	@paste -d '\n' $(DEMO_SAMPLE).en $(DEMO)/sample.de $(DEMO_SAMPLE).de | awk '{ \
	  printf "%s %s\n", NR % 3 == 1 ? "\nsource     " : NR % 3 == 2 ? "translation" : "reference  ", $$0 }'
	@printf '\n== evaluate: score the held-out test set\n'
	$(BIN)/nmt evaluate -q $(DEMO) -t test > $(DEMO)/scores.txt
	@head -n 4 $(DEMO)/scores.txt
	@printf '\nNext: translate your own sentence, or open $(DEMO)/inspect.html in a browser.\n'
	@printf '  echo "Yesterday Anna sold an old red lamp." | $(BIN)/nmt translate $(DEMO)\n'

test: lint  ## check, then the tests of every commit; types beside them, on whichever core is free
	@$(MAKE) --no-print-directory -j2 types tests

tests: $(DEV)
	$(IN_SCRATCH) $(QUICK)

test-long: $(DEV)  ## the tests that take long, and property tests with ten times the examples
	$(IN_SCRATCH) $(LONG)

coverage: $(DEV)  ## run the tests and print which lines of nmt/ they reach
	$(IN_SCRATCH) $(QUICK) --cov=nmt --cov-report=term:skip-covered

check: lint types  ## format, lint, import rules, types

lint: $(DEV)  ## format, lint, words and import rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/python scripts/check_style.py
	$(BIN)/lint-imports

types: $(DEV)  ## mypy, strict
	$(BIN)/mypy

format: $(DEV)  ## rewrite the code in the house's format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(DEV)  ## measure training and decoding; HUGGING_FACE=python of a venv adds theirs
	$(BIN)/nmt prepare configs/multi30k.yaml
	$(BIN)/python scripts/bench_training.py
	@test -d $(BENCH_MODEL) || { \
	  echo "no $(BENCH_MODEL) to decode with; first: $(BIN)/nmt train configs/multi30k.yaml" >&2; exit 2; }
	$(BIN)/python scripts/bench_decoding.py $(BENCH_MODEL)
	$(BIN)/python scripts/bench_engines.py $(BENCH_MODEL) --base \
	  $(if $(HUGGING_FACE),--hugging-face $(HUGGING_FACE))
	$(BIN)/python scripts/bench_translate.py $(BENCH_MODEL)

clean-demo:  ## remove the demo's prepared data and run
	rm -rf $(DEMO) $(DEMO_PREPARED)

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv

$(CORE): pyproject.toml .ci/constraints.txt | .venv/bin/python
	$(PIP) -e '.[ctranslate2,serve]'
	@touch $@

$(DEV): pyproject.toml .ci/constraints.txt | .venv/bin/python
	$(PIP) -e '.[dev,tensorboard,ctranslate2,clean,serve]'
	@touch $@ $(CORE)
