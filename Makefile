# Everything runs in .venv, which is made if it is missing, and again when its requirements change.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup test format demo bench lab mutate clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tokenmill needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh scripts/demo.sh

bench: $(STAMP)
	$(BIN)/python benchmarks/clean.py
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/filters.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/huge.py
	$(BIN)/python benchmarks/huge_training.py
	$(BIN)/python benchmarks/killed_training.py
	$(BIN)/python benchmarks/frameworks.py
	$(BIN)/python benchmarks/mixing.py
	$(BIN)/python benchmarks/compression.py
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/cluster_bytes.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/near.py
	$(BIN)/python benchmarks/explain.py
	$(BIN)/python benchmarks/keys.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/stats.py
	$(BIN)/python benchmarks/culprit.py
	$(BIN)/python benchmarks/view.py
	$(BIN)/python benchmarks/decontaminate.py

lab: $(STAMP)
	LAB_MINUTES=$(or $(LAB_MINUTES),60) $(BIN)/python -m tests.lab

# Changes the source in one place at a time and lists the changes that no test notices.
mutate: $(STAMP)
	$(BIN)/python -m tests.mutation

clean:
	rm -rf .venv .mutation build dist demo .mypy_cache .ruff_cache
