#!/bin/sh
# Builds bin/e2e.test, Kubernetes' own end-to-end suite, unmodified: test/conformance/build.sh BIN_DIR
# It has its own module file, so that the program depends on nothing of it. The versions are those of go.mod, so that
# what both need is compiled once. For another one, write it into go.mod and e2e.mod, and
#   go get -modfile test/conformance/e2e.mod -t k8s.io/kubernetes/test/e2e@VERSION
set -eu
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
e2e=$(go list -modfile test/conformance/e2e.mod -m -f '{{.Version}}' k8s.io/kubernetes)
[ "$e2e" = "$version" ] || { echo "test/conformance/e2e.mod has Kubernetes $e2e, go.mod has $version" >&2 && exit 1; }
major=${version#v}
minor=${major#*.}
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	ldflags="$ldflags -X $package.gitVersion=$version -X $package.gitMajor=${major%%.*} -X $package.gitMinor=${minor%%.*} -X $package.gitTreeState=clean"
done
go test -c -vet=off -modfile test/conformance/e2e.mod -ldflags "$ldflags" -o "$bin/e2e.test" k8s.io/kubernetes/test/e2e
