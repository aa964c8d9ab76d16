# `make` lists the targets. Each is one step a person would do; the work itself is in cargo and hack/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Outside the checkout, so that clones share compiled dependencies and `git clean` costs nothing.
export BERTH_CACHE ?= $(HOME)/.cache/berth
export CARGO_TARGET_DIR ?= $(BERTH_CACHE)/target
$(shell hack/claim-target "$(CARGO_TARGET_DIR)")
ifneq ($(.SHELLSTATUS),0)
$(error another checkout uses $(CARGO_TARGET_DIR))
endif

# Arguments of hack/test and of `cargo nextest run`, for example: make test BERTH_TEST_ARGS='-p berth-api names'
BERTH_TEST_ARGS ?=

# Arguments of hack/conformance/run, for example: make conformance BERTH_CONFORMANCE_ARGS='--focus sig-apps --side tenant'
BERTH_CONFORMANCE_ARGS ?=

# Arguments of hack/conformance/operators, for example: make test-operators BERTH_OPERATORS_ARGS='kueue --focus TrainJob'
BERTH_OPERATORS_ARGS ?=

# Arguments of hack/check-reproducible, for example: make check-reproducible BERTH_REPRODUCIBLE_ARGS='--quick berth-scrub'
BERTH_REPRODUCIBLE_ARGS ?=

# chartgen writes parts of the chart; the help texts of the others are a page of the reference.
GENERATORS := --bin chartgen --bin berth --bin berth-control --bin berth-syncer --bin berth-gateway

DEVELOPMENT_BINARIES := $(CARGO_TARGET_DIR)/debug
RELEASE_BINARIES := $(CARGO_TARGET_DIR)/release

# What real nodes need besides a cluster, as hack/kubernetes/versions calls it.
NODE_COMPONENTS := kubernetes-node containerd runc cni-plugins calico coredns metrics-server helm
# Programs of others that tests of the suites `system`, `snapshot_store` and `e2e` run.
TEST_COMPONENTS := kustomize-controller dex versitygw

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: prerequisites
prerequisites: ## Install the system packages that are missing (Debian, Ubuntu)
	@hack/prerequisites

.PHONY: cluster
cluster: ## Get the pinned Kubernetes, etcd and kwok binaries (10 minutes if they are compiled, then instant)
	@hack/kubernetes/build kubernetes etcd kwok

.PHONY: nodes
nodes: cluster ## The same, and what real nodes need: kubelet, containerd, Calico and more (5 minutes more)
	@hack/kubernetes/build $(NODE_COMPONENTS)
	@hack/charts calico

.PHONY: test-programs
test-programs: nodes ## The same, and programs of others that tests run: Dex, Flux, an S3 server (4 minutes more)
	@hack/kubernetes/build $(TEST_COMPONENTS)
	@hack/charts $(TEST_COMPONENTS)

.PHONY: kubernetes
kubernetes: ## Everything in hack/kubernetes/versions, also helm and the operators that tests install
	@hack/kubernetes/build
	@hack/charts

.PHONY: build
build: prerequisites ## Build all of Berth's binaries for development
	cargo build --workspace --bins --locked

.PHONY: build-tests
build-tests: prerequisites ## The same, and the tests' binaries
	cargo build --workspace --bins --tests --locked

.PHONY: release-binaries
release-binaries: prerequisites ## Build all of Berth's binaries with the optimization of a release
	cargo build --workspace --bins --locked --release

.PHONY: release
release: prerequisites ## Write the artifacts of a release to target/release-artifacts (BERTH_SIGNING_KEY=FILE signs them)
	@hack/release

# Berth first: it compiles in minutes, and what fails should fail soon. The demo runs the binaries that the tests run; what
# the release profile adds costs minutes of compiling and is measured by `make bench`. One version of Kubernetes is enough.
.PHONY: demo
demo: prerequisites build ## Start a host cluster with GPU nodes and two tenants on this machine
	@hack/kubernetes/build kubernetes@default etcd kwok $(NODE_COMPONENTS)
	@hack/charts calico
	@PATH="$(DEVELOPMENT_BINARIES):$$PATH" hack/demo

.PHONY: demo-down
demo-down: ## Stop the demo and remove everything it left
	@if [[ -x "$(DEVELOPMENT_BINARIES)/berth" ]]; then "$(DEVELOPMENT_BINARIES)/berth" dev down; \
	else echo "berth is not built, so no demo runs from this checkout" >&2; fi

.PHONY: test
test: build kubernetes ## Run all tests (BERTH_TEST_ARGS is passed on to hack/test)
	@hack/test $(BERTH_TEST_ARGS)

.PHONY: e2e
e2e: build nodes ## Run the tests on real nodes only (as root; part of `make test`)
	@hack/kubernetes/build versitygw
	@hack/test --test e2e $(BERTH_TEST_ARGS)

# Not a part of `test`: compiling Argo CD takes minutes.
.PHONY: test-argo-cd
test-argo-cd: build nodes ## Run the test with a real Argo CD (BERTH_TEST_ARGS is passed on to hack/test)
	@hack/prerequisites argo-cd
	@hack/kubernetes/build argo-cd
	@hack/charts argo-cd
	@hack/test --test system --ignore-default-filter argo_cd:: $(BERTH_TEST_ARGS)

.PHONY: conformance
conformance: build nodes ## Run upstream's conformance tests on a host cluster and in a tenant, and compare (as root)
	@hack/kubernetes/build conformance
	@hack/conformance/run $(BERTH_CONFORMANCE_ARGS)

# Not a part of `test`: the tests have short time limits and need the machine for themselves.
.PHONY: test-operators
test-operators: build nodes ## Run the tests of JobSet, LeaderWorkerSet and Kueue in a tenant (as root)
	@hack/kubernetes/build jobset lws kueue operator-tests
	@hack/conformance/operators $(BERTH_OPERATORS_ARGS)

.PHONY: bench
bench: release-binaries cluster ## Run the benchmarks; tables on stdout, JSON in target/bench
	"$(RELEASE_BINARIES)/bench" all

.PHONY: generate
generate: ## Write the parts of the chart and of the reference anew that follow from the code
	cargo build --quiet --workspace --locked $(GENERATORS) && "$(CARGO_TARGET_DIR)/debug/chartgen"
	@hack/reference --commands "$(CARGO_TARGET_DIR)/debug"

.PHONY: docs
docs: ## Build the documentation as a book in target/book
	@hack/docs

.PHONY: fmt
fmt: ## Format the Rust code
	cargo fmt --all

# The quick ones first: a wrong link should not wait for the compiler.
.PHONY: check
check: prerequisites check-versions check-scripts check-downloads check-docs check-layers check-format check-generated check-lints check-dependencies ## Run everything that must hold besides the tests

.PHONY: check-versions
check-versions: ## Do hack/kubernetes/versions and the Go modules agree
	@hack/check-versions

.PHONY: check-scripts
check-scripts: ## Lint the shell scripts, and test how hack/test chooses tests and what hack/reference and hack/check-docs find
	@git ls-files --cached --others --exclude-standard -z -- hack .ci | xargs -0 grep -lE '^#!.*\b(ba)?sh$$' | xargs shellcheck
	@hack/test-turns
	@hack/test-docs

.PHONY: check-downloads
check-downloads: ## Are releases downloaded safely (with a server on this machine)
	@hack/kubernetes/test-downloads

.PHONY: check-docs
check-docs: ## Check links, paths, reasons, labels and words in the documentation, and whether the reference is up to date
	@hack/check-docs
	@hack/reference --check

.PHONY: check-layers
check-layers: ## Check that modules of different folders do not import each other in a circle
	@hack/check-layers

.PHONY: check-format
check-format: ## Is the Rust code formatted
	cargo fmt --all --check

.PHONY: check-generated
check-generated: ## Do the generated parts of the chart and of the reference match the code
	cargo build --quiet --workspace --locked $(GENERATORS) && "$(CARGO_TARGET_DIR)/debug/chartgen" --check
	@hack/reference --check --commands "$(CARGO_TARGET_DIR)/debug"

.PHONY: check-lints
check-lints: ## Lint the Rust code
	cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: check-dependencies
check-dependencies: ## Check licences, sources, duplicates and advisories of the dependencies
	@hack/check-dependencies

# Not a part of `check`: it compiles a program and all its libraries twice.
.PHONY: check-reproducible
check-reproducible: prerequisites ## Build a program of a release twice, at different paths, and compare the bytes
	@hack/check-reproducible $(BERTH_REPRODUCIBLE_ARGS)

.PHONY: clean
clean: ## Remove Berth's compiled code (the Kubernetes binaries stay; they are in BERTH_CACHE/bin)
	cargo clean
