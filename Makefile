# make demo: the main job, end to end, on data it makes itself.   make test: lint, types, tests.
# Each sets up its own virtual environment in $(VENV) first.
# make bench: wdsmix beside its peers and beside JPEG decoding alone, about 25 minutes on an idle machine, more the first
# time; make bench ARGS='--quick --only wdsmix' looks whether it runs. Environments and data go to .bench/ (9 GB; make bench-s3 takes 10 GB more).
# make bench-s3: push, fetch and streaming beside boto3 and local reading, about 20 minutes.
# make test-s3: the tests of stores against Ceph's gateway (Debian: radosgw ceph-mon ceph-osd ceph-common) and with awscli.
# make bench-train: each reference policy on the demo's sets, a few minutes on two cores.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready
AWS := $(VENV)-aws
BENCH := .bench/venv
BENCH_READY := $(BENCH)/.ready
ARGS ?=

.PHONY: demo test test-s3 lint types format bench bench-s3 bench-train clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/wdsmix demo demo-out

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# converters and tools are wdsmix.converters and wdsmix.tools by installation alone; mypy wants them in one folder.
types: $(READY)
	rm -rf $(VENV)/types && mkdir -p $(VENV)/types/wdsmix
	ln -s $(CURDIR)/wdsmix/* $(CURDIR)/converters $(CURDIR)/tools $(VENV)/types/wdsmix/
	cd $(VENV)/types && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache

test: lint types
	$(BIN)/python -m pytest -q -n 2

# Its own environment, for awscli pins botocore; where it can't be had, the tests that need it are skipped.
$(AWS)/.ready:
	$(PYTHON) -m venv $(AWS)
	-$(AWS)/bin/python -m pip install --quiet --disable-pip-version-check awscli
	touch $@

test-s3: $(READY) $(AWS)/.ready
	WDSMIX_AWS=$(abspath $(AWS))/bin/aws $(BIN)/python -m pytest -q -n 2 -m s3real

$(BENCH_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

bench: $(BENCH_READY)
	$(BENCH)/bin/python -m benchmarks $(ARGS)

bench-s3: $(BENCH_READY)
	$(BENCH)/bin/python -m benchmarks.s3 $(ARGS)

bench-train: $(BENCH_READY)
	$(BENCH)/bin/python -m benchmarks.train $(ARGS)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(AWS) .bench demo-out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
