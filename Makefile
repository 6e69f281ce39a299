# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv and installs what it needs, once.
PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
BIN := $(VENV)/bin
EXTRAS := test,dev,dicom,export,track,ray
WORKERS ?= 2
STORE ?= stores/acdc
CONSTRAINTS :=  # a file of versions to keep to

.DEFAULT_GOAL := help
.PHONY: help install demo test coverage test-slow test-oldest lint types docs bench gpu-check clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Expected Python 3.11 or newer, but $(PYTHON) is older. Run 'make PYTHON=python3.12 ...'." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Expected Python's venv module. On Debian: apt-get install python3-venv." >&2; exit 2; }

$(VENV)/.package: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.development: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(addprefix --constraint ,$(CONSTRAINTS)) --editable '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.package

install: $(VENV)/.development  ## Make .venv with everything that development needs

demo: $(VENV)/.package  ## Show what AdaWAC does, on this machine
	$(BIN)/adawac demo

test: $(VENV)/.development  ## Run the quick tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

LIBRARY := algorithm objective methods losses features
coverage: $(VENV)/.development  ## Check that the library's own tests go through every branch of it
	$(BIN)/python -m pytest -n $(WORKERS) $(addprefix tests/test_,$(addsuffix .py,algorithm losses methods features golden distributed checks examples)) \
		$(addprefix --cov=adawac.,$(LIBRARY)) --cov-branch --cov-report=term-missing --cov-fail-under=100

test-slow: $(VENV)/.development  ## Run the slow tests
	$(BIN)/python -m pytest -m slow

# Old libraries use what is deprecated in the new ones below them; Python does not show that to users either.
test-oldest:  ## Run the quick tests with the oldest libraries that are supported
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "Expected Python 3.11, the oldest that is supported, but $(PYTHON) is another one. Run 'make PYTHON=python3.11 test-oldest'." >&2; exit 2; }
	PYTEST_ADDOPTS='-W ignore::DeprecationWarning' $(MAKE) test VENV=$(OLDEST) EXTRAS=test,dicom,export,track CONSTRAINTS=tests/oldest.txt

lint: $(VENV)/.development  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.development  ## Check types
	$(BIN)/mypy

docs: $(VENV)/.development  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.development  ## Measure the criterion on this machine, and put it into docs/performance.md
	$(BIN)/python -m benchmarks.criterion
	$(BIN)/python -m benchmarks.render

gpu-check:  ## On a machine with a GPU: correctness and speed there, with STORE=ACDC prepared (uses $(PYTHON) as it is)
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu_check $(STORE)
	PYTHONPATH=src $(PYTHON) -m benchmarks.render

clean:  ## Remove .venv, .venv-oldest and everything that was built
	rm -rf $(VENV) $(OLDEST) site dist .pytest_cache .mypy_cache .ruff_cache
