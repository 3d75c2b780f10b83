# Every target sets up its own virtual environment, so that on a fresh machine one command is enough.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python -m
PLAIN  := $(VENV)/.plain
READY  := $(VENV)/.ready

.PHONY: help demo test bench chaos check format clean

help:  ## Show what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

$(PLAIN): pyproject.toml setup.py constraints.txt $(wildcard src/archipel/kernels/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plots]'
	@touch $(PLAIN)

$(READY): $(PLAIN)
	$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	@touch $(READY)

demo: $(PLAIN)  ## Run the methods of the five papers side by side on digits, and write a report
	$(VENV)/bin/archipel run

test: $(READY)  ## Run all tests
	$(RUN) pytest -n 2 --dist worksteal

bench: $(READY)  ## Race Archipel against its peers and the machine's limits, one to two hours; leave it alone meanwhile
	$(RUN) benchmarks

chaos: $(READY)  ## Kill the controller of a real federation 100 times under each protocol; about half an hour
	$(VENV)/bin/python tests/federation/chaos.py --kills 100 --out benchmarks/measured/chaos.json
	ARCHIPEL_CHAOS=1 $(RUN) pytest tests/federation/test_faults.py

check: $(READY)  ## Format, lint, types and the fast tests
	$(RUN) ruff format --check src tests examples benchmarks
	$(RUN) ruff check src tests examples benchmarks
	$(RUN) mypy
	$(RUN) pytest -n 2 --dist worksteal -m "not slow"

format: $(READY)  ## Put the code into its one format
	$(RUN) ruff format src tests examples benchmarks
	$(RUN) ruff check --fix src tests examples benchmarks

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
