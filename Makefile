# Leasehold. `make` lists what there is; `make demo` shows it at work; `make test` is what CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export PATH := $(PATH):$(HOME)/.cargo/bin
# Warnings are errors only where CI decides, so that half-done work still compiles.
DENY := -D warnings

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

.PHONY: demo
demo: ## Install what is missing, build, and run jobs on a private PostgreSQL and Docker (DEMO_EXIT=1 ends by itself)
	@.ci/needs.sh demo
	@echo "  building (minutes the first time)" >&2
	@cargo build --quiet --locked
	@exec .ci/demo.sh target/debug/leasehold

.PHONY: test
test: fmt lint doc it ## Everything that CI runs

.PHONY: fmt
fmt: ## Formatting, checked
	cargo fmt --all --check

.PHONY: lint
lint: ## Lints, denied
	cargo clippy --locked --workspace --all-targets -- $(DENY)

.PHONY: unit
unit: ## Tests that need no service
	cargo nextest run --locked --workspace --lib

.PHONY: it
it: ## All tests, with a private PostgreSQL and two private Docker engines
	@.ci/needs.sh test
	cargo build --locked --workspace --bins --examples
	tests/services.sh run -- cargo nextest run --locked --workspace

.PHONY: chaos
chaos: ## A fleet under every fault for CHAOS_MINUTES (10), by CHAOS_SEED (1), and what a checker finds
	@.ci/needs.sh test
	cargo build --locked --bins --examples
	cargo test --locked --test it --no-run
	CHAOS_SEED=$${CHAOS_SEED:-1} CHAOS_MINUTES=$${CHAOS_MINUTES:-10} tests/services.sh run -- \
		cargo test --locked --test it -- --exact chaos::a_fleet_under_every_fault_keeps_every_promise --nocapture

.PHONY: chaos-defects
chaos-defects: ## The same with each of five defects switched on in the product: the checker must report them
	@.ci/needs.sh test
	cargo build --locked --bins --examples
	CHAOS_DEFECTS=$${CHAOS_DEFECTS:-all} tests/services.sh run -- \
		cargo test --locked --test it -- --exact chaos::every_defect_that_is_switched_on_is_reported --nocapture

.PHONY: proof
proof: ## The long forms of proofs that make test runs in a short form, with their figures
	@.ci/needs.sh test
	cargo build --locked --workspace --bins --examples
	LEASEHOLD_TEST_LONG=1 tests/services.sh run -- cargo nextest run --profile proof --locked --test it --no-capture -E 'test(docker::reaper::) | test(scenarios::frozen::) | test(the_jobs_of_a_killed_worker)'

.PHONY: doc
doc: ## Documentation and its examples
	RUSTDOCFLAGS="$(DENY)" cargo doc --locked --workspace --no-deps --quiet
	cargo test --locked --workspace --doc --quiet

.PHONY: model
model: ## The lease protocol, explored completely, and every mutant of it (docs/model.md)
	cargo run --locked --release --package leasehold-model -- full

.PHONY: bench
bench: ## The benchmark of docs/benchmarks.md, on a private PostgreSQL
	@.ci/needs.sh test
	cargo build --locked --release
	tests/services.sh run -- bash -c 'export DATABASE_URL=$$LEASEHOLD_TEST_DATABASE_URL; target/release/leasehold migrate && target/release/leasehold bench'

.PHONY: bench-recovery
bench-recovery: ## The figures of recovery of docs/benchmarks.md, on a private PostgreSQL
	@.ci/needs.sh test
	cargo build --locked --release
	tests/services.sh run -- bash -c 'export DATABASE_URL=$$LEASEHOLD_TEST_DATABASE_URL; target/release/leasehold migrate && target/release/leasehold bench --recovery'

.PHONY: bench-replay
bench-replay: ## The figures of the replay of recipes of docs/benchmarks.md, on a private PostgreSQL
	@.ci/needs.sh test
	cargo build --locked --release
	tests/services.sh run -- bash -c 'export DATABASE_URL=$$LEASEHOLD_TEST_DATABASE_URL; target/release/leasehold migrate && target/release/leasehold bench --replay'

.PHONY: proof-recipes
proof-recipes: ## Every kill of the matrix of recipes, a thousand payload updates beside a hundred handoffs, every crash of every call
	@.ci/needs.sh test
	cargo build --locked --workspace --bins --examples
	LEASEHOLD_TEST_LONG=1 tests/services.sh run -- cargo nextest run --profile proof --locked --test it --no-capture -E 'test(/^recipes::/) | test(/^crash::recipes::/)'

.PHONY: proof-gates
proof-gates: ## Sixteen claimers against one slot and against one serial workflow, a thousand rounds each
	@.ci/needs.sh test
	LEASEHOLD_GATE_ROUNDS=1000 tests/services.sh run -- cargo test --locked --test it -- --nocapture \
		one_slot_never_holds_two_containers a_serial_workflow_never_runs_twice_at_once

.PHONY: restarts
restarts: ## PostgreSQL restarted five times in a minute under load
	@.ci/needs.sh test
	LEASEHOLD_RESTARTS=5 cargo nextest run --locked --test it -E 'test(restarts_under_load)' --success-output final

.PHONY: clean
clean: ## Remove what was built, and stop the tests' services
	-tests/services.sh stop
	cargo clean
