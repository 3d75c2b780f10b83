# Every target sets up its own virtual environment, so that on a fresh machine one command is enough.
PYTHON ?= python3
VENV   := .venv
WORKERS ?= 4 # many tests wait for processes: four keep two cores busy
RUN    := $(VENV)/bin/python -m
PLAIN  := $(VENV)/.plain
READY  := $(VENV)/.ready
CODE   := src tests examples benchmarks tools
CORE   := $(addprefix tests/,core test_algorithms.py test_codec.py test_layout.py test_metrics.py test_randomness.py)

unexport PYTHONDONTWRITEBYTECODE # without cached bytecode every worker compiles all tests again

.PHONY: help demo test coverage bench chaos fuzz lock sbom check lint format dist docs pages clean

help:  ## Show what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

$(PLAIN): pyproject.toml setup.py constraints.txt $(wildcard src/archipel/kernels/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plots]'
	@touch $(PLAIN)

$(READY): $(PLAIN)
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev,docs]'
	@touch $(READY)

demo: $(PLAIN)  ## Run the methods of the five papers side by side on digits, and write a report
	$(VENV)/bin/archipel run

test: $(READY)  ## Run all tests
	$(RUN) pytest -n $(WORKERS) --dist worksteal

coverage: $(READY)  ## Measure how much of the core and the parts their own tests cover, and write docs/reference/coverage.md
	# one process: pytest-xdist kills a worker that is slow to exit, and what it has measured is lost
	$(RUN) coverage run -m pytest -n 0 --hypothesis-seed=0 $(CORE)
	$(RUN) coverage json --quiet -o build/coverage/report.json
	$(VENV)/bin/python tools/coverage_page.py build/coverage/report.json docs/reference/coverage.md

bench: $(READY)  ## Race Archipel against its peers and the machine's limits, one to two hours; leave it alone meanwhile
	$(RUN) benchmarks

chaos: $(READY)  ## Kill the controller of a real federation 100 times under each protocol, and crowd it with strangers; half an hour
	$(RUN) tests.federation.chaos --kills 100 --out benchmarks/measured/chaos.json
	ARCHIPEL_CHAOS=1 $(RUN) pytest tests/federation/test_faults.py tests/federation/test_secure_kills.py
	$(RUN) benchmarks.federation.strangers --out benchmarks/measured/strangers.json

fuzz: $(READY)  ## Feed ten million changed inputs to the parsers, and 10,000 random histories to the controller; hours
	$(RUN) tests.fuzz --executions 10000000 --out benchmarks/measured/fuzz.json
	$(RUN) tests.fuzz.histories --histories 10000 --out benchmarks/measured/histories.json

LOCK := $(VENV)/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28 -c constraints.txt

lock: $(READY)  ## Pin every package by its hashes: requirements.lock (all extras), and the locks of deploy/
	# mirrors and torch's own index are given by the environment: UV_INDEX, UV_FIND_LINKS, UV_INDEX_STRATEGY
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(LOCK) --all-extras -o requirements.lock pyproject.toml
	echo 'setuptools>=77' | $(LOCK) --extra federation -o deploy/requirements.lock pyproject.toml -
	$(VENV)/bin/python tools/extra_locks.py deploy/requirements.lock requirements.lock deploy/locks $(LOCK)

sbom: $(READY)  ## Write what is installed as a CycloneDX bill of materials to build/sbom.json
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt cyclonedx-bom
	mkdir -p build
	$(RUN) cyclonedx_py environment --output-reproducible --of JSON -o build/sbom.json $(VENV)

lint: $(READY)  ## Format, lint and types, without changing a file
	$(RUN) ruff format --check $(CODE)
	$(RUN) ruff check $(CODE)
	$(RUN) mypy

check: lint  ## Format, lint, types and the fast tests
	$(RUN) pytest -n 2 --dist worksteal -m "not slow"

format: $(READY)  ## Put the code into its one format
	$(RUN) ruff format $(CODE)
	$(RUN) ruff check --fix $(CODE)

docs: $(READY)  ## Build the documentation site with the API reference into site/
	$(VENV)/bin/python tools/stage_site.py build/docs
	$(RUN) zensical build --clean --strict

pages: $(READY)  ## Write the generated pages and tables of docs/ again; the tests compare them
	$(RUN) archipel.study.document > docs/reference/study.md
	$(VENV)/bin/python tools/command_page.py docs/reference/command-line.md
	$(RUN) archipel.cli.compositions > docs/reference/compositions.md
	$(VENV)/bin/python tools/package_graph.py docs/pictures/packages.svg
	$(RUN) archipel.papers.document docs/papers
	$(RUN) benchmarks.page

dist: $(READY)  ## Build the source archive and, from it, the wheel into dist/
	rm -rf dist
	$(RUN) build --no-isolation

clean:  ## Remove the virtual environment, caches and what was built
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache build dist site
