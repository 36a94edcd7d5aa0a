# `make help` lists the targets. ./scripts/test is the whole test command.
GO ?= go

.DEFAULT_GOAL := help
.PHONY: help build fmt fmt-check lint test race conformance stress fuzz bench api api-update deps cover etcd bench-start bench-quick bench-go lab lab-night lab-load lab-mutants soak mutants dist picture promtool

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build everything
	$(GO) build ./...

fmt: ## format the code
	./scripts/lint fmt

fmt-check: ## fail if the code is not formatted
	./scripts/lint fmt --diff

lint: ## run the linters
	./scripts/lint

test: ## all tests, as CI runs them; installs what is missing
	./scripts/test

etcd: ## build etcd and etcdctl for the tests into build/bin
	./scripts/etcd

race: ## the tests of the library alone, with the race detector
	$(GO) test -race ./pkg/...

conformance: ## the conformance suite on every backend, with all cases
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -race -p 1 -timeout 30m -run 'Conformance|SuiteRejects' ./pkg/dlock/...

stress: ## long random runs, with the full counts
	DLOCK_STRESS=1 $(GO) test -timeout 60m -count=1 -run '^TestSimulation$$' ./pkg/dlock
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -timeout 90m -count=1 -run '^TestScriptSimulation$$' ./pkg/dlock/redislock ./pkg/dlock/redlock
	DLOCK_STRESS=1 $(GO) test -race -timeout 60m -count=1 ./pkg/dlock -rapid.checks=10000
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -race -timeout 60m -count=1 ./pkg/dlock/redislock
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -race -timeout 90m -count=1 ./pkg/dlock/etcdlock
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -race -timeout 60m -count=1 ./pkg/dlock/redlock
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -race -p 1 -timeout 30m -count=1 ./pkg/dlock/filelock ./cmd/dlock
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -v -timeout 60m -count=1 -run 'Processes|Stubborn' ./pkg/dlock/election
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -v -timeout 60m -count=1 -run '^TestSeveralKeysHaveNoDeadlock$$' ./pkg/dlock/redislock ./pkg/dlock/etcdlock
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -race -timeout 30m -count=1 ./pkg/dlock/fence/...
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -C test/fence -race -timeout 60m -count=1 .
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -race -p 1 -timeout 60m -count=1 ./pkg/connector ./pkg/dlock/once ./test/errors ./examples/once ./examples/move
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -C test/browser -race -timeout 30m -count=1 .
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -C test/interop -race -timeout 30m -count=1 .
	DLOCK_STRESS=1 DLOCK_TEST_REQUIRE=1 $(GO) test -C lab -race -timeout 60m -count=1 .
	$(GO) test -race -timeout 60m -count=20 ./pkg/dlock ./pkg/dlock/memlock ./pkg/dlock/faultdriver

fuzz: ## fuzz each entry point for a minute
	$(GO) test -run '^$$' -fuzz FuzzKey$$ -fuzztime 1m ./pkg/dlock
	$(GO) test -run '^$$' -fuzz FuzzTTL$$ -fuzztime 1m ./pkg/dlock
	$(GO) test -run '^$$' -fuzz FuzzKeys$$ -fuzztime 1m ./pkg/dlock/memlock
	$(GO) test -run '^$$' -fuzz FuzzReply$$ -fuzztime 1m ./pkg/dlock/redislock

bench: ## every peer, one run, about twenty minutes; see docs/benchmark.md
	cd bench && $(GO) run . -out results

bench-quick: ## the same with three rounds, for a look
	cd bench && $(GO) run . -quick -out results

bench-go: ## the benchmarks inside the packages, as ratios of the same run
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 15m ./pkg/dlock ./pkg/dlock/filelock ./pkg/dlock/redislock ./pkg/dlock/redlock ./pkg/dlock/etcdlock

bench-start: ## how long dlock run takes to start, compared with flock
	./scripts/bench-start

lab: etcd ## the fault lab on all topologies, about ten minutes
	$(GO) run -C lab . run -seeds 2 -duration 30s -at-once 2 -rest 40ms

lab-night: etcd ## the fault lab until the nightly figures are full; goes on where it stopped
	-$(GO) run -C lab . run -resume -modes calm -duration 20s
	-$(GO) run -C lab . run -resume -modes kills -topologies etcd-3 -seeds 10 -duration 60s -at-once 3 -rest 150ms
	-$(GO) run -C lab . run -resume -modes kills -topologies etcd-1 -seeds 12 -duration 120s -at-once 3 -rest 150ms
	-$(GO) run -C lab . run -resume -modes kills -topologies redlock-3,redlock-5 -seeds 6 -duration 60s -at-once 3 -rest 150ms
	-$(GO) run -C lab . run -resume -modes kills -topologies single,replicated,sentinel,cluster -seeds 3 -duration 60s -at-once 3 -rest 150ms
	$(GO) run -C lab . run -resume -seeds 20 -duration 60s -goals nightly -at-once 3 -rest 150ms -budget 6h

lab-load: ## many waiters, names and held locks, with restarts of the server
	$(GO) run -C lab . load

soak: etcd ## the whole API for two hours on every backend: that nothing grows
	$(GO) run -C lab . soak

lab-mutants: etcd ## that each deliberately broken variant is caught
	$(GO) run -C lab . mutants -duration 10s

mutants: etcd ## generated mutants: which mistakes no test notices; MUTANTS has flags and packages
	$(GO) run ./test/mutants $(MUTANTS)

dist: ## what a release consists of, for all platforms, into dist/; about ten minutes the first time
	./scripts/cross
	./scripts/dist

promtool: ## check the alert rules and run their tests; needs promtool
	./scripts/promtool

picture: ## draw docs/img/run.svg from a run of dlock
	$(GO) run ./internal/picture docs/img/run.svg

api: ## fail if the public API differs from api/
	./scripts/api check

api-update: ## record the public API in api/
	./scripts/api update

deps: ## check what each package links
	./scripts/deps

cover: etcd ## statement coverage of each package of pkg/, by all tests; fails below 90 %
	rm -rf build/cover && mkdir -p build/cover
	DLOCK_TEST_REQUIRE=1 $(GO) test -count=1 -timeout 30m -coverpkg=./pkg/... ./pkg/... ./cmd/dlock -args -test.gocoverdir=$(CURDIR)/build/cover
	DLOCK_TEST_REQUIRE=1 $(GO) test -C test/fence -count=1 -timeout 30m -coverpkg=github.com/ceyewan/genesis/pkg/... . -args -test.gocoverdir=$(CURDIR)/build/cover
	$(GO) tool covdata percent -i=build/cover | tee build/cover.txt
	@awk '/\/pkg\// && $$3+0 < 90 {print $$1 " is covered by " $$3 " only"; low=1} END {exit low}' build/cover.txt
