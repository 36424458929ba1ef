# The default target lists the others.
.DEFAULT_GOAL := help
SHELL := /bin/bash

GOLANGCI_LINT_VERSION := v2.15.0
GOLANGCI_LINT := .tools/golangci-lint-$(GOLANGCI_LINT_VERSION)

.PHONY: help build test lint fuzz prove example bench bench-backlog bench-conform redis-server

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## Build worker, enqueue and the example into bin/
	go build -o bin/ ./cmd/... ./examples/...

# No test takes long: what hangs is stopped, and tells where.
test: redis-server ## Run all tests with the race detector, on the embedded and a real Redis
	go test -race -timeout 10m ./...

lint: $(GOLANGCI_LINT) ## Run go vet and golangci-lint
	go vet -tags prove ./...
	$(GOLANGCI_LINT) run

FUZZ_TIME ?= 10s
fuzz: ## Fuzz every parser for FUZZ_TIME (default 10s) each
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
		for name in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+).*/\1/p' $$file); do \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZ_TIME) $$(dirname $$file); \
		done; \
	done

# One test at a time, for each measures the machine, too. What is left out of the output
# is what passes, and what the processes log that are measured.
PROVE_ARGS ?=
PROVE = go test -tags prove -p 1 -count 1 -timeout 8h -run '^TestProve' -v $(PROVE_ARGS) ./... \
	| grep -vE '^(=== | *--- PASS|PASS$$|ok .*no tests to run|\?   |testing: warning| +(\{"level"|logger\.go))'
prove: redis-server ## State every figure that depends on the machine; PROVE_ARGS=-short takes minutes, not hours
	@set -o pipefail; $(PROVE)
	@set -o pipefail; cd bench && $(PROVE)

example: ## Watch three workers share a quota
	go run ./examples/outbound-api

bench: redis-server ## Measure decisions against peers; BENCH_ARGS=-quick for a glance
	cd bench && go run . $(BENCH_ARGS)

bench-backlog: redis-server ## Measure what becomes of a backlog, against peers; BENCH_ARGS=-h lists scenarios
	cd bench && go run . backlog $(BENCH_ARGS)

bench-conform: ## See which promises limiters keep, ours and peers'; BENCH_ARGS=-h says more
	cd bench && go run . conform $(BENCH_ARGS)

# A real Redis is looked for on the PATH, then asked of the package manager.
redis-server:
	@if command -v redis-server >/dev/null; then \
		echo "testing on $$(redis-server --version | cut -d' ' -f1-3) at $$(command -v redis-server)"; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "installing redis-server with apt-get"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server >/dev/null; \
	elif command -v brew >/dev/null; then \
		echo "installing redis with brew"; brew install redis; \
	elif [ -n "$$RAMPMETER_REQUIRE_REDIS" ]; then \
		echo "RAMPMETER_REQUIRE_REDIS is set, but there is no redis-server and no way to install one"; exit 1; \
	else \
		echo "no redis-server here: tests run on the embedded Redis alone"; \
		echo "(apt-get install redis-server, or brew install redis, for the others)"; \
	fi

$(GOLANGCI_LINT):
	@echo "installing golangci-lint $(GOLANGCI_LINT_VERSION)"
	GOBIN=$(CURDIR)/.tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@mv .tools/golangci-lint $@
