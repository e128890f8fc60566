# `make help` lists the targets. Everything is installed into .venv of this checkout.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
INSTALLED := $(VENV)/.installed
# Hundreds of processes start here, each of which would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup java test test-all test-quick lint types imports docs check soak mutants demo cluster-demo bench-tools bench bench-quick clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Isotherm needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	@# Compile the kernels once, beside their source: the first user would wait for it.
	@$(BIN)/python -m isotherm.kernels
	@touch $@

setup: $(INSTALLED) java ## Install everything into .venv and check for Java

java:
	@scripts/ensure-java.sh

# Each worker starts a Kafka of its own, and one of them a Spark (tests/support/spark_scheduling.py).
# One more than there are processors here: many tests wait for what servers do in their own time.
TEST_WORKERS ?= 3
# The folders of the tests lie in memory where there is room: they hold a hundred thousand files, and
# brokers flush to them. Those of tests that fail stay.
MEMORY := /dev/shm
TEST_FOLDER ?= $(shell test $$(df -Pm $(MEMORY) 2>/dev/null | awk 'END {print $$4 + 0}') -ge 8192 && echo $(MEMORY)/isotherm-tests-$$(id -u))
IN_MEMORY := $(if $(TEST_FOLDER),mkdir -p $(TEST_FOLDER) && TMPDIR=$(TEST_FOLDER))
PYTEST := $(IN_MEMORY) $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile \
  -o tmp_path_retention_count=1 -o tmp_path_retention_policy=failed
AND_FREE := $(if $(TEST_FOLDER),&& rm -rf $(TEST_FOLDER))
test: setup ## Run the tests, TEST_WORKERS files at a time
	@scripts/test-tools.sh
	$(PYTEST) --no-loadscope-reorder --durations=25 $(AND_FREE)

test-all: setup ## The same and the nightly tests, which have a shorter form in make test
	@scripts/test-tools.sh
	$(PYTEST) --no-loadscope-reorder --durations=25 -m "not soak" $(AND_FREE)

test-quick: setup ## The tests that need neither Kafka nor Spark and take no time: for between two edits
	$(PYTEST) -m "not (slow or spark or oracle or soak)" tests/unit tests/golden $(AND_FREE)

lint: setup ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## Check types
	$(BIN)/mypy

imports: setup ## Check the direction of imports
	$(BIN)/lint-imports --no-cache

docs: setup ## Build the documentation into site/; a warning is an error
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint types imports docs test ## Everything that has to hold before a commit

SOAK_SECONDS ?= 1200
SOAK_KILLS ?= 500
SOAK_ROUNDS ?= 20
SOAK_FRAMES ?= 50000000
soak: setup ## The longest tests; SOAK_ROUNDS of new examples; clients at work for SOAK_SECONDS; SOAK_KILLS kills; clusters; SOAK_FRAMES hostile frames
	$(BIN)/python -m pytest -q -m "soak or nightly"
	for round in $$(seq $(SOAK_ROUNDS)); do $(BIN)/python -m pytest -q tests/property || exit; done
	PYTHONPATH=. $(BIN)/python -m tests.support.correctness.run --seconds $(SOAK_SECONDS) --erase
	PYTHONPATH=. $(BIN)/python -m tests.support.correctness.run --kills $(SOAK_KILLS) --precise --level 0 1 --store folder s3
	PYTHONPATH=. $(BIN)/python -m tests.support.correctness.run --kills $(SOAK_KILLS) --precise --erase --store folder s3
	PYTHONPATH=. $(BIN)/python -m tests.support.cluster.run --cluster isotherm mixed --seconds $(SOAK_SECONDS)
	PYTHONPATH=. $(BIN)/python -m tests.support.share_runs.run --faults 50
	PYTHONPATH=. $(BIN)/python -m tests.support.share_runs.run --cluster III --faults 30
	PYTHONPATH=. $(BIN)/python -m tests.support.cluster.placements
	$(BIN)/python -m bench.hostile_search --frames $(SOAK_FRAMES) --seed $$(date +%s)

MUTANTS ?= 10
mutants: setup ## Change MUTANTS places of each module that decides or destroys; print what no test notices
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	nice $(BIN)/python scripts/mutants.py --per-module $(MUTANTS)

demo: setup ## Produce a year of flights, tier them, read them back with Kafka clients and Spark
	$(BIN)/python examples/demo/flights.py

cluster-demo: setup ## Kill three replicated brokers in turn under a producer; MIXED=1: one is Apache Kafka
	PYTHONPATH=. $(BIN)/python examples/cluster/cluster.py $(if $(MIXED),--mixed)

# An S3 server, and a proxy that makes it slow.
bench-tools:
	@test -x .tools/bin/versitygw || scripts/s3-server.sh install
	@test -x .tools/bin/toxiproxy-server || scripts/toxiproxy.sh install

bench: setup bench-tools ## Measure Isotherm beside Apache Kafka, in an hour; writes docs/benchmarks.md
	$(BIN)/python -m bench

bench-quick: setup ## The same in less than five minutes: fails when a ratio that was reached is lost
	$(BIN)/python -m bench --quick

clean: ## Remove what the targets made, except .venv
	rm -rf isotherm-data isotherm-demo isotherm-cluster-demo site .bench .oracle .pytest_cache .mypy_cache .ruff_cache
