package storage

import (
	"fmt"
	"path"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
)

// ClusterKey is the key, below the Backend's prefix, of rest in a logical cluster: ClusterKey("/configmaps", "root",
// "/default/a") is "/configmaps/root/default/a". An empty rest gives the key of all of the cluster's objects, without
// a trailing slash.
func ClusterKey(resourcePrefix string, cluster logicalcluster.Name, rest string) string {
	if rest == "" || rest == "/" {
		return resourcePrefix + "/" + cluster.String()
	}
	return resourcePrefix + "/" + cluster.String() + "/" + strings.TrimPrefix(rest, "/")
}

// restOf is what follows the resource prefix in a registry's key, without slashes at its ends: "default/a" of
// "/configmaps/default/a", and "" of "/configmaps".
func restOf(resourcePrefix, key string) (string, error) {
	rest, ok := strings.CutPrefix(key, resourcePrefix)
	if !ok || rest != "" && rest[0] != '/' {
		return "", fmt.Errorf("key %q is not below %q", key, resourcePrefix)
	}
	return strings.Trim(rest, "/"), nil
}

// clusterOf is the logical cluster in a full key of etcd, where base is the prefix and the resource prefix without a
// trailing slash: "root" of "/registry/configmaps/root/default/a" below "/registry/configmaps".
func clusterOf(base, key string) (string, error) {
	rest, ok := strings.CutPrefix(key, base+"/")
	if !ok {
		return "", fmt.Errorf("key %q is not below %q", key, base)
	}
	cluster, object, ok := strings.Cut(rest, "/")
	if !ok || cluster == "" || object == "" {
		return "", fmt.Errorf("key %q has no logical cluster", key)
	}
	return cluster, nil
}

// join is path.Join for a store's prefix and a resource prefix: always one leading slash, never a trailing one.
func join(prefix, resourcePrefix string) string {
	return path.Join("/", prefix, resourcePrefix)
}
