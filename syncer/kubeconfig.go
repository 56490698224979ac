package syncer

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// physicalConfig reads a kubeconfig that a user wrote into a Secret. It takes only what carries its own credentials:
// a command to run or a file to read would be run and read on the server, and a proxy would be one more address to dial.
func physicalConfig(kubeconfig []byte) (*rest.Config, error) {
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	if err := selfContained(raw); err != nil {
		return nil, err
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*raw, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return cfg, nil
}

func selfContained(raw *clientcmdapi.Config) error {
	// Sorted, so that the same kubeconfig always gives the same message.
	for _, name := range slices.Sorted(maps.Keys(raw.AuthInfos)) {
		user := raw.AuthInfos[name]
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"exec", user.Exec != nil},
			{"auth-provider", user.AuthProvider != nil},
			{"tokenFile", user.TokenFile != ""},
			{"client-certificate", user.ClientCertificate != ""},
			{"client-key", user.ClientKey != ""},
		} {
			if f.set {
				return fmt.Errorf("user %q of the kubeconfig has %s, which would be evaluated on the server: put the credential itself there", name, f.name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(raw.Clusters)) {
		if raw.Clusters[name].ProxyURL != "" {
			return fmt.Errorf("cluster %q of the kubeconfig has proxy-url: the server reaches a physical cluster directly or not at all", name)
		}
		if raw.Clusters[name].CertificateAuthority != "" {
			return fmt.Errorf("cluster %q of the kubeconfig has certificate-authority, a file of the server: use certificate-authority-data", name)
		}
	}
	return nil
}
