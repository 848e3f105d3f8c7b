# sudo's PATH often lacks the folder that Go is installed in.
GO ?= $(or $(shell command -v go),/usr/local/go/bin/go)
IMAGE ?= kube-network-policies:v0.1.0
STATICCHECK ?= v0.7.0
FUZZTIME ?= 10s

# Everything is pure Go: no C compiler is needed, and one build cache serves all.
export CGO_ENABLED = 0
# Root may build another user's checkout, of which git would tell it nothing.
export GOFLAGS := $(GOFLAGS) -buildvcs=false
export PATH := $(patsubst %/,%,$(dir $(GO))):$(PATH):/usr/sbin:/sbin

# Tests that need root and network namespaces are skipped for other users. For root
# a skip is a failure.
ifeq ($(shell id -u),0)
export NETNS_REQUIRED ?= 1
endif

# Packages whose tests need a machine of their own for a while.
ALONE = ./tests/lab ./tests/netns ./tests/netpol/suite ./tests/demo

# Packages whose tests ask the kernel.
KERNEL = ./pkg/queue ./pkg/steer ./tests/lab ./tests/netns

.DEFAULT_GOAL := help
.PHONY: help build demo test test-unit test-scenarios test-packets test-netns test-mutants test-integration test-vm race lint fuzz bench image clean demo-tools tools

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1	\2/p' $(MAKEFILE_LIST) | expand -t 16

build: ## build the agent into bin/
	$(GO) build -o bin/ ./cmd/...

demo: demo-tools build ## show the agent at work on this machine, as root: no cluster, under a minute
	@$(GO) build -o bin/demo ./tests/demo
	@$(GIVE_BACK)
	@bin/demo

test: test-unit test-scenarios test-packets ## all tests, as root: the rest skips what needs network namespaces

test-unit: tools ## the tests of each package
	$(GO) test $$($(GO) list ./... | grep -vE '/tests/(lab|netns|netpol/netns|netpol/suite|demo)$$')

test-scenarios: ## the truth tables of every scenario, in process
	$(GO) run ./tests/netpol/suite

test-packets: tools ## real packets through the agent and a few scenarios, in network namespaces, as root
	$(GO) test -p 1 -count 1 $(ALONE)
	$(GO) test -v -count 1 ./tests/netpol/netns

test-netns: tools test-scenarios test-packets ## the same with every scenario
	$(GO) run ./tests/netpol/suite -backend netns

test-mutants: ## faults in the evaluator that the scenarios must notice
	MUTANTS=1 $(GO) test -v -count 1 -timeout 30m -run Mutants ./tests/mutants

test-integration: ## the informers, install.yaml and the status writer against real API servers, built once
	cd tests/integration && $(GO) run ./servers/build && $(GO) test -count 1 -timeout 20m ./...

test-vm: build ## the kernel's side of it on Debian's kernel in an emulated machine: minutes
	$(GO) test -c -o bin/ $(KERNEL)
	tests/vm/run.sh -t 1200 -f bin:/tests -f "$$(command -v setpriv)" \
		env AGENT_BINARY=/tests/kube-network-policies NETNS_REQUIRED=1 \
		bash -c 'cd /tests; modprobe nf_conntrack; echo 262144 >/proc/sys/net/netfilter/nf_conntrack_max; \
			for test in *.test; do echo "$$test"; ./"$$test" -test.skip ChangesLoseNoPacket || failed=1; done; [ -z "$$failed" ]'

race: ## the tests of each package with the race detector, needs a C compiler
	CGO_ENABLED=1 $(GO) test -race ./pkg/... ./cmd/...

lint: ## gofmt, vet, staticcheck, and which package may import which
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt would change: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	cd tests/integration && $(GO) vet ./... && $(GO) mod tidy -diff
	$(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) ./...
	$(GO) test ./tests/layering

fuzz: ## every fuzz target for FUZZTIME (10s) each
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
		for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file"); do \
			echo "$$target in $$(dirname "$$file")"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || exit 1; \
		done; \
	done

bench: ## all benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./pkg/... ./tests/...

image: ## build the container image IMAGE
	docker build -t $(IMAGE) .

clean: ## remove what was built
	rm -rf bin

demo-tools:
	@tests/lab/tools.sh nft ip

tools:
	@tests/lab/tools.sh nft ip iptables-nft

# Under sudo, what is built belongs to the user who called.
GIVE_BACK = [ -z "$$SUDO_UID" ] || chown -R "$$SUDO_UID:$$SUDO_GID" bin
