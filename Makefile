# Everything is one command: "make help" lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# As Kubernetes' own programs are built: nothing here is written in C, and one link takes a fraction of the time. What is built or tested
# without it is compiled from the start, so set it in your shell, too (CONTRIBUTING.md).
export CGO_ENABLED := 0

# Documents are not in the binary: a benchmark that writes its figures does not make the next one's binary another.
VERSION := $(shell git describe --tags --always 2>/dev/null || echo unknown)$(shell git diff --quiet HEAD -- . ':!docs' 2>/dev/null || echo -dirty)
# The API that is served reports the version of Kubernetes it is made of: clients parse it.
KUBERNETES := $(shell awk '$$1 == "k8s.io/kubernetes" {print $$2; exit}' go.mod)
KUBERNETES_MINOR := $(word 2,$(subst ., ,$(KUBERNETES)))
LDFLAGS := -s -w -X main.atollVersion=$(VERSION) $(foreach package,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
	-X $(package).gitVersion=$(KUBERNETES) -X $(package).gitMajor=1 -X $(package).gitMinor=$(KUBERNETES_MINOR) -X $(package).gitTreeState=clean)

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build and run

.PHONY: build
build: preflight bin/atoll bin/physical ## Build bin/atoll, and bin/physical with bin/kwok and bin/metrics-server for development.

.PHONY: preflight
preflight:
	@.ci/preflight

.PHONY: bin/atoll
bin/atoll: preflight
	@echo "Building $@ $(VERSION) ..."
	@time go build -ldflags "$(LDFLAGS)" -o $@ ./cmd/atoll

.PHONY: bin/physical
bin/physical: preflight
	@echo "Building $@, bin/kwok and bin/metrics-server: Kubernetes $(KUBERNETES) in one process ..."
	@time contrib/physical/build.sh bin

# The image is of linux. The program in it is bin/atoll on a machine of that kind, and else one beside it.
IMAGE := atoll
IMAGE_ARCH := $(or $(GOARCH),amd64)
HOST := $(shell go env GOHOSTOS GOHOSTARCH 2>/dev/null)
IMAGE_PROGRAM := bin/$(if $(filter-out $(HOST),linux $(IMAGE_ARCH)),linux-$(IMAGE_ARCH)/)atoll

.PHONY: image
image: $(IMAGE_PROGRAM) ## Build the OCI image IMAGE, default atoll, as bin/atoll-linux-amd64.tar, without a container engine. GOARCH=arm64 builds that.
	@env -u GOOS -u GOARCH go run ./contrib/image --program $< --output bin/atoll-linux-$(IMAGE_ARCH).tar --name "$(IMAGE):$(VERSION)" \
		--revision "$$(git rev-parse HEAD)" --created "$$(git log -1 --format=%ct)"

bin/linux-%/atoll: preflight
	@echo "Building $@ $(VERSION) ..."
	@time GOOS=linux GOARCH=$* go build -ldflags "$(LDFLAGS)" -o $@ ./cmd/atoll

.PHONY: dns-image
dns-image: preflight ## Build CoreDNS with the names of workspaces (contrib/dns) and an image of it, bin/coredns.tar, without a container engine. Of linux.
	@go -C contrib/dns build -ldflags "-s -w" -o ../../bin/coredns .
	@go run ./contrib/realnode image bin/coredns "docker.io/library/atoll-coredns:$(VERSION)" bin/coredns.tar

.PHONY: demo
demo: build ## See the main job done, on two physical clusters. KEEP=1 leaves it running.
	@go build -o bin/demo ./contrib/demo
	@bin/demo $(if $(KEEP),--keep)

.PHONY: physical
physical: physical-name bin/physical ## Start a physical cluster, for those who have none: make physical NAME=east. EXEC_ON_HOST=1 has kubectl exec there run commands on this machine.
	@EXEC_ON_HOST="$(EXEC_ON_HOST)" contrib/demo/physical start "$(NAME)"

.PHONY: physical-name
physical-name: # before minutes of building
	@contrib/demo/physical name "$(NAME)"

.PHONY: physical-stop
physical-stop: ## Stop a physical cluster: make physical-stop NAME=east. REMOVE=1 removes its data, too.
	@contrib/demo/physical stop "$(NAME)" $(if $(filter 1,$(REMOVE)),--remove)

##@ Test

.PHONY: test
test: ## Run everything CI runs, and print the time of each suite.
	@.ci/suites build lint+conformance generated servers unit+nodes operators-short+demo table

.PHONY: unit
unit: ## Run the tests of the packages.
	@.ci/suites build unit

.PHONY: integration
integration: ## Run the tests of the whole server in one process.
	@.ci/suites build integration

.PHONY: e2e
e2e: ## Run the tests of the built binary with two physical clusters.
	@.ci/suites build e2e

.PHONY: bench
bench: build ## Measure it against its goals, and write docs/benchmarks.md. ROWS=regexp measures some rows; FORCE=1 even with changed files, or on a busy machine.
	@ATOLL_BIN_DIR=$(CURDIR)/bin go run ./test/bench $(if $(ROWS),--rows '$(ROWS)') $(if $(FORCE),--force)

.PHONY: profiles
profiles: build ## Profile the server while it is measured, and write docs/profiles.md. ROWS=regexp profiles some rows.
	@ATOLL_BIN_DIR=$(CURDIR)/bin go run ./test/bench --profiles $(if $(ROWS),--rows '$(ROWS)') $(if $(FORCE),--force)

.PHONY: soak
soak: build ## Run what takes too long for every change, some ten hours, and write docs/soak.md. PARTS="kills fuzz" runs some.
	@.ci/soak $(PARTS)

.PHONY: conformance
conformance: build bin/e2e.test ## Run Kubernetes' own conformance specs in two workspaces, and write docs/conformance.md.
	@ATOLL_BIN_DIR=$(CURDIR)/bin go test -count=1 -timeout 1h -v -run '^TestConformance$$' ./test/conformance -report $(CURDIR)/docs/conformance.md

.PHONY: conformance-specs
conformance-specs: build bin/e2e.test
	@ATOLL_BIN_DIR=$(CURDIR)/bin go test -count=1 -timeout 2h -v -run '^TestCandidates$$' ./test/conformance -specs $(CURDIR)/test/conformance/specs.txt

.PHONY: bin/e2e.test
bin/e2e.test: preflight
	@echo "Building $@: Kubernetes' own end-to-end suite ..."
	@time test/conformance/build.sh bin

.PHONY: operators
operators: ## Run controllers that nobody here wrote in two workspaces at once, and write docs/operators.md.
	@.ci/suites build operators

.PHONY: realnodes
realnodes: ## As root: install what it takes of Debian, run pods on nodes of kubelet and containerd, and write docs/realnodes.md.
	@.ci/suites build realnodes

.PHONY: charts
charts: ## Take twenty Helm charts through their lives in workspaces and in a plain cluster, compare, and write docs/charts.md. CHARTS=regexp runs some.
	@.ci/suites build charts

.PHONY: lint
lint: ## gofmt, go vet and staticcheck (.ci/lint.mod says why those).
	@.ci/lint

.PHONY: verify
verify: lint ## lint; go.mod, generated code and the documents' tables are up to date (which builds helm); no known vulnerability is called.
	@.ci/verify
	@.ci/vulnerabilities

.PHONY: generate
generate: ## Generate code and the tables in the documents.
	@go generate ./...

.PHONY: clean
clean: ## Remove what was built. Data of servers (.atoll) and physical clusters (.physical) stays.
	rm -rf bin
