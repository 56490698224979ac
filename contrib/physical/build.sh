#!/bin/sh
# Builds bin/physical and the bin/kwok it starts: contrib/physical/build.sh BIN_DIR
# The version flags are needed: clients parse the version a Kubernetes apiserver reports.
# kwok has its own module file because it asks for newer libraries than Kubernetes was released with; kwok.mod gives it those of go.mod.
set -eu
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
major=${version#v}
minor=${major#*.}
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	ldflags="$ldflags -X $package.gitVersion=$version -X $package.gitMajor=${major%%.*} -X $package.gitMinor=${minor%%.*} -X $package.gitTreeState=clean"
done

go build -ldflags "$ldflags" -o "$bin/physical" ./contrib/physical
go build -modfile contrib/physical/kwok.mod -ldflags "-s -w" -o "$bin/kwok" sigs.k8s.io/kwok/cmd/kwok
