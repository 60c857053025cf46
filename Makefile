# `make serve` and `make test` do everything on a fresh Linux x86-64 machine with Python 3.11: no GPU, no Docker.

PYTHON  ?= python3.11
VENV    := .venv
BIN     := $(VENV)/bin
LOCK    := requirements/cpu.txt
PORT    ?=
ARGS    ?=
# The build of torch without CUDA. Used if pip's own sources do not have it.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env: $(VENV)/.complete ## Create .venv from the lock (about 4 GB, minutes; once)

$(VENV)/.complete: $(LOCK) pyproject.toml scripts/install.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" LOCK="$(LOCK)" TORCH_CPU_INDEX="$(TORCH_CPU_INDEX)" sh scripts/install.sh
	@touch $@

serve: env ## Two replicas with three tiers on http://127.0.0.1:8000/v1, until Ctrl-C   [PORT=n]
	@exec $(BIN)/tierserve serve $(if $(PORT),--port $(PORT)) $(ARGS)

demo: env ## Time to first token: cold, L0, L1, L2 (starts the application if none runs)
	@trap : INT; $(BIN)/tierserve demo $(if $(PORT),--port $(PORT)) $(ARGS) || [ $$? = 130 ] # Ctrl-C is no error

test: env ## Everything: lint, types, unit tests, then real engines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(ARGS)

unit: env ## The fast tests only
	$(BIN)/python -m pytest -m "not e2e" $(ARGS)

bench: env ## Every measurement in a quarter of an hour, and docs/benchmarks.md out of them
	@exec $(BIN)/tierserve bench all --quick --docs docs $(ARGS)

lock: ## Resolve pyproject.toml anew and write requirements/cpu.txt
	rm -rf build/lock && $(PYTHON) -m venv build/lock && build/lock/bin/pip install -q "pip==26.3"
	build/lock/bin/pip install --dry-run --ignore-installed --quiet --report build/lock.json ".[cpu,dev]"
	$(PYTHON) scripts/lock.py build/lock.json > $(LOCK)

clean: ## Remove the environment and caches (not the L2 pool, not the prepared model)
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help env serve demo test unit bench lock clean
