# Every target sets up what it needs: Python 3.11 or newer and make are enough.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
RUN := .venv/.ready
DEV := .venv/.ready-dev
BENCH := .venv/.ready-bench
RELEASE := .venv/.ready-release
# Without addresses: the file is the same wherever the packages came from.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url
# Tests start hundreds of processes: without cached bytecode each of them would compile all that it imports.
# RUNNER=tests.again runs each failed test again, alone, and names those that pass then.
RUNNER ?= pytest
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m $(RUNNER)
DATA ?= ./state
# One more than processors, because some tests wait for a process or a clock. Each reads all tests first.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Their waiting is real time, of nodes that talk over sockets: they run after the others, by themselves, with fewer workers.
REAL_TIME := tests/access/test_cluster.py tests/access/test_serving.py tests/tls tests/transport/test_peer_faults.py \
	tests/transport/test_peers.py tests/transport/test_reaching.py tests/transport/test_seeds.py
SEEDS ?= 200
JOBS ?= 2
REVISION ?=

.DEFAULT_GOAL := help
.PHONY: help demo told-of-demo test everything thorough slow-disks chaos compose integrations check sim upgrade-test mutants laws described page bench resolve lowest versions lock sbom serve clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: told-of-demo $(RUN)  ## Survey the standard library with nine agents on three nodes, and kill one; WATCH=1 leaves them running.
	@$(BIN)/shoal demo $(if $(WATCH),--watch)

told-of-demo:
	@echo "Nine agents read the modules of Python's standard library, on three nodes that are processes on this machine. Midway one node is"
	@echo "killed with kill -9; at the end all nodes must agree with a recount. It takes one to two minutes, writes below the temporary directory,"
	@echo "and removes what it wrote. Ctrl-C ends it at any time."

test: $(DEV)  ## Run all tests but the longer ones of `make thorough`, `make chaos` and `make integrations`.
	@$(PYTEST) -n $(WORKERS) --dist worksteal $(REAL_TIME:%=--ignore=%); code=$$?; \
		$(PYTEST) -n 2 --dist worksteal -- $(REAL_TIME) && exit $$code

everything: $(DEV)  ## Run all that proves Shoal, one after another, and end with a table of the results.
	@$(BIN)/python -m tests.everything

thorough: $(DEV)  ## Try properties with all their examples, and run longer forms of other tests.
	$(PYTEST) -n $(WORKERS) --dist worksteal --hypothesis-profile=thorough -m "hypothesis or thorough"

slow-disks: $(DEV)  ## Run the tests of simulated nodes on disks that take 30 ms for an fsync.
	$(PYTEST) -n $(WORKERS) --dist worksteal --sync-s 0.03 -- tests/client tests/crew tests/node tests/workflows

chaos: $(DEV)  ## Strike clusters of real nodes with more kinds of faults than `make test` does.
	$(PYTEST) -n $(WORKERS) --dist worksteal -m chaos

compose: $(DEV)  ## Run docker-compose.yml on a container engine of its own (as root; the first time takes 5 to 20 minutes).
	@$(BIN)/python -m tests.compose

integrations: $(DEV)  ## Run every framework's suite on Shoal, each in its own environment; writes docs/integrations/README.md.
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.integrations.suites

page: $(DEV)  ## Try the page in Chromium, on nodes that are filled (SHOAL_CHROMIUM=… names another browser).
	@$(BIN)/python deploy/install.py -e ".[page]"
	$(PYTEST) -m page -- tests/page

chart: $(DEV)  ## Render deploy/helm/shoal by Helm into deploy/kubernetes, and check it by Kubernetes' schemas.
	@$(BIN)/python deploy/install.py -e ".[charts]"
	$(BIN)/python -m tests.deploy.charts
	$(PYTEST) -- tests/deploy/test_kubernetes.py

check: $(DEV)  ## Formatting, lint, types, dead code.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/vulture

sim: $(DEV)  ## Run whole clusters through bad luck: all saved plans, 200 seeds (or SEEDS=…, JOBS=…), all planted bugs.
	$(BIN)/python -m simulation run --profile mixed --seeds $(SEEDS) --jobs $(JOBS)
	$(BIN)/python -m tests.mutants --near 40 --jobs $(JOBS)

upgrade-test: $(DEV)  ## Roll three nodes from the last release (or REVISION=…) to this one, while clients of both write.
	$(BIN)/python -m chaos upgrade $(if $(REVISION),--revision $(REVISION))

mutants: $(DEV)  ## Plant bugs in the program, and see that the simulator finds each.
	$(BIN)/python -m tests.mutants --jobs $(JOBS)

described: $(DEV)  ## Try a node with what its OpenAPI description says, and with what it does not say (20 minutes, or SECONDS=…).
	$(BIN)/python -m tests.described $(SECONDS)

laws: $(DEV)  ## Take out each line that holds a law of a module, and see its test fail.
	$(BIN)/python -m tests.laws --jobs $(JOBS)

bench: $(BENCH)  ## Measure; writes benchmarks/RESULTS.md.
	$(BIN)/python -m benchmarks --write

resolve: $(RELEASE)  ## Resolve Shoal beside the newest versions of what people run it with.
	@$(BIN)/python -m tests.resolve

lowest: $(RELEASE)  ## Run `make test` with the oldest versions that pyproject.toml admits.
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.versions lowest

versions: $(RELEASE)  ## Run `make test` on each of PYTHONS (3.11 to 3.14) that is installed, and name those that are not.
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.versions $(PYTHONS)

lock: $(RELEASE)  ## Record the versions and hashes of all that the image contains and is built with.
	$(LOCK) pyproject.toml --extra security --extra schemas --extra backup --extra files --extra redaction --extra otlp --constraint constraints.txt --output-file deploy/requirements.txt
	$(LOCK) deploy/build-requirements.in --output-file deploy/build-requirements.txt

sbom: $(RELEASE)  ## Write the bill of materials (CycloneDX) of what a user installs: bom.json.
	rm -rf build/sbom
	$(PYTHON) -m venv --without-pip build/sbom
	$(BIN)/pip --python build/sbom/bin/python install -q --disable-pip-version-check --require-hashes -r deploy/requirements.txt
	$(BIN)/pip --python build/sbom/bin/python install -q --disable-pip-version-check --no-deps .
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file bom.json build/sbom/bin/python

serve: $(RUN)  ## Serve ./state (or DATA=…) on 127.0.0.1:7400.
	$(BIN)/shoal serve --data $(DATA)

clean:  ## Remove what these targets made.
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Shoal needs Python 3.11 or newer; none was found. Set PYTHON=/path/to/python3."; exit 1; }
	@test -w . || { echo "This folder cannot be written, and .venv is made in it. Copy the checkout to where you may write."; exit 1; }
	@echo "Making a virtual environment: .venv, in this folder."
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu the package python3-venv has what is missing."; exit 1; }

$(RUN): pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing Shoal and the packages that it uses into .venv, in this folder: about 100 MB, and about a minute, most of it the network's."
	@$(BIN)/python deploy/install.py -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | .venv/bin/python
	@$(BIN)/python deploy/install.py -e '.[test,check]'
	@# Once, instead of in each worker.
	@$(BIN)/python -m compileall -q -j 0 shoal simulation chaos benchmarks deploy examples
	@touch $@ $(RUN)

$(BENCH): pyproject.toml constraints.txt | .venv/bin/python
	@$(BIN)/python deploy/install.py -e '.[test,bench]'
	@touch $@ $(RUN)

$(RELEASE): pyproject.toml constraints.txt | .venv/bin/python
	@$(BIN)/python deploy/install.py -e '.[release]'
	@touch $@ $(RUN)
