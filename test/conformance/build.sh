#!/bin/sh
# Builds bin/e2e.test, Kubernetes' own end-to-end suite, unmodified: test/conformance/build.sh BIN_DIR
# It has its own module file, so that the program depends on nothing of it. The versions are those of go.mod, so that
# what both need is compiled once. For another one, write it into go.mod and e2e.mod, and
#   go get -modfile test/conformance/e2e.mod -t k8s.io/kubernetes/test/e2e@VERSION
set -eu
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

ldflags=$(.ci/kubernetes-ldflags test/conformance/e2e.mod)
go test -c -vet=off -modfile test/conformance/e2e.mod -ldflags "$ldflags" -o "$bin/e2e.test" k8s.io/kubernetes/test/e2e
