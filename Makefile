# Everything runs in .venv, which the first target that needs it makes: for the demos with what they need alone,
# without PySpark for unit tests and lint, with all packages for everything else. PYTHON=python3.12 chooses another interpreter, make test ONLY=lint,unit some of the
# checks, SKIP=spark all others, make unit SUITE=tests.core some of the unit tests.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LIGHT := $(VENV)/.light
DEMO := $(VENV)/.demo
SEED ?= 1
ONLY ?=
SUITE ?=
SCHEDULES ?= 2000
SKIP ?=
RESUME ?=
STAGE ?= processes
MINUTES ?= 30
N ?= 5
LATEST := .venv/latest
CHOSEN = $(if $(ONLY),--only $(ONLY)) $(if $(SKIP),--skip $(SKIP))
#: What the checks need, and what only some of them use by hand.
CHECKS := dev,spark,connect,browser,tables-test,s3-test,docs
EVERYTHING := $(CHECKS),bench

# Images of containers set it. The tests start a thousand processes, each of which would compile every module of ours
# again: half a second of a processor.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-rocketmq test test-all test-latest constraints steady unit lint types sim mutants fuzz processes hostile browser spark interop bench docs format clean soak mutants-random release-check

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(LIGHT) ## .venv for unit tests and lint, without PySpark

demo: $(DEMO) ## three members on this machine, the leader killed half-way, nothing lost (under a minute)
	@$(BIN)/python -m demo.run

demo-rocketmq: $(DEMO) ## three brokers and a name server, the master killed half-way, nothing lost
	@$(BIN)/python -m demo.rocketmq

test: $(READY) ## every kind of check: style, types, unit, simulation, fuzz, processes, attacks, Spark, Java (under 12 minutes on two idle processors)
	@$(BIN)/python -m tests.run_all $(CHOSEN)

test-all: $(READY) ## every check there is; RESUME=1 leaves out the stages that were green on the same tree
	@$(BIN)/python -m tests.run_all --all $(CHOSEN) $(if $(RESUME),--resume)

test-latest: ## unit tests with the newest versions of what we need, in .venv/latest
	@$(PYTHON) -m venv --clear $(LATEST)
	@$(LATEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(CHECKS)]' # unpinned
	@$(LATEST)/bin/python -m tests.lanes unit

constraints: ## constraints.txt anew, with the newest versions; run make test after it
	@$(PYTHON) -m venv --clear $(LATEST)
	@$(LATEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EVERYTHING)]' # unpinned
	@$(LATEST)/bin/python -m tests.runner.constraints

steady: $(READY) ## one stage N times: make steady STAGE=processes N=5
	@$(BIN)/python -m tests.runner.steady $(STAGE) --times $(N)

unit: $(LIGHT) ## all unit tests; make unit SUITE=tests.core for some
	@$(BIN)/python -m tests.run_all --only unit $(SUITE)

lint: $(LIGHT) ## style, rooms, names in the documents
	@$(BIN)/python -m ruff check dledger protocols tests benchmarks demo examples twisted setup.py
	@$(BIN)/python -m twisted.trial tests.test_layering tests.test_tidy tests.test_docs tests.test_rooms

types: $(READY) ## mypy --strict
	@$(BIN)/python -m mypy

sim: $(LIGHT) ## simulated clusters: make sim SCHEDULES=1000 SEED=1
	@$(BIN)/python -m dledger.testing --corpus tests/sim/schedules.txt --read-only --schedules $(SCHEDULES) --seed $(SEED) --jobs 2

mutants: $(LIGHT) ## break one guard at a time; its pin, and the simulator, must notice
	@$(BIN)/python -m tests.mutants

mutants-random: $(LIGHT) ## random small faults, and who notices them: make mutants-random N=200 SEED=1
	@$(BIN)/python -m tests.mutants.random_run --count $(or $(N),40) --seed $(or $(SEED),1)

fuzz: $(LIGHT) ## random bytes to every decoder, random damage to every file
	@$(BIN)/python -m tests.fuzz.run --target all --executions 100000 --seed $(SEED)

processes: $(LIGHT) ## real members, killed and paused under load
	@$(BIN)/python -m tests.lanes processes

soak: $(LIGHT) ## faults of thirty kinds on real members for MINUTES, and a judgement of all calls; SEED repeats its choices
	@$(BIN)/python -m tests.soak.run --minutes $(MINUTES) --seed $(SEED)

hostile: $(LIGHT) ## attacks on running members and brokers
	@$(BIN)/python -m tests.lanes hostile

browser: $(READY) ## the dashboard in Chromium (needs chromium and chromium-driver)
	@$(BIN)/python -m twisted.trial tests.browser

spark: $(READY) ## the Spark source and export, in a local session and on small clusters
	@$(BIN)/python -m tests.run_all --all --only spark

interop: $(LIGHT) ## groups with Java DLedger (needs a JDK and Maven)
	@$(BIN)/python -m tests.interop

bench: $(READY) ## quick measurements
	@$(BIN)/python -m benchmarks append --quick

release-check: $(LIGHT) ## the news and the wheel of the next release, as a dry run: make release-check RELEASE=0.2.0
	@$(BIN)/python -m tests.release_check $(RELEASE)

docs: $(READY) ## the site of the documents, build/site, with pages of the API; a wrong link or docstring is an error
	@$(BIN)/python -m tests.site
	@echo build/site/index.html

format: $(LIGHT) ## import order and what else can be fixed by itself
	@$(BIN)/python -m ruff check --fix dledger protocols tests benchmarks demo examples twisted setup.py

clean: ## remove what can be made again, .venv included
	@rm -rf $(VENV) build dist *.egg-info .tox .mypy_cache .ruff_cache .hypothesis _trial_temp* demo-data

# constraints.txt has the versions with which every test passed; a newer version comes with a commit.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; say make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Cannot make $(VENV); on Debian: apt-get install python3-venv"; exit 1; }

$(DEMO): setup.py setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing PySpark and what the demos need into $(VENV) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[spark]' hypothesis
	@touch $(DEMO)

$(LIGHT): setup.py setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(LIGHT)

$(READY): $(LIGHT)
	@echo "installing PySpark, Selenium, moto, Sphinx and packages for tables into $(VENV) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[$(CHECKS)]'
	@touch $(READY)
