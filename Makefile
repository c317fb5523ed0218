# Two commands: `make demo` and `make test`. Each installs what it needs into .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
SOURCES := -e . -e plugins/refiner -e plugins/classic -e plugins/roles -e plugins/local_hub -e plugins/worlds -e plugins/rollouts -e 'plugins/agents[inspect]' -e 'plugins/traces[datatrove]' -e plugins/studies -e plugins/lab -e 'plugins/speech[espeak,praat]'
MANIFESTS := pyproject.toml $(wildcard plugins/*/pyproject.toml) constraints.txt
# More threads than cores slow small models down, and two test workers each bring their own.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
# Tests start hundreds of processes, and each would compile the packages anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-smoke test-slow docs lint clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(VENV)/.base: $(MANIFESTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	@echo 'installing into $(VENV): some minutes'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt $(SOURCES)
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(RUN) -m pip install --quiet --constraint constraints.txt -e '.[dev]' $(SOURCES)
	@touch $@

# For the tests on two processes, skipped without a compiler, and those of benchmarks.
$(VENV)/.slow: $(VENV)/.dev
	$(RUN) -m pip install --quiet --constraint constraints.txt -e '.[dev,deepspeed,benchmarks]'
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	$(RUN) -m pip install --quiet --constraint constraints.txt -e '.[docs]'
	@touch $@

demo: $(VENV)/.base ## train, publish to a Hub on this disk, pull back and evaluate: up to 10 minutes
	$(RUN) examples/demo.py

test: $(VENV)/.dev ## lint, types, layers and the fast tests: 4 minutes, and 3 to install at first
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports
	$(RUN) -m pytest -n 2 --dist loadfile

# The slow tests start processes and wait for them: on a busy machine one may run out of time, and is
# then run once more and listed as rerun.
test-smoke: $(VENV)/.dev ## a few of the slow tests, one or two of each kind: 5 minutes
	$(RUN) -m pytest -n 2 --dist loadfile -m smoke --reruns 1

test-slow: $(VENV)/.slow ## the tests that take more than a few seconds each: up to 25 minutes
	$(RUN) -m pytest -n 2 --dist loadfile -m slow --reruns 1

docs: $(VENV)/.docs ## build the documentation into site/: 20 seconds
	$(RUN) .ci/docs_pages.py
	$(VENV)/bin/zensical build --strict --clean

lint: $(VENV)/.dev ## put code in order
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean: ## forget the virtual environment and the demo
	rm -rf $(VENV) demo site build .cache
