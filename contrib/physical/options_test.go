package main

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/util/cert"
)

// TestRealNodeFlag: a node has a name and an address that pods reach.
func TestRealNodeFlag(t *testing.T) {
	for value, want := range map[string]string{
		"east-node-0=10.254.0.1": "",
		"east-node-0":            "want an IP address",
		"east-node-0=east":       "want an IP address",
		"east-node-0=127.0.0.1":  "want an IP address",
		"east-node-0=0.0.0.0":    "want an IP address",
		"East=10.254.0.1":        `name "East"`,
		"=10.254.0.1":            `name ""`,
	} {
		var node realNode
		err := node.Set(value)
		switch {
		case want == "" && (err != nil || node.String() != value):
			t.Errorf("%s is read as %q: %v", value, node.String(), err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || node.String() != ""):
			t.Errorf("%s: %v, want a word of %q", value, err, want)
		}
	}
}

// TestCredentialsOfARealNode: who starts the kubelet finds what it identifies itself with, before the cluster runs; where nodes are simulated there is no such thing.
func TestCredentialsOfARealNode(t *testing.T) {
	o := newOptions()
	o.dir = t.TempDir()
	o.kubeconfig = o.path("admin.kubeconfig")
	users := []string{nodeUser, kubeProxyUser, dnsUser}
	if _, err := makeCredentials(o, urlAt(6443)); err != nil {
		t.Fatal(err)
	}
	for _, user := range users {
		if _, err := restConfig(o.path("pki", user+kubeconfigSuffix)); err == nil {
			t.Errorf("a cluster of simulated nodes has a kubeconfig of %s", user)
		}
	}

	o.dir = t.TempDir()
	if err := o.realNode.Set("east-node-0=10.254.0.1"); err != nil {
		t.Fatal(err)
	}
	p, err := makeCredentials(o, urlAt(6443))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range users {
		config, err := restConfig(o.path("pki", user+kubeconfigSuffix))
		if err != nil {
			t.Fatal(err)
		}
		if config.Host != "https://127.0.0.1:6443" {
			t.Errorf("%s is led to %s", user, config.Host)
		}
	}
	for name, want := range map[string]struct {
		subject string
		onNode  bool // it is shown at the node's address
	}{
		nodeUser:      {"system:node:east-node-0 [system:nodes]", false},
		dnsUser:       {"coredns []", false}, // in no group: see allowDNS
		kubeletServer: {"kubelet []", true},
		"apiserver":   {"kube-apiserver []", true},
	} {
		certs, err := cert.CertsFromFile(p.cert(name))
		if err != nil {
			t.Fatal(err)
		}
		c := certs[0]
		if got := c.Subject.CommonName + " [" + strings.Join(c.Subject.Organization, " ") + "]"; got != want.subject {
			t.Errorf("certificate %s is of %s, want %s", name, got, want.subject)
		}
		if got := slices.ContainsFunc(c.IPAddresses, o.realNode.address.Equal); got != want.onNode {
			t.Errorf("certificate %s is for %v: for the node's address is %v, want %v", name, c.IPAddresses, got, want.onNode)
		}
	}
}
