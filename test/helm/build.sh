#!/bin/sh
# Builds the helm that the end-to-end tests run, as a person would have it: test/helm/build.sh BIN_DIR
# It has its own module file, so that the program depends on nothing of it; like every client, it may be newer than what
# we serve. For another version: go get -modfile test/helm/helm.mod -tool helm.sh/helm/v4/cmd/helm@VERSION
set -eu
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

go build -modfile test/helm/helm.mod -ldflags "-s -w" -o "$bin/helm" helm.sh/helm/v4/cmd/helm
