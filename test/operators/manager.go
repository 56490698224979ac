package operators

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"atoll.dev/atoll/test/framework"
)

// manager is a program of controller-runtime with its own kustomization, as it is in one workspace: what jobset and lws
// have in common.
type manager struct {
	name      string // of the executable, and in the names of what it is made of
	module    string
	namespace string // where its manifests put it
	crd       string
	// hooks maps its webhook configurations to the paths of their webhooks, in order.
	hooks map[string][]string
}

// ports are those of one instance, which in its Pod would have an address of its own.
type ports struct {
	webhook, health, metrics int
	certs                    string // folder with tls.crt and tls.key
	ca                       []byte // PEM of who signed them
}

func newPorts(t *testing.T) ports {
	t.Helper()
	p := ports{webhook: framework.FreePort(t), health: framework.FreePort(t), metrics: framework.FreePort(t), certs: t.TempDir()}
	p.ca = writeCertificate(t, p.certs)
	return p
}

// install builds the module's config/default with kustomize, with the webhooks at the address of a process that runs
// beside the server instead of a Service, and applies it.
func (m manager) install(t *testing.T, ws *workspace, p ports) {
	t.Helper()
	from, _ := source(t, "sets", m.module)
	dir := t.TempDir()
	base, err := filepath.Rel(dir, filepath.Join(from, "config", "default"))
	if err != nil {
		t.Fatal(err)
	}
	overlay := map[string]any{"resources": []string{base}, "patches": m.patches(p)}
	file, err := yaml.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	manifest := run(t, dir, nil, binary(t, "kustomize"), "build", ".")
	// As their documents say: the definition is too large for an annotation.
	ws.kubectlWithInput(t, manifest, "apply", "--server-side", "-f", "-")
	ws.kubectl(t, "wait", "--for=condition=Established", "crd/"+m.crd, "--timeout=60s")
}

// patches replace references to the Service of the manager's webhooks.
func (m manager) patches(p ports) []map[string]any {
	at := func(path string) string { return fmt.Sprintf("https://127.0.0.1:%d%s", p.webhook, path) }
	ca := base64.StdEncoding.EncodeToString(p.ca)
	patch := func(kind, name string, ops []map[string]any) map[string]any {
		text, err := yaml.Marshal(ops)
		if err != nil {
			panic(err) // strings and maps
		}
		return map[string]any{"target": map[string]string{"kind": kind, "name": name}, "patch": string(text)}
	}
	all := []map[string]any{patch("CustomResourceDefinition", m.crd, []map[string]any{{
		"op": "replace", "path": "/spec/conversion/webhook/clientConfig", "value": map[string]any{"url": at("/convert"), "caBundle": ca},
	}})}
	for name, paths := range m.hooks {
		var ops []map[string]any
		for i, path := range paths {
			ops = append(ops, map[string]any{
				"op": "replace", "path": fmt.Sprintf("/webhooks/%d/clientConfig", i), "value": map[string]any{"url": at(path), "caBundle": ca},
			})
		}
		kind, _, _ := strings.Cut(name, " ")
		all = append(all, patch(kind, ".*"+strings.TrimPrefix(name, kind+" "), ops))
	}
	return all
}

// start runs the manager as its Pod would: with the configuration from its ConfigMap and the ServiceAccount of its
// Deployment. Ports and certificates are its own, since all instances share one machine.
func (m manager) start(t *testing.T, w *world, ws *workspace, p ports) *framework.Process {
	t.Helper()
	var config map[string]any
	text := ws.kubectl(t, "get", "configmap", m.namespace[:len(m.namespace)-len("-system")]+"-manager-config", "-n", m.namespace,
		"-o", `jsonpath={.data.controller_manager_config\.yaml}`)
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatalf("parse the configuration of %s: %v\n%s", m.name, err, text)
	}
	local := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	config["webhook"] = map[string]any{"host": "127.0.0.1", "port": p.webhook, "certDir": p.certs}
	config["health"] = map[string]any{"healthProbeBindAddress": local(p.health)}
	config["metrics"] = map[string]any{"bindAddress": local(p.metrics)}
	config["internalCertManagement"] = map[string]any{"enable": false}
	config["leaderElection"].(map[string]any)["resourceNamespace"] = m.namespace
	data, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	account := ws.kubectl(t, "get", "deployments", "-n", m.namespace, "-o", "jsonpath={.items[*].spec.template.spec.serviceAccountName}")
	return framework.StartProgram(t, framework.Program{
		Name:   m.name + " of " + ws.name,
		Binary: binary(t, m.name),
		Args:   []string{"--config=" + file, "--zap-log-level=2", "--kubeconfig=" + ws.kubeconfig(t, m.namespace, account, w.address(ws))},
		Ready:  answers("http://" + local(p.health) + "/readyz"),
	})
}

// writeCertificate writes a key and a certificate for 127.0.0.1 and returns the certificate, which signs itself.
func writeCertificate(t *testing.T, dir string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "127.0.0.1"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	for name, data := range map[string][]byte{
		"tls.crt": public,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return public
}
