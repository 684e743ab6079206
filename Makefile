# Every target makes its own environment first; nothing has to be installed but Python 3.11+ (venv), git and make.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt lint type dead e2e bench image protos lock clean

help: ## what can be made
	@grep -E '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(RUN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(VENV)/.ready ## daemon and extender at work, on simulated cards, in under 15 seconds
	$(RUN)/hami-node demo

test: $(VENV)/.ready ## unit, property, conformance and integration tests
	$(RUN)/python -m pytest

check: $(VENV)/.ready lint type dead ## format, lint, layers, types, dead code

fmt: $(VENV)/.ready ## format the code
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

lint: $(VENV)/.ready
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/lint-imports

type: $(VENV)/.ready
	$(RUN)/mypy

dead: $(VENV)/.ready
	$(RUN)/vulture

e2e: $(VENV)/.ready ## a real cluster on this machine, the daemon as its DaemonSet (needs root and Go)
	$(RUN)/python -m tests.e2e.prepare
	$(RUN)/python -m pytest -m e2e tests/e2e --timeout 900

bench: $(VENV)/.ready ## print what the budgets are measured by
	$(RUN)/python -m pytest -m bench -s tests/bench

image: ## build the container image with docker or buildah
	./daemonset/build-image

protos: $(VENV)/.ready ## generate hami_node/kubelet_api from protos/
	$(RUN)/python -m tests.protos

COMPILE := $(RUN)/pip-compile --quiet --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --strip-extras --extra extender
lock: $(VENV)/.ready ## pin every dependency: for development, and for the image
	$(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	$(COMPILE) --constraint requirements.lock --output-file requirements-runtime.lock pyproject.toml

clean: ## remove what was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
