package operators

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"atoll.dev/atoll/test/framework"
)

// A root that signs itself, an issuer of that, and a leaf.
const certificates = `
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: self, namespace: default}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: root, namespace: default}
spec:
  isCA: true
  commonName: root of WORKSPACE
  secretName: root
  privateKey: {algorithm: ECDSA, size: 256}
  issuerRef: {name: self, kind: Issuer}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: ours, namespace: default}
spec: {ca: {secretName: root}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: web, namespace: default}
spec:
  secretName: web-tls
  dnsNames: [web.WORKSPACE.example]
  usages: [server auth]
  issuerRef: {name: ours, kind: Issuer}
`

// TestCertManager: https://cert-manager.io, the last version whose controller is in the module of its API.
func TestCertManager(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	chart := certManagerChart(t)
	for _, ws := range w.workspaces {
		ws.helm(t, "install", "cert-manager", chart, "--namespace", "cert-manager", "--create-namespace",
			"--set", "startupapicheck.enabled=false") // a hook that waits for a Pod of the webhook
		// Its validating webhook is a program of its own, which does not run here.
		ws.kubectl(t, "delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "cert-manager-webhook")
		ws.kubectl(t, "wait", "--for=condition=Established", "crd/certificates.cert-manager.io", "--timeout=60s")
		metrics := net.JoinHostPort("127.0.0.1", strconv.Itoa(framework.FreePort(t)))
		framework.StartProgram(t, framework.Program{
			Name:   "cert-manager of " + ws.name,
			Binary: binary(t, "certmanager"),
			Args: append(containerArgs(t, ws), "--metrics-listen-address="+metrics,
				"--kubeconfig="+ws.kubeconfig(t, "cert-manager", "cert-manager", w.address(ws))),
			Ready: answers("http://" + metrics + "/metrics"),
		})
	}
	done(t, "installed by Helm from its own chart; runs with the arguments of its Deployment, as its ServiceAccount, with its roles alone")
	w.led(t, "kube-system", "cert-manager-controller")
	w.strangers(t, "cert-manager", "cert-manager")

	w.both(t, "Chain", chain)
	done(t, "an Issuer that signs itself makes a root, an Issuer of the root signs a Certificate; the Secret holds a chain that verifies, and a new one when it is deleted")
	w.apart(t)
	w.both(t, "Deleted", func(t *testing.T, ws *workspace) {
		ws.kubectl(t, "delete", "certificates,issuers", "--all", "-n", "default", "--wait", "--timeout=60s")
		ws.gone(t, "default", "certificates,certificaterequests,issuers")
		ws.helm(t, "uninstall", "cert-manager", "--namespace", "cert-manager", "--wait", "--timeout", "60s")
		ws.shows(t, "", "crd,clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/instance=cert-manager", "-o", "name")
	})
	done(t, "CertificateRequests go with their Certificates, and everything with the release")
}

// certManagerChart makes a chart of what its release is made of: the folder of the chart and the definitions beside it.
func certManagerChart(t *testing.T) string {
	t.Helper()
	from, version := source(t, "certmanager", "github.com/cert-manager/cert-manager")
	dir := filepath.Join(t.TempDir(), "cert-manager")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(from, "deploy", "charts", "cert-manager"))); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "templates"), os.DirFS(filepath.Join(from, "deploy", "crds"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "templates", "README.md")); err != nil {
		t.Fatal(err)
	}
	template, err := os.ReadFile(filepath.Join(dir, "Chart.template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var chart map[string]any
	if err := yaml.Unmarshal(template, &chart); err != nil {
		t.Fatal(err)
	}
	chart["version"], chart["appVersion"] = version, version
	delete(chart, "annotations")
	data, err := yaml.Marshal(chart)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Chart.yaml"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// containerArgs are the arguments of the Deployment's container, as a kubelet would give them.
func containerArgs(t *testing.T, ws *workspace) []string {
	t.Helper()
	var args []string
	out := ws.kubectl(t, "get", "deployment", "cert-manager", "-n", "cert-manager", "-o", "jsonpath={.spec.template.spec.containers[0].args}")
	if err := json.Unmarshal([]byte(out), &args); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(POD_NAMESPACE)", "cert-manager")
	}
	return args
}

func chain(t *testing.T, ws *workspace) {
	ws.apply(t, certificates)
	ws.kubectl(t, "wait", "--for=condition=Ready", "issuer/self", "issuer/ours", "certificate/root", "certificate/web", "--timeout=120s")
	first := ws.issued(t)
	// Whoever deletes it gets another.
	ws.kubectl(t, "delete", "secret", "web-tls")
	framework.Eventually(t, patience, "another Secret", func() string {
		out, err := ws.try("", "get", "secret", "web-tls", "-o", "jsonpath={.metadata.uid}")
		if err != nil || out == string(first.UID) {
			return fmt.Sprintf("%q, %v", out, err)
		}
		return ""
	})
	ws.kubectl(t, "wait", "--for=condition=Ready", "certificate/web", "--timeout=120s")
	if second := ws.issued(t); string(second.Data["tls.crt"]) == string(first.Data["tls.crt"]) {
		t.Errorf("%s: the second Secret holds the first certificate", ws.name)
	}
	if out := ws.kubectl(t, "get", "certificates"); !strings.Contains(out, "READY") || !strings.Contains(out, "web-tls") {
		t.Errorf("the table has no columns of the definition: %s", out)
	}
}

// issued is the Secret of the certificate, whose chain verifies against the root of this workspace.
func (w *workspace) issued(t *testing.T) *corev1.Secret {
	t.Helper()
	var secret corev1.Secret
	if err := json.Unmarshal([]byte(w.kubectl(t, "get", "secret", "web-tls", "-o", "json")), &secret); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(secret.Data["tls.crt"])
	if block == nil {
		t.Fatalf("%s: no certificate in the Secret", w.name)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	root, err := base64.StdEncoding.DecodeString(w.kubectl(t, "get", "secret", "root", "-o", `jsonpath={.data.tls\.crt}`))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(root) {
		t.Fatalf("%s: no root in the Secret", w.name)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "web." + w.name + ".example"}); err != nil {
		t.Errorf("%s: %v", w.name, err)
	}
	if !strings.Contains(leaf.Issuer.CommonName, w.name) {
		t.Errorf("the certificate of %s is signed by %s", w.name, leaf.Issuer)
	}
	return &secret
}
