# Every target makes or refreshes .venv by itself. Needs Python >= 3.11 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SOURCES := trainers service api deploy tests benchmarks
# Of pytest. Tests with a Ray wait as often as they compute, so that four keep two cores busy.
PROCESSES ?= 4
PYTEST := $(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup
# A quarter of the tests, for which `make test` does not wait: each algorithm with each of its options, and the largest
# tables and pictures.
VARIANTS := $(addprefix tests/equivalence/, columns compress connect local recipe spatial) tests/test_switching.py \
	tests/service/scaling tests/service/tracking tests/benchmarks/test_plan.py

export PYTHONDONTWRITEBYTECODE = # the tests start hundreds of processes, and each would compile all that it imports

.PHONY: demo test test-variants test-page test-faults test-long test-all fuzz check types style docs bench bench-quick soak clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Millrace needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/millrace run examples/digits-downpour.yaml

test: $(READY)
	$(PYTEST) -m "not slow and not long and not page" $(addprefix --ignore=,$(VARIANTS))

test-variants: $(READY) # CI runs these
	$(PYTEST) -m "not slow and not long and not page" $(VARIANTS)

test-page: $(READY) # the page in Chromium, which one process drives; CI runs these
	$(BIN)/python -m pytest -m "not slow and not long" tests/api/page

test-faults: $(READY) # the long tests of what holds while workers, shards and coordinators die; CI runs these
	$(PYTEST) -m "long and not slow" tests/faults tests/runtime

test-long: $(READY) # of those files alone that have any: each process reads them all, of others in vain
	$(PYTEST) -m "long and not slow" $$(grep -rl --include="*.py" "mark\.long" tests)

test-all: $(READY)
	$(PYTEST)

fuzz: $(READY)
	$(BIN)/python -m pytest tests/api/http/test_fuzz.py

check: $(READY)
	$(MAKE) --no-print-directory --jobs 2 types style

types: $(READY)
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/yamllint --strict deploy tests

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench-quick: $(READY)
	$(BIN)/python -m benchmarks.quick

bench: $(READY)
	$(BIN)/python -m benchmarks.throughput --report
	$(BIN)/python -m benchmarks.hybrid --report
	$(BIN)/python -m benchmarks.stragglers --report
	$(BIN)/python -m benchmarks.shard_traffic --report
	$(BIN)/python -m benchmarks.elasticity --report
	$(BIN)/python -m benchmarks.tasks --report
	$(BIN)/python -m benchmarks.steps.optimizers --report
	$(BIN)/python -m benchmarks.steps.small_steps --report
	$(BIN)/python -m benchmarks.steps.products --report
	$(BIN)/python -m benchmarks.steps.start --report
	$(BIN)/python -m benchmarks.steps.cores --report
	$(BIN)/python -m benchmarks.costs --report
	$(BIN)/python -m benchmarks.scale --report
	$(BIN)/python -m benchmarks.predictions --minutes 120 --report
	$(BIN)/python -m benchmarks.plan --report
	$(BIN)/python -m benchmarks.photographs --report
	$(BIN)/python -m benchmarks.benefits --report
	$(BIN)/python -m benchmarks.links --report
	$(BIN)/python -m benchmarks.low_communication --report
	$(BIN)/python -m benchmarks.sweeps --report
	$(BIN)/python -m benchmarks.service --report
	$(BIN)/python -m benchmarks.page --report

soak: $(READY)
	$(BIN)/python -m tests.faults.soak --seconds 600 --every 20

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
