package server

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// adminContexts are the contexts of the administrator's kubeconfig, as in kcp: the path of each on the server.
var adminContexts = map[string]string{
	"root":         "/clusters/root",
	"base":         "",
	"system:admin": "/clusters/system:admin",
	"shard-base":   "",
}

const adminUser = "admin"

// writeAdminKubeconfig writes the administrator's kubeconfig for a server at url, readable by its owner alone. Contexts
// of ours are replaced; what else the file holds stays. Clusters that point at where the server was before, such as the
// workspace last entered, point at url afterwards.
func writeAdminKubeconfig(file, url string, ca []byte, admin keyPair) error {
	config := clientcmdapi.NewConfig()
	if found, err := clientcmd.LoadFromFile(file); err == nil {
		config = found
	} else if !os.IsNotExist(err) {
		return fmt.Errorf("write the administrator's kubeconfig: read %s: %w; move the file away to have a new one written", file, err)
	}
	before, ours := addressBefore(config)
	if taken := takenNames(config); !ours && len(taken) > 0 {
		return fmt.Errorf("write the administrator's kubeconfig: %s has a %s that is not Atoll's: name another file with --kubeconfig-path", file, strings.Join(taken, ", a "))
	}
	config.AuthInfos[adminUser] = &clientcmdapi.AuthInfo{ClientCertificateData: admin.certPEM, ClientKeyData: admin.keyPEM}
	for name, cluster := range config.Clusters {
		host, path, ok := clusterPath(cluster.Server)
		if ok && ours && host == before {
			config.Clusters[name] = &clientcmdapi.Cluster{Server: url + path, CertificateAuthorityData: ca}
		}
	}
	for name, path := range adminContexts {
		context := &clientcmdapi.Context{Cluster: name, AuthInfo: adminUser}
		if found, ok := config.Contexts[name]; ok {
			context.Namespace = found.Namespace
		}
		config.Clusters[name] = &clientcmdapi.Cluster{Server: url + path, CertificateAuthorityData: ca}
		config.Contexts[name] = context
	}
	if _, ok := config.Contexts[config.CurrentContext]; !ok {
		config.CurrentContext = "root"
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("write the administrator's kubeconfig: %w", err)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("write the administrator's kubeconfig: %w", err)
	}
	// Through a link, such as ~/.kube/config into a directory of dotfiles, the file at its end is meant.
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	if err := writeWhole(file, data, 0o600); err != nil {
		return fmt.Errorf("write the administrator's kubeconfig: %w", err)
	}
	return nil
}

// addressBefore returns where the file says that the server is, as scheme and host; false if it was not written by us.
func addressBefore(config *clientcmdapi.Config) (string, bool) {
	root, ok := config.Clusters["root"]
	if !ok {
		return "", false
	}
	host, path, ok := clusterPath(root.Server)
	return host, ok && path == adminContexts["root"]
}

// takenNames are the names that we write and the file has already.
func takenNames(config *clientcmdapi.Config) []string {
	var taken []string
	if _, ok := config.AuthInfos[adminUser]; ok {
		taken = append(taken, fmt.Sprintf("user %q", adminUser))
	}
	for _, name := range slices.Sorted(maps.Keys(adminContexts)) {
		if _, ok := config.Contexts[name]; ok {
			taken = append(taken, fmt.Sprintf("context %q", name))
		}
		if _, ok := config.Clusters[name]; ok {
			taken = append(taken, fmt.Sprintf("cluster %q", name))
		}
	}
	return taken
}

// clusterPath splits a server's URL into scheme and host, and what follows; ok says that this is /clusters/... or nothing.
func clusterPath(server string) (host, path string, ok bool) {
	scheme, rest, ok := strings.Cut(server, "://")
	if !ok {
		return "", "", false
	}
	if slash := strings.IndexByte(rest, '/'); slash >= 0 {
		rest, path = rest[:slash], rest[slash:]
	}
	return scheme + "://" + rest, path, path == "" || strings.HasPrefix(path, clustersPrefix)
}
