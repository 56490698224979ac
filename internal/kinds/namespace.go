package kinds

import (
	"crypto/sha256"
	"math/big"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
)

const (
	// namespaceHashLength, in characters of base36: some 52 bits, so that among a million namespaces of one physical
	// cluster a collision has a chance of one in seven thousand. It is noticed, since no namespace is adopted.
	namespaceHashLength = 10
	maxNamespaceLength  = 63
)

// DownstreamNamespace is the name that a workspace's namespace has in a mirror and in its physical cluster:
// "<namespace>-<hash of workspace and namespace>", cut to 63 characters before the hash. A cluster that is dedicated
// to the workspace keeps names, except those that every cluster has for itself. Names that begin as those of a cluster's
// own namespaces get "ws-" before them: policies commonly exempt kube-*, and syncers write into none.
func DownstreamNamespace(workspace logicalcluster.Name, namespace string, dedicated bool) string {
	if dedicated && !reservedNamespace(namespace) {
		return namespace
	}
	name := namespace
	if reservedNamespace(name) && name != "default" {
		name = "ws-" + name
	}
	sum := sha256.Sum256([]byte(workspace.String() + "/" + namespace))
	base := new(big.Int).Exp(big.NewInt(36), big.NewInt(namespaceHashLength), nil)
	hash := new(big.Int).Mod(new(big.Int).SetBytes(sum[:]), base).Text(36)
	hash = strings.Repeat("0", namespaceHashLength-len(hash)) + hash
	if most := maxNamespaceLength - 1 - namespaceHashLength; len(name) > most {
		name = strings.TrimRight(name[:most], "-")
	}
	return name + "-" + hash
}

// reservedNamespace: default and kube-* exist in every cluster, atoll-* hold what the syncer keeps for itself.
func reservedNamespace(ns string) bool {
	return ns == "default" || strings.HasPrefix(ns, "kube-") || strings.HasPrefix(ns, "atoll-")
}
