package server

import (
	"fmt"
	"os"
	"path/filepath"

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

// writeAdminKubeconfig writes the administrator's kubeconfig for a server at url, readable by its owner alone. Contexts
// of ours are replaced; what else the file holds, such as the workspace last entered, stays, unless it points at
// another address that the server no longer has.
func writeAdminKubeconfig(file, url string, ca []byte, admin keyPair) error {
	config := clientcmdapi.NewConfig()
	if found, err := clientcmd.LoadFromFile(file); err == nil {
		config = found
	} else if !os.IsNotExist(err) {
		return fmt.Errorf("write the administrator's kubeconfig: %w; move the file away to have a new one written", err)
	}
	const user = "admin"
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: admin.certPEM, ClientKeyData: admin.keyPEM}
	for name, cluster := range config.Clusters {
		rest, ok := clusterPath(cluster.Server)
		if !ok {
			continue
		}
		config.Clusters[name] = &clientcmdapi.Cluster{Server: url + rest, CertificateAuthorityData: ca}
	}
	for name, path := range adminContexts {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: url + path, CertificateAuthorityData: ca}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	}
	if _, ok := config.Contexts[config.CurrentContext]; !ok {
		config.CurrentContext = "root"
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("write the administrator's kubeconfig: %w", err)
	}
	if err := clientcmd.WriteToFile(*config, file); err != nil { // mode 0600
		return fmt.Errorf("write the administrator's kubeconfig: %w", err)
	}
	return os.Chmod(file, 0o600)
}
