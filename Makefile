# Two commands do all the set-up on a machine with Python >= 3.11, make and git: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
N ?= 10000
ROUNDS ?= 200
MINUTES ?= 10
WORKERS ?= 3
STAMP := .venv/.installed
export PYTHONDONTWRITEBYTECODE :=  # tests start hundreds of processes: each would compile everything again

.PHONY: install demo test check sim crash soak hour spark bench profile dist docs lock audit clean help

help:            ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tidegate needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP)  ## create .venv with the command at .venv/bin/tidegate

demo: $(STAMP)   ## the hospital, live (without a terminal: to the end by itself)
	$(BIN)/tidegate demo

test: $(STAMP)   ## the test-suite (what CI runs)
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(STAMP)  ## lint, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

sim: $(STAMP)    ## N random apps x interleavings against the serial oracle: make sim N=10000
	$(BIN)/tidegate sim --seeds $(N)

crash: $(STAMP)  ## 200 rounds of kills, and the slow recovery tests: ROUNDS=200
	$(BIN)/tidegate crash-test --rounds $(ROUNDS)
	$(BIN)/python -m pytest -m slow tests/directory tests/outside tests/offline tests/testing tests/connectors/kafka tests/examples

soak: $(STAMP)   ## ten minutes of everything at once, with kills in between, then verify: MINUTES=10
	$(BIN)/tidegate soak --minutes $(MINUTES)

hour: $(STAMP)   ## a new user's first hour: install, README, new project, serve, kill, psql, upgrade
	$(BIN)/python -m pytest -n 0 -m slow tests/first_hour

spark: $(STAMP)  ## the slow Spark tests: 50 kills in pipelines, a real cluster, a killed backfill, all windows
	$(BIN)/python -m pytest -n 0 -m slow tests/streams tests/connectors/spark

bench: $(STAMP)  ## the short benchmark set, with a report in benchmarks/results
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/tidegate bench report

profile: $(STAMP)  ## flame graphs of the leaderboard and the windows, in benchmarks/results
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/tidegate bench profile

dist: $(STAMP)   ## the wheel and the source distribution, in dist/
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .

docs: $(STAMP)   ## the site with all pages and the API from docstrings, in site/; fails for a link that leads nowhere
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: $(STAMP)   ## write requirements.lock anew from pyproject.toml; UPGRADE=--upgrade for the newest versions
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' --quiet $(UPGRADE) \
	  --output-file requirements.lock

audit: $(STAMP)  ## known vulnerabilities of what requirements.lock names, where an advisory database can be reached
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python .ci/audit.py

clean:           ## remove the environment and caches
	rm -rf .venv build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache
