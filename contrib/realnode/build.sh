#!/bin/sh
# Builds bin/realnode and what it starts: contrib/realnode/build.sh BIN_DIR. It takes bin/physical as contrib/physical/build.sh makes it.
# Each program is of a module file of its own, unmodified but for a plugin of CoreDNS (contrib/dns), which does nothing where its configuration does not name it. kubelet.mod and contrib/dns/go.mod have the versions of go.mod (.ci/modules); the others ask for newer ones. For another version of one:
#   go get -modfile contrib/realnode/FILE.mod -tool PACKAGE@VERSION
# runc is written in C in part, and for seccomp asks for a library of Debian's: contrib/realnode/debian.sh.
set -eu
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

ldflags=$(.ci/kubernetes-ldflags contrib/realnode/kubelet.mod)

go build -ldflags "-s -w" -o "$bin/realnode" ./contrib/realnode
go build -ldflags "-s -w" -o "$bin/pause" ./contrib/realnode/pause
"$bin/realnode" image "$bin/pause" realnode.atoll.dev/pause:v1 "$bin/pause.tar"

for program in kubelet kube-proxy; do
	go build -modfile contrib/realnode/kubelet.mod -ldflags "$ldflags" -o "$bin/$program" "k8s.io/kubernetes/cmd/$program"
done
# containerd says which version it is, which a node's status shows.
containerd=$(go list -modfile contrib/realnode/containerd.mod -m -f '{{.Version}}' github.com/containerd/containerd/v2)
for program in containerd containerd-shim-runc-v2 ctr; do
	go build -modfile contrib/realnode/containerd.mod -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd" -o "$bin/$program" \
		"github.com/containerd/containerd/v2/cmd/$program"
done
go -C contrib/dns build -ldflags "-s -w" -o "$bin/coredns" .
CGO_ENABLED=1 go build -modfile contrib/realnode/runc.mod -tags seccomp -ldflags "-s -w" -o "$bin/runc" github.com/opencontainers/runc
