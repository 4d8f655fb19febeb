# Everything runs in two virtual environments made here: .venv (all of it) and .venv-core (core dependencies and pytest).
# The stamps in them make `make` install again when a dependency or a bound has changed.

PYTEST_ARGS ?= -n 2 --dist loadfile
CORE_ARGS ?=
FIXTURES_ARGS ?=
BENCH_ARGS ?=
PINNED = -c constraints.txt
OUTSIDE = slow or old_python or corpus or gpu

.PHONY: help demo test test-all test-core test-rest lint format fixtures bench clean

help:
	@echo 'make demo      unwrap and read a real multi-GPU file; needs Python 3.11 to 3.13, no TensorFlow'
	@echo 'make test      lint, types, and the tests, with TensorFlow and without'
	@echo 'make test-all  these and the slow ones, those of old Pythons and of the published files'
	@echo 'make lint      ruff and mypy only'
	@echo 'make format    let ruff format the code'
	@echo 'make fixtures  make the fixture files again, with the old libraries'
	@echo 'make bench     time it against what people would use instead; writes bench/RESULTS.md'
	@echo 'make clean     remove what the above made, the environments too'

.venv/core.stamp: setup.cfg pyproject.toml constraints.txt
	@python=$$(.ci/find-python) && set -x && "$$python" -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check $(PINNED) -e .
	.venv/bin/python -m compileall -q ckpttool
	@touch $@

.venv/full.stamp: .venv/core.stamp
	.venv/bin/python -m pip install --quiet --disable-pip-version-check $(PINNED) -e '.[tensorflow,dev]'
	@touch $@

.venv-core/core.stamp: setup.cfg pyproject.toml constraints.txt
	@python=$$(.ci/find-python) && set -x && "$$python" -m venv --clear .venv-core
	.venv-core/bin/python -m pip install --quiet --disable-pip-version-check $(PINNED) -e . pytest
	@touch $@

demo: .venv/core.stamp
	@PATH="$(CURDIR)/.venv/bin:$$PATH" sh docs/demo.sh

lint: .venv/full.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: .venv/full.stamp
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

test: lint .venv/full.stamp test-core
	.venv/bin/python -m pytest --all-installed -m 'not ($(OUTSIDE))' $(PYTEST_ARGS)

test-core: .venv-core/core.stamp
	.venv-core/bin/python -m pytest -m 'not ($(OUTSIDE))' $(CORE_ARGS)

test-rest: .venv/full.stamp
	.venv/bin/python -m pytest --all-installed -m '$(OUTSIDE)' $(PYTEST_ARGS)

test-all: test test-rest

fixtures: .venv/core.stamp
	.venv/bin/python fixtures/make_all.py $(FIXTURES_ARGS)

bench: .venv/full.stamp
	.venv/bin/python bench/run.py $(BENCH_ARGS)

clean:
	rm -rf .venv .venv-core demo-output build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find ckpttool tests -name __pycache__ -type d -prune -exec rm -rf {} +
