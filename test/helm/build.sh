#!/bin/sh
# Builds the helm that the end-to-end tests run: test/helm/build.sh BIN_DIR
# It has its own module file, so that the program depends on nothing of it. It is of the minor version that is made for the Kubernetes of
# go.mod, and built of the same modules, so that what both need is compiled once. For another version:
#   go get -modfile test/helm/helm.mod -tool helm.sh/helm/v4/cmd/helm@VERSION && .ci/modules write && GOFLAGS=-mod=mod test/helm/build.sh bin
set -eu
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

go build -modfile test/helm/helm.mod -ldflags "-s -w" -o "$bin/helm" helm.sh/helm/v4/cmd/helm
