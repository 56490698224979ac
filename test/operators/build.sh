#!/bin/sh
# Builds the programs that the tests of test/operators run: test/operators/build.sh BIN_DIR [PROGRAM...], default all.
# They have module files of their own, so that the server depends on nothing of them; what they share with go.mod is of its versions, and
# compiled once (.ci/modules). Not so jobset and lws, which share one file: each comes with another version of Kubernetes' libraries, which
# take longest to build. For another version of a program:
#   go get -modfile test/operators/FILE.mod -tool PACKAGE@VERSION && .ci/modules write && GOFLAGS=-mod=mod test/operators/build.sh bin PROGRAM
set -eu
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
shift
[ $# -gt 0 ] || set -- operator kcpclient sample-controller kustomize jobset lws

for program; do
	case $program in
	operator | kcpclient)
		go -C "test/operators/$program" build -ldflags "-s -w" -o "$bin/$program" .
		continue
		;;
	sample-controller) file=sample package=k8s.io/sample-controller ;;
	kustomize) file=kustomize package=sigs.k8s.io/kustomize/kustomize/v5 ;;
	jobset) file=sets package=sigs.k8s.io/jobset ;;
	lws) file=sets package=sigs.k8s.io/lws/cmd ;;
	*) echo "no program $program" >&2 && exit 2 ;;
	esac
	go build -modfile "test/operators/$file.mod" -ldflags "-s -w" -o "$bin/$program" "$package"
done
