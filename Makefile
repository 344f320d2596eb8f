# Two commands matter: `make demo` and `make test`. Both set up everything they need, in .venv.
# To add a check: one line under `check`, one sentence in CONTRIBUTING.md.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 3  # of the tests: many of them wait for other processes

.PHONY: demo test check format lint types layers wheel bench truth docs clean

demo: $(STAMP)  ## a simulated fleet with known faults, ranked live, until Ctrl-C
	@$(BIN)/isotach demo

test: $(STAMP)  ## every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

check: $(STAMP) format lint types layers test wheel  ## what CI runs

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up $(VENV) (a minute on a warm package cache)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

wheel: $(STAMP)  ## build the wheel, install it in a clean environment, smoke it
	$(BIN)/python -m tests.support.wheel

bench: $(STAMP)  ## measured figures, side by side with the alternatives
	$(BIN)/python -m benchmarks

truth: $(STAMP)  ## figures against the real measurements that lie beside the checkout
	$(BIN)/python -m benchmarks.truth

docs: $(STAMP)  ## write the generated tables in docs/ again
	$(BIN)/python -m isotach.documentation

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
