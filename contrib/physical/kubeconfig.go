package main

import (
	"encoding/pem"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// The users with a certificate. Each has a kubeconfig DIR/pki/USER.kubeconfig.
const (
	adminUser             = "admin"                   // the user's, in system:masters
	kwokUser              = "kwok"                    // the kubelets' work, in system:masters
	controllerManagerUser = "kube-controller-manager" // as system:kube-controller-manager
	schedulerUser         = "kube-scheduler"          // as system:kube-scheduler

	// Of a real node:

	nodeUser      = "node"       // the kubelet, as system:node:NAME
	kubeProxyUser = "kube-proxy" // as system:kube-proxy
	dnsUser       = "coredns"    // which allowDNS gives what it may

	kubeconfigSuffix = ".kubeconfig"
)

// writeKubeconfigs writes one file for each user, and the administrator's also where the options ask for it.
func writeKubeconfigs(o *options, p pki, url string) error {
	users := []string{adminUser, kwokUser, controllerManagerUser, schedulerUser}
	if o.realNode.name != "" {
		users = append(users, nodeUser, kubeProxyUser, dnsUser)
	}
	for _, user := range users {
		data, err := kubeconfig(o.name, p, url, user)
		if err != nil {
			return fmt.Errorf("make the kubeconfig of %q: %w", user, err)
		}
		if err := writeFile(o.path("pki", user+kubeconfigSuffix), data); err != nil {
			return err
		}
		if user != adminUser {
			continue
		}
		if err := writeFile(o.kubeconfig, data); err != nil {
			return err
		}
	}
	return nil
}

func kubeconfig(name string, p pki, url, user string) ([]byte, error) {
	ca, err := os.ReadFile(p.cert(clusterCA))
	if err != nil {
		return nil, err
	}
	crt, err := os.ReadFile(p.cert(user))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(p.key(user))
	if err != nil {
		return nil, err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: crt, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	config.CurrentContext = name
	return clientcmd.Write(*config)
}

func restConfig(path string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return config, nil
}

func pemCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}
