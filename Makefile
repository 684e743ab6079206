# Every target makes its own environment first; nothing has to be installed but Python 3.11+ (venv), git and make.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin
# The tests wait as much as they compute: two processes a core.
PROCESSES := $(shell expr 2 \* $$(nproc 2>/dev/null || echo 2))
# Each of these processes would rewrite every assertion again where nothing may be kept compiled.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-long gpu mutants check fmt lint type dead words hooks e2e e2e-long bench bench-fleet bench-soak soak image release protos lock clean

# What stands behind `##` is the help: what the target does; what it needs besides the above.
help: ## print this list
	@echo 'Every target needs Python 3.11 or later with venv, and makes its own environment in $(VENV).'
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ \
		split($$2, text, "; needs "); printf "  make %-11s %s\n", $$1, text[1]; \
		if (text[2]) printf "  %-16s needs %s\n", "", text[2] }'

$(VENV)/.ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(RUN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(VENV)/.ready ## daemon and extender at work, on simulated cards, in under 15 seconds
	$(RUN)/hami-node demo

test: $(VENV)/.ready ## unit, property, conformance and integration tests, two processes a core; needs gcc for what stands in for the driver; without it those tests are skipped
	$(RUN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal

test-long: $(VENV)/.ready ## what takes too long for test: more seeds of what is tested by chance
	$(RUN)/python -m pytest -m long --numprocesses $(PROCESSES) --dist worksteal

gpu: $(VENV)/.ready ## the daemon on this machine's own NVIDIA cards, whose settings it leaves alone; needs a driver, gcc, root
	$(RUN)/python -m pytest -m gpu -s tests/gpu

MUTANTS := $(if $(TESTS),--tests "$(TESTS)") $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(JSON),--json)
mutants: $(VENV)/.ready ## put small faults into ROOM (a folder below hami_node/) of a copy, and print which test notices each
	@$(RUN)/python -m tests.mutants "$(ROOM)" $(MUTANTS)

check: $(VENV)/.ready lint type dead words ## lint, type, dead and words

fmt: $(VENV)/.ready ## format the code, and correct what ruff can correct
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

lint: $(VENV)/.ready ## check format, style (ruff) and layers (import-linter)
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/lint-imports

type: $(VENV)/.ready ## check types (mypy --strict)
	$(RUN)/mypy

dead: $(VENV)/.ready ## look for code in the product that the product does not use (vulture)
	$(RUN)/vulture

words: $(VENV)/.ready ## test words, documents, layout, what is released, what the daemon loads
	$(RUN)/python -m pytest --numprocesses auto tests/checks

hooks: $(VENV)/.ready ## let git run the checks of `make check` before each commit (pre-commit); needs a git checkout
	$(RUN)/pre-commit install

e2e: $(VENV)/.ready ## a real cluster on this machine, the daemon as its DaemonSet; needs root, Debian or Ubuntu (apt-get), Go 1.26 or later, a machine that is no node
	$(RUN)/python -m tests.e2e.prepare
	@log=$$(mktemp); \
	$(RUN)/python -m pytest -m programs tests/checks tests/integration tests/unit > $$log 2>&1 & templates=$$!; \
	$(RUN)/python -m pytest -m 'e2e and not e2e_long' tests/browser tests/e2e --timeout 900 --durations 25; cluster=$$?; \
	wait $$templates; templates=$$?; \
	echo 'e2e: with helm, kubectl and promtool, beside that:'; cat $$log; rm -f $$log; \
	exit $$((cluster + templates))

# What depends on the version of Kubernetes: kubelet's lists and calls, rights, policies, the scheduler.
OLDER := $(addprefix tests/e2e/test_,api_requests.py daemon_killed.py kubelet_restart.py limits.py own_node_only.py \
	refusal.py scheduling_pods.py scheduling_rights.py scheduling_tenant_edits.py)
e2e-long: $(VENV)/.ready ## what takes too long for e2e: more seeds of the churn, an older Kubernetes; needs what e2e needs
	$(RUN)/python -m tests.e2e.prepare --older
	$(RUN)/python -m pytest -m e2e_long tests/browser tests/e2e --timeout 900
	HAMI_E2E_KUBERNETES=1.34 $(RUN)/python -m pytest -m 'e2e and not e2e_long' $(OLDER) --timeout 900

bench: $(VENV)/.ready ## print what the budgets are measured by; needs a machine with nothing else to do
	$(RUN)/python -m pytest -m bench -s tests/bench

bench-fleet: $(VENV)/.ready ## a real control plane, 1,000 and 5,000 nodes on paper: pods a second, latency, requests, CPU, memory; needs etcd, openssl, Go 1.26 or later, a machine with nothing else to do
	$(RUN)/python -m tests.bench.fleet throughput

bench-soak: $(VENV)/.ready ## the same, an hour of 20 pods a second on 1,000 nodes; fails if memory grows or something is left behind; needs what bench-fleet needs
	$(RUN)/python -m tests.bench.fleet soak

soak: $(VENV)/.ready ## an hour of pods that come and go, with faults; fails if memory grows or the records drift apart; needs gcc
	$(RUN)/python -m pytest -m soak -s tests/soak

image: ## build the container image; needs docker, podman or buildah, but no Python
	./daemonset/build-image

release: $(VENV)/.ready ## write VERSION into dist/: image, chart, manifests, SBOM, checksums; needs buildah, podman or docker, helm, kubectl
	$(RUN)/python -m tests.release "$(VERSION)"

protos: $(VENV)/.ready ## generate hami_node/kubelet_api from protos/
	$(RUN)/python -m tests.protos

COMPILE := $(RUN)/pip-compile --quiet --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --strip-extras
lock: $(VENV)/.ready ## pin every dependency: for development, and by hash for the image; needs a package index
	$(COMPILE) --extra extender --extra dev --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra extender --generate-hashes --constraint requirements.lock --output-file requirements-runtime.lock pyproject.toml
	$(COMPILE) --build-deps-for wheel --only-build-deps --allow-unsafe --generate-hashes --output-file requirements-build.lock pyproject.toml

clean: ## remove what was built; needs no Python
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
