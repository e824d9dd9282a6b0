# Every target makes or refreshes .venv by itself. Needs Python >= 3.11 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SOURCES := trainers service api deploy tests benchmarks

.PHONY: demo test test-all check bench clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Millrace needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/millrace run examples/digits-downpour.yaml

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

test-all: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

bench: $(READY)
	$(BIN)/python -m benchmarks.throughput --report

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
