# sudo's PATH often lacks the folder that Go is installed in.
GO ?= $(or $(shell command -v go),/usr/local/go/bin/go)
# The name that the Helm chart gives to the image.
IMAGE ?= $(shell sed -n 's/^  repository: //p' charts/kube-network-policies/values.yaml):$(shell sed -n 's/^appVersion: //p' charts/kube-network-policies/Chart.yaml)
PROBER_IMAGE ?= netpol-prober:v0.2.0
STATICCHECK ?= v0.7.0
ACTIONLINT ?= v1.7.12
GOCYCLO ?= v0.6.0
GOVULNCHECK ?= v1.2.0
FUZZTIME ?= 10s

# Everything is pure Go: no C compiler is needed, and one build cache serves all.
export CGO_ENABLED = 0
# Root may build another user's checkout, in which git refuses to work.
export GOFLAGS := $(GOFLAGS) -buildvcs=false
export PATH := $(patsubst %/,%,$(dir $(GO))):$(PATH):/usr/sbin:/sbin

# What --version says. The date is that of the commit, so that equal sources make
# equal programs.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE ?= $(shell git log -1 --format=%cI 2>/dev/null)
BUILD = github.com/prometheus/common/version
LDFLAGS = -X $(BUILD).Version=$(VERSION) -X $(BUILD).Revision=$(COMMIT) -X $(BUILD).BuildDate=$(DATE)
PROBER_LDFLAGS = -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)

# Tests that need root and network namespaces are skipped for other users. For root
# a skip is a failure.
ifeq ($(shell id -u),0)
export NETNS_REQUIRED ?= 1
endif

# Tests are linked without debugging information, in half the time. What test-all has
# vetted in lint is not vetted again. A slow machine takes longer than the ten minutes that a
# package has by default.
QUICK = -ldflags=-w -timeout 60m $(VET)

# Packages whose tests send packets. They wait most of the time, and in the short form run
# beside each other.
PACKETS = ./tests/packets/... ./tests/repository/demo

# Packages that run goroutines or are called from several.
RACE = ./pkg/agent ./pkg/kernel/addressreuse ./pkg/kernel/handover ./pkg/kernel/bridgefilter ./pkg/kernel/conntrack ./pkg/agent/names/... ./pkg/agent/enforce ./pkg/agent/flows ./pkg/agent/packets ./pkg/agent/holder ./pkg/agent/confirmation ./pkg/agent/newpods ./pkg/kernel/links ./pkg/kernel/nft/... ./pkg/agent/nodecheck ./pkg/agent/serve ./pkg/engine/policy ./pkg/cluster/clusterwatch ./pkg/cluster/apiconn ./pkg/cluster/podwatch ./pkg/cluster/manifests ./pkg/kernel/queue/... ./pkg/base/runner ./pkg/status ./pkg/status/agents ./pkg/status/enforced ./pkg/status/gate ./pkg/kernel/steer/... ./pkg/agent/verdictcache

# Packages whose tests ask the kernel.
KERNEL = ./pkg/kernel/conntrack ./pkg/kernel/nft ./pkg/kernel/queue ./pkg/kernel/steer ./tests/packets/netns ./tests/packets/neighbours

# Packages that read or write binary. An emulator of user programs makes no namespaces, so its root must
# not be allowed to.
BINARY = ./pkg/engine/packet ./pkg/kernel/... ./pkg/cluster/cniresults ./pkg/cluster/podwatch ./pkg/cluster/statefile ./pkg/base/sealedfile ./pkg/agent/flows ./pkg/agent/inforce ./pkg/agent/names/domains ./pkg/agent/nodecheck
NO_NAMESPACES = $(if $(filter 0,$(shell id -u)),setpriv --bounding-set -sys_admin)

# The plugin is a module of its own, as are some tests, because of what they depend on.
PLUGIN = cmd/kubectl-netpol
MODULES = $(PLUGIN) tests/netpol tests/netpol/specs tests/model/e2e tests/cluster/integration tests/cluster/conformance tests/cluster/conformance/v0.1.7 tests/cluster/conformance/v0.2.0 tests/cluster/conformance/v0.3.0 tests/speed tests/repository/view release

# What bench measures, in the form of Go's benchmarks.
BENCH_RESULTS ?= bin/bench.txt

# The page of the repository, for releases and reports.
PROJECT ?= https://repository.example/kube-network-policies
# What a conformance report links to as the run that made it.
PROOF ?= $(PROJECT)

comma := ,

.DEFAULT_GOAL := help
.PHONY: help build docs demo test test-all test-unit test-emulated test-scenarios test-conformance test-packets test-monitoring test-view test-peer test-image test-conformance-packets conformance-report test-netns test-hard soak compare test-mutants test-property test-integration test-vm kernels test-conformance-vm cluster-up cluster-down e2e e2e-slice e2e-conformance e2e-dsl e2e-edges race vulnerabilities lint house fuzz bench bench-other pictures view-picture manifests image netpol release clean demo-tools tools vm-tools packet-tools monitoring-tools image-tools view-tools

help: ## this list
	@sed -nE 's/^##@ (.*)/\n\1/p; s/^([a-z0-9-]+):.*## (.*)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 28

##@ Build

build: ## build the programs into bin/
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...
	cd $(PLUGIN) && $(GO) build -ldflags '$(LDFLAGS)' -o ../../bin/ .

docs: ## write what docs have from the code: flags, metrics, lints, results, and what kubectl netpol prints
	$(GO) test -count 1 -run 'MetricsAreDocumented|ResultsTable|ResultsPicture|TestFlagsPage' ./tests/repository/docs ./cmd/kube-network-policies ./cmd/status-writer -update
	cd $(PLUGIN) && $(GO) test -count 1 -run 'TestDocument|GoodSets' . ./lint -update

demo: demo-tools build ## show the agent and kubectl netpol at work on this machine, as root: no cluster, under a minute
	@$(GO) build -o bin/demo ./tests/repository/demo
	@$(GIVE_BACK)
	@bin/demo

##@ Test

test: tools ## what every change should pass, as root: the short form of each kind of test, minutes
	@SHORT=-short tests/repository/parts.sh -beside test-packets test-unit test-scenarios test-conformance test-view

test-all: export VET = -vet=off
test-all: export ONLY_BUILT = 1
test-all: export SINCE ?= $(shell git rev-parse --quiet --verify HEAD~1)
# Tests of packets and of API servers wait most of the time, and do so beside each other.
test-all: ## every test there is, the linters and the demo, as root: what CI runs
	@tests/repository/parts.sh lint test-unit race test-scenarios test-conformance test-view test-image \
		-beside test-integration test-packets test-conformance-packets test-monitoring test-mutants e2e-slice demo vulnerabilities

test-unit: tools ## the tests of each package
	$(GO) test $(SHORT) $(QUICK) $$($(GO) list ./... | grep -vE '/tests/(packets|repository/demo|cluster/(monitoring|image))(/|$$)')
	cd $(PLUGIN) && $(GO) test $(SHORT) $(QUICK) ./...
	cd tests/netpol && $(GO) test $(SHORT) ./...
	cd tests/model/e2e && $(GO) test $(SHORT) .
	cd tests/cluster/integration && $(GO) test $(SHORT) ./install
	cd release && $(GO) test $(SHORT) ./...

test-emulated: ## what reads or writes binary, big-endian (s390x) and on arm64, emulated by qemu-user-static and without the kernel: minutes
	$(foreach machine,s390x/s390x arm64/aarch64,GOARCH=$(patsubst %/,%,$(dir $(machine))) NETNS_REQUIRED= $(GO) test $(SHORT) $(QUICK) -count 1 -exec '$(NO_NAMESPACES) qemu-$(notdir $(machine))-static' $(BINARY) &&) true

test-scenarios: ## the truth tables of every scenario, in process
	$(GO) run ./tests/packets/suite

test-conformance: ## the conformance suites of the network policy API on the evaluator and, unless SHORT, on the oracle
	cd tests/cluster/conformance && $(GO) test ./... && $(GO) run . $(if $(SHORT),-networks compiled -clusters IPv4-beside$(comma)IPv6-apart)

test-monitoring: tools monitoring-tools ## metrics, alerts and dashboard with a real Prometheus, as root
	$(GO) test -count 1 ./tests/cluster/monitoring

test-view: view-tools ## the page of kubectl netpol view in a browser, Chromium
	cd tests/repository/view && $(GO) test -count 1 ./...

test-peer: ## compare kubectl netpol with another program: PEER=FOLDER, a checkout of cyclonus or of netpol-analyzer
	@test -d "$(PEER)" || { echo "PEER=FOLDER: a checkout of cyclonus or of netpol-analyzer"; exit 1; }
	cd $(PLUGIN) && PEER="$(abspath $(PEER))" $(GO) test -count 1 -v -run '^TestPeer$$' .

test-image: image-tools ## the Dockerfile built by buildah from base images of Debian's packages, as root and without Docker
	$(GO) test -v -count 1 -timeout 30m ./tests/cluster/image

test-packets: packet-tools ## real packets through the agent and a few scenarios, in network namespaces, as root
	$(GO) test $(SHORT) $(QUICK) -p $(if $(SHORT),4,1) -count 1 $(PACKETS)

test-conformance-packets: tools build ## the conformance suites with real packets, as root: three minutes
	cd tests/cluster/conformance && $(GO) run . -networks netns -agent ../../../bin/kube-network-policies

# The report that network-policy-api collects, docs/testing/conformance.md.
conformance-report: REPORT ?= bin/conformance-report.yaml
conformance-report: tools build
	cd tests/cluster/conformance && $(GO) run . -networks netns -agent ../../../bin/kube-network-policies -suites v0.3.0 -clusters IPv4-beside \
		-report '$(abspath $(REPORT))' -version '$(VERSION)' -home '$(PROJECT)' -proof '$(PROOF)'

test-netns: tools test-scenarios test-packets test-conformance-packets ## the same with every scenario, with verdicts remembered by the kernel and without, and with answers
	$(GO) run ./tests/packets/suite -backend netns
	$(GO) run ./tests/packets/suite -backend netns-asking
	$(GO) run ./tests/packets/suite -backend netns-rejecting
	cd tests/cluster/conformance && $(GO) run . -networks netns-asking,netns-rejecting -agent ../../../bin/kube-network-policies

test-hard: tools ## long attacks with real packets, as root: minutes. With CLUSTER=1 also pods that start at once on the cluster that is up
	HARD=1 $(GO) test -v -p 1 -count 1 -timeout 60m ./tests/packets/attacks
	HARD=1 $(GO) test -v -count 1 -timeout 20m -run '^TestHard' ./tests/packets/netns
	HARD=1 $(GO) test -v -count 1 -run InjectedErrors ./pkg/kernel/queue
	$(if $(CLUSTER),$(MAKE) e2e-edges RUN=AtOnce)

compare: packet-tools vm-tools build bench-other ## the truth tables with each of PROVIDERS, as root. With VM_KERNEL=bookworm on that kernel of Debian: docs/testing/comparison.md
	tests/packets/suite/compare.sh $(if $(VM_KERNEL),-k $(VM_KERNEL)) $(or $(PROVIDERS),netns-none netns-kube-router)

test-property: ## the properties of random clusters, 10000 fresh ones of each: minutes
	PROPERTY_CLUSTERS=$${PROPERTY_CLUSTERS:-10000} PROPERTY_SEED=$${PROPERTY_SEED:-$$(od -An -N7 -tu8 /dev/urandom | tr -d ' ')} \
		$(GO) test -v -count 1 -timeout 1h -run 'Test' ./tests/model/property

soak: TIME ?= 15m
soak: SOAKS = $(if $(filter names,$(RUN)),TestSoakOfNames,TestSoak)
soak: tools ## changes under load for twice TIME (15m), one half of it with the race detector, or with RUN=names changing answers of resolvers, as root: needs a C compiler
	CGO_ENABLED=1 $(GO) build -race -o bin/soak/ ./cmd/kube-network-policies
	AGENT_BINARY=$(CURDIR)/bin/soak/kube-network-policies SOAK=$(TIME) $(GO) test -v -count 1 -timeout 1h -run '^$(SOAKS)$$' ./tests/packets/netns
	SOAK=$(TIME) $(GO) test -v -count 1 -timeout 1h -run '^$(SOAKS)$$' ./tests/packets/netns

test-mutants: tools ## faults in the code that the tests must notice, as root: all of them, or with SINCE=REVISION those of packages that have changed
	MUTANTS=$(or $(SINCE),all) $(GO) test -v -count 1 -timeout 60m -parallel 4 -run Mutants ./tests/repository/mutants

test-integration: tools monitoring-tools ## the informers, install.yaml and the status writer against real API servers, built once
	cd tests/cluster/integration && nice $(GO) run ./servers/build etcd v1.37/api $(if $(ONLY_BUILT),,v1.27)
	@cd tests/cluster/integration && [ -z "$$($(GO) run ./servers/build -missing v1.27)" ] || \
		echo "NOT RUN: the tests with Kubernetes 1.27, which is not built on this machine. make test-integration builds it."
	cd tests/cluster/integration && $(GO) test $(VET) -count 1 -timeout 60m ./...

test-vm: vm-tools build bench-other ## the kernel's side of it, or those tests that RUN matches, on Debian's kernel in an emulated machine: minutes. VM_KERNEL=trixie for that of another release
	rm -rf bin/vm && mkdir bin/vm && cp bin/kube-network-policies $(BENCH_OTHER) bin/vm/
	$(GO) test -c -o bin/vm/ $(KERNEL)
	tests/packets/vm/run.sh $(if $(VM_KERNEL),-k $(VM_KERNEL)) -m 2048 -t 3600 -f bin/vm:/tests -f docs:/docs -f pkg/kernel/steer/testdata:/tests/testdata -f "$$(command -v setpriv)" -f "$$(command -v ipvsadm)" -f "$$(command -v conntrack)" -f "$$(command -v tc)" \
		$(foreach name,iptables-nft iptables-nft-save iptables-nft-restore ip6tables-nft ip6tables-nft-save ip6tables-nft-restore,-f "$$(readlink -f "$$(command -v iptables-nft)"):/usr/sbin/$(name)") -f "$$(dirname "$$(find /usr/lib -name libxt_NFQUEUE.so | head -n 1)")" \
		env AGENT_BINARY=/tests/kube-network-policies UPSTREAM_BINARY=/tests/$(notdir $(BENCH_OTHER)) NETNS_REQUIRED=1 KERNEL_REQUIRED=1 SLOWNESS=5 HARD=$(HARD) \
		bash -c 'cd /tests; modprobe -a veth bridge nf_conntrack br_netfilter nft_flow_offload nf_flow_table_inet ip_vs ip_vs_rr nft_ct nft_queue nft_fib_inet nft_reject_inet nft_limit nft_compat; echo 262144 | tee /sys/module/nf_conntrack/parameters/hashsize >/proc/sys/net/netfilter/nf_conntrack_max; \
			for test in *.test; do echo "$$test"; short=; [ "$$test" != neighbours.test ] || short=-test.short; ./"$$test" $$short -test.run "$(RUN)" || failed=1; done; [ -z "$$failed" ]'

kernels: vm-tools ## what Debian's kernels answer to the agent's probe, in the emulated machine: minutes, for docs/install/versions.md
	tests/packets/vm/kernels.sh bullseye bookworm trixie trixie-backports

test-conformance-vm: build ## the conformance suites on that kernel: half an hour
	mkdir -p bin/conformance && cp bin/kube-network-policies bin/conformance/
	cd tests/cluster/conformance && $(GO) build -o ../../../bin/conformance/ . && for release in v0.1.7 v0.2.0 v0.3.0; do \
		(cd $$release && $(GO) test -c -o ../../../../bin/conformance/$$release.test .) || exit 1; done
	tests/packets/vm/run.sh -m 1500 -t 3000 -f bin/conformance:/tests \
		bash -c 'cd /tests; modprobe -a nf_conntrack nfnetlink_queue; echo 262144 >/proc/sys/net/netfilter/nf_conntrack_max; \
			for release in v0.1.7 v0.2.0 v0.3.0; do ./conformance -suites "$$release" -clusters IPv4-beside -networks netns -binaries . \
				-agent ./kube-network-policies -silence 2s || failed=1; done; [ -z "$$failed" ]'

##@ Test on a cluster

cluster-up: ## two nodes of Kubernetes on this machine, with DNS and the agent, as root and without Docker (docs/testing/cluster.md)
	LDFLAGS='$(LDFLAGS)' tests/cluster/e2e/cluster/up.sh

cluster-down: ## end that cluster
	tests/cluster/e2e/cluster/down.sh

e2e: ## Kubernetes' own tests of network policies, or those that FOCUS matches, on that cluster
	tests/cluster/e2e/e2e.sh

e2e-slice: ## a dozen of these tests on a cluster of their own, if its programs have been built: minutes
	LDFLAGS='$(LDFLAGS)' tests/cluster/e2e/slice.sh

e2e-conformance: ## the conformance suites of the network policy API with real pods on that cluster, or on that of KUBECONFIG
	REPORT='$(abspath $(REPORT))' VERSION='$(VERSION)' PROJECT='$(PROJECT)' PROOF='$(PROOF)' tests/cluster/e2e/conformance.sh

e2e-dsl: ## the truth tables of every scenario with real pods on that cluster, or on that of KUBECONFIG
	tests/cluster/e2e/dsl.sh

e2e-edges: ## what only a cluster shows: probes, starts, ways to a pod, restarts and outages under traffic, removal
	LDFLAGS='$(LDFLAGS)' tests/cluster/e2e/edges.sh

##@ Checks

# On one CPU: if two goroutines of a bubble of testing/synctest run timers at the same
# time, the race detector itself crashes, now and then (Go 1.26). What it finds depends on
# how accesses are ordered, not on whether they happen at the same time.
race: tools ## the tests of the packages that run goroutines, with the race detector: needs a C compiler
	CGO_ENABLED=1 $(GO) test -race -short -cpu 1 $(RACE)

vulnerabilities: ## known vulnerabilities that the programs can reach, where their database can be
	@tests/repository/vulnerabilities.sh $(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK) ./cmd/...
	@tests/repository/vulnerabilities.sh $(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK) -C $(PLUGIN) ./...

lint: ## gofmt, vet, staticcheck, gocyclo, actionlint, generated manifests, and which package may import which
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt would change: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	@for module in $(MODULES); do \
		echo "vet and tidy $$module"; (cd "$$module" && $(GO) vet ./... && $(GO) mod tidy -diff) || exit 1; \
	done
	$(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) ./...
	@for module in $(PLUGIN) tests/netpol; do \
		echo "staticcheck $$module"; (cd "$$module" && $(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) ./...) || exit 1; \
	done
	$(GO) run github.com/fzipp/gocyclo/cmd/gocyclo@$(GOCYCLO) -over 15 -ignore _test.go cmd pkg
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT) .github/workflows/* action/example.yml
	cd release && $(GO) run ./manifests -check
	$(GO) test ./tests/repository/layering

house: ## lines of core, drivers and modules, and their bounds
	@$(GO) test -count 1 -v -run '^TestHouse$$' ./tests/repository/layering | sed -n 's/^ *house_test.go:[0-9]*: //p'

fuzz: ## every fuzz target for FUZZTIME (10s) each
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
		for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file"); do \
			echo "$$target in $$(dirname "$$file")"; \
			$(GO) test -C "$$(dirname "$$file")" -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) . || exit 1; \
		done; \
	done

##@ Measure

# What bench compares with, if it was built. It is built where its own go.sum is.
BENCH_OTHER = bin/kube-network-policies-v1.1.1

bench-other: ## build kube-network-policies v1.1.1 from its public release, so that bench compares with it
	mkdir -p bin && cd "$$(cd / && $(GO) mod download -json sigs.k8s.io/kube-network-policies@v1.1.1 | sed -nE 's/^\t"Dir": "(.*)",$$/\1/p')" && \
		$(GO) build -mod=readonly -o $(CURDIR)/$(BENCH_OTHER) ./cmd/kube-network-policies/standard

# Go's benchmarks and the large cluster run several times as a whole, so that what is
# compared is measured beside each other.
ROUNDS = $(if $(SHORT),1,7)
SCALE_RUNS = $(if $(SHORT),1,3)
SCALE_PODS = 1000 $(if $(SHORT),,100000)

bench: tools ## what is promised of speed and size, and what is reached: as root, on a quiet machine. With SHORT=-short once and with less of everything: does it work?
	$(GO) build -o bin/ ./cmd/kube-network-policies
	cd tests/speed && $(GO) build -o ../../bin/ ./bench ./bench/callback ./bench/floor ./scale && $(GO) test -c -o ../../bin/ ./bench
	$(GO) test -c -o bin/ ./pkg/kernel/steer
	@$(GIVE_BACK)
	bin/bench -rounds $(ROUNDS) $(SHORT) $(if $(wildcard $(BENCH_OTHER)),-other $(BENCH_OTHER)) >$(BENCH_RESULTS)
	for round in $$(seq $(ROUNDS)); do bin/bench.test -test.run '^$$' -test.bench . -test.benchtime 0.3s $(SHORT:-%=-test.%) && \
		bin/steer.test -test.run '^$$' -test.bench KernelWrite -test.benchtime 50x || exit 1; done >>$(BENCH_RESULTS)
	for run in $$(seq $(SCALE_RUNS)); do for pods in $(SCALE_PODS); do \
		bin/scale -agent bin/kube-network-policies -pods $$pods $(SHORT) >>$(BENCH_RESULTS) || exit 1; done; done
	$(if $(SHORT),,HARD=1) NETNS_REQUIRED=1 $(GO) test -count 1 -v -run '^TestADenyBeside' ./tests/packets/netns >>$(BENCH_RESULTS)
	@cd tests/speed && $(GO) run ./bench/table ../../$(BENCH_RESULTS)

pictures: tools monitoring-tools view-picture ## the pictures of docs/img: the dashboard, recorded from agents at work, and the page of kubectl netpol view, and, if make bench was run, its plots, as root
	@mkdir -p bin
	$(if $(wildcard $(BENCH_RESULTS)),cd tests/speed && $(GO) run ./bench/plots -into ../../docs/performance/img ../../$(BENCH_RESULTS))
	DASHBOARD=$(CURDIR)/bin/dashboard.json $(GO) test -count 1 -run '^TestRecordDashboard$$' ./tests/cluster/monitoring
	cd tests/speed && $(GO) run ./bench/plots/dashboard ../../bin/dashboard.json ../../docs/img/dashboard.svg

view-picture: view-tools ## the page of kubectl netpol view of 20, 60 and 200 workloads, for docs/img
	cd tests/repository/view && PICTURES=$(CURDIR)/docs/img $(GO) test -count 1 -run '^TestPictures$$' .

##@ Release

manifests: ## render the Helm chart into install*.yaml and kustomize/
	cd release && $(GO) run ./manifests

# What is released, and the image that it names.
RELEASE ?= $(shell sed -n 's/^appVersion: //p' charts/kube-network-policies/Chart.yaml)
RELEASE_IMAGE ?= registry.example/kube-network-policies
DIST = $(GO) run ./dist -version $(RELEASE) -image $(RELEASE_IMAGE) -project $(PROJECT) -ldflags '-X $(BUILD).Version=$(RELEASE) -X $(BUILD).Revision=$(COMMIT) -X $(BUILD).BuildDate=$(DATE)'

release: ## the files of the release RELEASE, in bin/release. With DRY_RUN=1 also of the changelog's unreleased section
	rm -rf bin/release
	cd release && $(DIST) $(if $(DRY_RUN),-unreleased)
	@$(GIVE_BACK)
	cd bin/release && sha256sum --check --quiet SHA256SUMS && ls

# The image of the suite is a file for docker load, made without Docker.
netpol: ## build the truth tables for any cluster (docs/testing/your-cluster.md): bin/netpol and, with Ginkgo, bin/netpol.test, static, and bin/netpol-image.tar
	cd tests/netpol && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(CURDIR)/bin/netpol ./cmd/netpol
	cd tests/netpol/specs && CGO_ENABLED=0 $(GO) test -c -trimpath -ldflags '-s -w' -o $(CURDIR)/bin/netpol.test ./e2e
	rm -rf bin/netpol-image && install -D bin/netpol bin/netpol-image/usr/bin/netpol
	tests/cluster/e2e/cluster/image.sh netpol:dev bin/netpol-image bin/netpol-image.tar '{"User": "65532:65532", "Env": ["PATH=/usr/bin"], "Entrypoint": ["netpol"]}'
	rm -rf bin/netpol-image

image: ## build the container images of the agent, IMAGE, and of the prober (docs/testing/prober.md), PROBER_IMAGE
	docker build --build-arg LDFLAGS='$(LDFLAGS)' -t $(IMAGE) .
	docker build --build-arg LDFLAGS='$(PROBER_LDFLAGS)' --target prober -t $(PROBER_IMAGE) .

clean: ## remove what was built
	rm -rf bin

demo-tools:
	@tests/packets/lab/tools.sh ip

tools:
	@tests/packets/lab/tools.sh nft ip iptables-nft

vm-tools:
	@tests/packets/lab/tools.sh nft ip iptables-nft ipvsadm

packet-tools:
	@tests/packets/lab/tools.sh nft ip iptables-nft iptables-legacy ipset conntrack tc

monitoring-tools:
	@tests/packets/lab/tools.sh promtool prometheus

image-tools:
	@tests/packets/lab/tools.sh buildah mmdebstrap

view-tools:
	@tests/packets/lab/tools.sh chromium

# Under sudo, what is built belongs to the user who called.
GIVE_BACK = [ -z "$$SUDO_UID" ] || chown -R "$$SUDO_UID:$$SUDO_GID" bin
