# Everything happens in .venv; nothing is written outside this folder. Only python3 and pip are assumed.
#   make demo    install and run the demonstration
#   make test    install and run formatting, lint, types and tests, as continuous integration does
#   make test-all   the same with the slow tests (tests/slow.py), the long versions of tests, the mutated files and all of torch's own test networks
#   make docs    the documentation site, in build/site
#   make bench   the tests that bound a time, then speed against float32 and ONNX Runtime (needs a quiet machine)
#   make release-check   dist/: an sdist and the wheel made from it, and what the checkers of packages say of both
#   make libintact8   build/libintact8.so, to run programs from C without Python (native/c_api/intact8.h)
#   make proofs      check the proofs of the arithmetic (apt-get install coq libcoq-flocq), and what they assume
#   make clean   remove .venv and caches
#
# PIP_FLAGS is handed to every pip install. On Linux, PyPI's torch brings several GB of CUDA; this avoids them:
#   make demo PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PYTHON ?= python3
PIP_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Nothing is compiled to bytecode before it is imported: most of what is installed never is.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt $(PIP_FLAGS)
# What is imported leaves its bytecode behind, in .venv and beside the sources, even where the environment forbids it:
# tests start hundreds of processes, and each would compile torch and this project anew.
export PYTHONDONTWRITEBYTECODE :=
INPUTS := pyproject.toml constraints.txt Makefile
HAS_ADDRESS := $(shell grep '^REPOSITORY = "http' src/intact8/addresses.py)

.PHONY: demo test test-all checks lint types browser units docs bench release-check libintact8 proofs clean

demo: $(VENV)/.demo
	$(BIN)/intact8 demo

# A browser is fetched while packages are installed, and lint runs beside the types.
checks:
	@$(MAKE) --no-print-directory -j3 --output-sync=target lint types browser

# Types are checked beside the tests, as they keep one core busy for most of a minute.
test:
	@$(MAKE) --no-print-directory -j3 types units

# Two processes of one thread each use two cores better than one process of two threads. Each begins with one half of the
# tests in their order, so that tests that share a preparation are in one process, and takes of the other's when done.
units: lint browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not bench and not long and not slow"

test-all: export TORCH_FAKE_TENSOR_DISPATCH_CACHE := 1
test-all: checks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not bench"
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.fuzz --count 20000
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torch_suites build/torch_suites.jsonl

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell

types: $(VENV)/.test
	$(BIN)/mypy

browser:
	scripts/browser.sh

docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.test
	$(BIN)/python -m pytest -m bench
	$(BIN)/python benchmarks/speed.py

release-check: $(VENV)/.release
	rm -rf dist
	INTACT8_REQUIRE_EXTENSION=1 $(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/abi3audit --strict dist/*.whl
	$(BIN)/pyroma --min 10 $(if $(HAS_ADDRESS),,--skip-tests Url) dist/*.tar.gz

libintact8:
	mkdir -p build
	$(CC) -std=c11 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -falign-functions=64 -falign-loops=64 \
	    -fno-asynchronous-unwind-tables -fPIC \
	    -fvisibility=hidden -shared -s \
	    $(CFLAGS) -o build/libintact8.so native/c_api/*.c \
	    $(filter-out %/module.c %/tensor_memory.c %/training.c,$(wildcard native/engine/*.c)) -lpthread -lm

proofs:
	cd proofs && for file in $$(grep '[.]v$$' _CoqProject); do coqc -q -Q . Intact $$file || exit 1; done

# A Python's own pip may be years old: that of Python 3.11 takes half a minute longer to choose versions.
$(VENV)/.created: Makefile
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.created $(INPUTS)
	$(PIP) -e '.[demo]'
	touch $@

# torchvision is installed without its dependencies: only its model definitions are used, and on CPU builds of torch
# its compiled operators do not load.
$(VENV)/.test: $(VENV)/.created $(INPUTS)
	$(PIP) -e '.[test]'
	$(PIP) --no-deps torchvision
	touch $@

$(VENV)/.release: $(VENV)/.created $(INPUTS)
	$(PIP) -e '.[release]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis digits.safetensors digits.report.html
	rm -f proofs/*.vo* proofs/*.glob proofs/.*.aux proofs/.*.cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
