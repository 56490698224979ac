#!/bin/sh
# Installs what a real node takes of Debian or Ubuntu, as root: what runc is built with, and what gives pods their network.
#   contrib/realnode/debian.sh --check    installs nothing, and fails where something is missing
set -eu
missing=
for package in gcc libc6-dev libseccomp-dev pkg-config containernetworking-plugins nftables; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "${1:-}" = --check ]; then
	echo "Real nodes take these packages of Debian's, which are not installed:$missing" >&2
	exit 1
fi
[ "$(id -u)" = 0 ] || { echo "Real nodes take packages of Debian's. As root: apt-get install$missing" >&2 && exit 1; }
command -v apt-get >/dev/null || { echo "There is no apt-get here: install what these are in Debian:$missing" >&2 && exit 1; }
echo "Installing$missing ..."
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing || {
	echo "Error: where a package has no candidate, the lists of packages are missing or old: apt-get update" >&2
	exit 1
}
