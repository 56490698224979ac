#!/bin/sh
# Builds bin/physical, the bin/kwok it starts, and bin/metrics-server, which tests start beside it: contrib/physical/build.sh BIN_DIR
# The version flags are needed: clients parse the version a Kubernetes apiserver reports.
# kwok and metrics-server have module files of their own because they ask for newer libraries than Kubernetes was released with; kwok.mod and metrics-server.mod
# give them those of go.mod, so that what they share is compiled once.
set -eu
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

ldflags=$(.ci/kubernetes-ldflags)

go build -ldflags "$ldflags" -o "$bin/physical" ./contrib/physical
go build -modfile contrib/physical/kwok.mod -ldflags "-s -w" -o "$bin/kwok" sigs.k8s.io/kwok/cmd/kwok
go build -modfile contrib/physical/metrics-server.mod -ldflags "-s -w" -o "$bin/metrics-server" sigs.k8s.io/metrics-server/cmd/metrics-server
