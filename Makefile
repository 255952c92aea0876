# CobaltCore. `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help
COBALT := target/debug/cobalt
XTASK := target/debug/xtask
TOOLS := $(or $(COBALT_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/cobalt)/tools
DENY_VERSION := 0.20.2
NODES ?= 3
# How long `make bench` looks for writes while nothing happens; 10 is for the record.
IDLE_MINUTES ?= 2
# Where `make up` writes the images of what its charts run.
LAB_IMAGES := target/lab-images
COMPONENTS := cobalt-hypervisor-operator cobalt-labels-injector cobalt-node-agent cobalt-ovs-agent
# The definitions come first, then the agents: the node agent makes the namespace of the heartbeats,
# and hosts are tested with what the OVS agent sees.
CHARTS_FIRST := charts/cobalt-crds charts/node-agent charts/ovs-agent=ovn-system
CHARTS := $(CHARTS_FIRST) $(filter-out $(CHARTS_FIRST) charts/ovs-agent,$(wildcard charts/*))

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: up
up: build ## Start a region on this machine (first time: about 20 minutes)
	cargo xtask images --profile lab $(addprefix --only ,$(COMPONENTS)) --out $(LAB_IMAGES)
	$(COBALT) lab up --with kube,hypervisors,ovn,openstack,bmc --nodes $(NODES) --servers $(NODES) \
	  --images $(LAB_IMAGES) $(addprefix --chart ,$(CHARTS)) --values lab/values \
	  --set 'node-agent:nodes={$(shell seq -s, -f hv%g $(NODES))}'

.PHONY: down
down: build ## Take it down; nothing is left
	$(COBALT) lab down

.PHONY: test
test: build ## Run every test, after all set-up on a fresh machine
	@# The Go build and the download of the nodes' tree run beside the compiler.
	@$(COBALT) lab prepare & prepare=$$!; cargo test --locked --workspace --lib --bins --tests --no-run; built=$$?; \
	  wait $$prepare && exit $$built
	$(XTASK) test

.PHONY: test-slow
test-slow: build ## Random property tests, scale, fuzzing, cgroup v2: what takes long or differs from run to run
	@# One that fails does not keep the others from running.
	$(MAKE) --keep-going test-random test-scale fuzz test-cgroup2

.PHONY: test-random
test-random: build ## Explore property tests with random cases and many of them
	$(XTASK) test --random $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))

.PHONY: test-scale
test-scale: build ## Prove the labels injector with 5,000 Pods
	$(COBALT) lab prepare
	COBALT_TEST_PODS=5000 cargo test --locked -p cobalt-labels-injector --test injector w83

.PHONY: fuzz
fuzz: build ## Run each fuzz target for a minute
	$(XTASK) fuzz

.PHONY: test-cgroup2
test-cgroup2: build ## Prove the lab on cgroup v2, in a QEMU guest (slow)
	$(COBALT) lab prepare
	COBALT=$(abspath $(COBALT)) lab/cgroup2/run.sh machine
	COBALT=$(abspath $(COBALT)) lab/cgroup2/run.sh container

.PHONY: lint
lint: toolchain $(TOOLS)/bin/cargo-deny ## Format, clippy, documentation, licences
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@# A ban for code, not for tests; clippy has no option for that.
	CLIPPY_CONF_DIR=$(abspath .ci/clippy) cargo clippy --locked --workspace --lib --bins -- -D warnings
	cargo xtask fuzz --check
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --quiet
	$(TOOLS)/bin/cargo-deny --workspace check bans licenses sources

.PHONY: advisories
advisories: toolchain $(TOOLS)/bin/cargo-deny ## Check the dependencies against today's RustSec advisories (needs the network)
	$(TOOLS)/bin/cargo-deny --workspace check advisories

.PHONY: bench
bench: build ## Measure the lab, the agents and the operator (about 1.5 hours; IDLE_MINUTES=10 for the record)
	$(COBALT) lab prepare
	cargo build --locked --profile dist -p cobalt-node-agent --bin cobalt-node-agent --example bench
	COBALT=$(abspath $(COBALT)) bench/lab.sh
	COBALT=$(abspath $(COBALT)) target/dist/examples/bench --agent target/dist/cobalt-node-agent \
	  --idle-minutes $(IDLE_MINUTES)
	cargo build --locked --profile dist -p cobalt-ovs-agent --bin cobalt-ovs-agent --example bench-ovs
	COBALT=$(abspath $(COBALT)) target/dist/examples/bench-ovs --agent target/dist/cobalt-ovs-agent \
	  --idle-minutes $(IDLE_MINUTES) --churn-minutes $(IDLE_MINUTES)
	cargo build --locked --profile dist -p cobalt-hypervisor-operator --bin cobalt-hypervisor-operator \
	  --example bench-operator --example bench-drain
	COBALT=$(abspath $(COBALT)) target/dist/examples/bench-operator \
	  --operator target/dist/cobalt-hypervisor-operator
	COBALT=$(abspath $(COBALT)) target/dist/examples/bench-drain \
	  --operator target/dist/cobalt-hypervisor-operator

.PHONY: gen
gen: toolchain ## Generate the CRDs' chart from the types
	cargo xtask gen

.PHONY: bin
bin: toolchain ## Build all binaries into bin/
	cargo build --locked --profile dist --workspace --exclude xtask --bins
	mkdir -p bin
	install -t bin $(addprefix target/dist/,cobalt $(COMPONENTS))

.PHONY: images
images: toolchain ## Write the OCI images of a release into dist/images/
	cargo xtask images

.PHONY: clean
clean: ## Remove what was built and what dead labs left (the cache stays)
	@if [ -x $(COBALT) ]; then $(COBALT) lab down --all; $(COBALT) lab clean; fi
	rm -rf bin dist target

.PHONY: build
build: toolchain
	cargo build --locked --workspace --bins

# What cannot be installed from here is said; what can is, and only when it is missing.
.PHONY: toolchain
toolchain:
	@[ "$$(uname -s)" = Linux ] || { echo "error: this needs Linux (Debian 12 is what is tested)"; exit 1; }
	@command -v cargo >/dev/null || { echo "error: cargo is missing: install Rust with rustup"; exit 1; }
	@command -v cc >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing gcc and libc6-dev"; \
	    apt-get -q update && apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends gcc libc6-dev; \
	  else echo "error: a C compiler is missing: apt-get install gcc libc6-dev"; exit 1; fi; }

$(TOOLS)/bin/cargo-deny:
	@echo "building cargo-deny $(DENY_VERSION), once for this machine: about 4 minutes"
	cargo install --quiet --locked --version $(DENY_VERSION) --root $(TOOLS) cargo-deny
