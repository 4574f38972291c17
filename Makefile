# make demo    set up, then a simulated node of eight GPUs at http://127.0.0.1:9450; ARGS="..." are its flags
# make test    set up, then every test
# make check   set up, then what CI checks besides the tests
# make docs    write what is generated anew: pages of docs/ and Grafana's dashboards
# make bench   set up, then every benchmark: a line of JSON for each claim
# make clean   remove what these made
#
# Setting up makes .venv (Python 3.11 or newer) and, as root on Debian, installs the packages that are missing.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BIN := .venv/bin
READY := .venv/.ready
SCRIPTS := .ci/run tests/gpu/check.sh $(wildcard scripts/*.sh)

.PHONY: help demo test check docs bench clean system

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# The packages of the system. Runs every time: it only looks, unless one is missing.
system:
	@scripts/system_packages.sh

$(READY): pyproject.toml scripts/make_venv.sh | system
	scripts/make_venv.sh .venv
	touch $@

demo: $(READY)
	exec $(BIN)/gpumon demo $(ARGS)

test: $(READY)
	@scripts/system_packages.sh chromium
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/gen_docs.py --check
	$(BIN)/python -m grafana.build --check
	$(BIN)/python -m grafana.lint
	$(BIN)/python scripts/gen_kustomize.py --check
	promtool check rules deploy/prometheus/rules/*.yaml
	$(BIN)/shellcheck $(SCRIPTS)
	$(BIN)/hadolint Dockerfile
	$(BIN)/yamllint --strict .
	command -v promtool
	scripts/check_wheel.sh $(BIN)/python

docs: $(READY)
	$(BIN)/python scripts/gen_docs.py
	$(BIN)/python -m grafana.build
	$(BIN)/python scripts/gen_kustomize.py

bench: $(READY)
	@for script in $$(grep -l __main__ benchmarks/*.py); do $(BIN)/python -m "benchmarks.$$(basename "$$script" .py)"; done

clean:
	rm -rf .venv .build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
