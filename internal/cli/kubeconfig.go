package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// CurrentContext is the context, and the cluster entry, that Enter writes and makes current.
	CurrentContext = "workspace.atoll.dev/current"
	// PreviousContext is the one it keeps of the workspace before.
	PreviousContext = "workspace.atoll.dev/previous"
)

// adminKubeconfig is where a server that was started in this directory leaves its administrator's kubeconfig.
var adminKubeconfig = filepath.Join(".atoll", "admin.kubeconfig")

// Locate returns the kubeconfig file to use: explicit if it is not empty; none ("") if KUBECONFIG is set, which then
// rules; .atoll/admin.kubeconfig of this directory if there is one; else none, which means the user's own.
func Locate(explicit string) string {
	if explicit != "" || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" {
		return explicit
	}
	if _, err := os.Stat(adminKubeconfig); err != nil {
		return ""
	}
	return adminKubeconfig
}

// FindsByItself says whether Locate finds a file, in the directory in which it is written by that name, if nothing names another.
func FindsByItself(file string) bool { return filepath.Clean(file) == adminKubeconfig }

func access(file string) *clientcmd.PathOptions {
	a := clientcmd.NewDefaultPathOptions()
	a.LoadingRules.ExplicitPath = file
	return a
}

// Enter makes the context CurrentContext point at path, with the credentials of the context that was current, and
// remembers that one as PreviousContext. It changes config only.
func Enter(config *clientcmdapi.Config, path logicalcluster.Path) error {
	context, cluster, err := current(config)
	if err != nil {
		return err
	}
	address, err := ParseAddress(cluster.Server)
	if err != nil {
		return fmt.Errorf("cluster %q of the kubeconfig: %w", context.Cluster, err)
	}
	if address.Path == path {
		return nil // entering where one is must not make the way back forgotten
	}
	put(config, PreviousContext, context, cluster, cluster.Server)
	address.Path = path
	put(config, CurrentContext, context, cluster, address.String())
	config.Contexts[CurrentContext].Namespace = "" // it is one of the other workspace
	config.CurrentContext = CurrentContext
	return nil
}

// Back swaps the workspace that is current with the one before.
func Back(config *clientcmdapi.Config) error {
	context, cluster, err := current(config)
	if err != nil {
		return err
	}
	before, ok := config.Contexts[PreviousContext]
	if !ok || config.Clusters[before.Cluster] == nil {
		return fmt.Errorf("no workspace was entered before this one")
	}
	to := config.Clusters[before.Cluster].DeepCopy()
	put(config, PreviousContext, context, cluster, cluster.Server)
	put(config, CurrentContext, before, to, to.Server)
	config.CurrentContext = CurrentContext
	return nil
}

func current(config *clientcmdapi.Config) (*clientcmdapi.Context, *clientcmdapi.Cluster, error) {
	context, ok := config.Contexts[config.CurrentContext]
	if !ok {
		return nil, nil, fmt.Errorf("the kubeconfig has no current context: choose one with kubectl config use-context")
	}
	cluster, ok := config.Clusters[context.Cluster]
	if !ok {
		return nil, nil, fmt.Errorf("context %q of the kubeconfig names the cluster %q, which is not in it", config.CurrentContext, context.Cluster)
	}
	return context, cluster, nil
}

func put(config *clientcmdapi.Config, name string, context *clientcmdapi.Context, cluster *clientcmdapi.Cluster, server string) {
	cluster, context = cluster.DeepCopy(), context.DeepCopy()
	cluster.Server, context.Cluster = server, name
	config.Clusters[name], config.Contexts[name] = cluster, context
}
