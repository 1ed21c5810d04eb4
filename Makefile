# make demo: the main job, end to end, on data it makes itself.   make test: lint, types, tests.
# Each sets up its own virtual environment in $(VENV) first.
# make bench: wdsmix beside its peers and beside JPEG decoding alone, about 25 minutes on an idle machine, more the first
# time; make bench ARGS='--quick --only wdsmix' looks whether it runs. Environments and data go to .bench/ (7 GB).
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH := .bench/venv
BENCH_READY := $(BENCH)/.ready
ARGS ?=

.PHONY: demo test lint types format bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/wdsmix demo demo-out

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest -q -n 2

$(BENCH_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

bench: $(BENCH_READY)
	$(BENCH)/bin/python -m benchmarks $(ARGS)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .bench demo-out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
