package operators

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const kustomizeBase = `
resources: [app.yaml]
configMapGenerator:
- {name: settings, literals: [colour=plain, owner=WORKSPACE]}
`

const kustomizeApp = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  template:
    spec:
      containers:
      - {name: main, image: web, envFrom: [{configMapRef: {name: settings}}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: web}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: web}]
`

const kustomizeOverlay = `
namespace: shop-WORKSPACE
namePrefix: WORKSPACE-
labels:
- {pairs: {app: web}, includeSelectors: true}
resources: [../base, namespace.yaml]
images: [{name: web, newName: registry.example/WORKSPACE, newTag: "2"}]
replicas: [{name: web, count: 3}]
configMapGenerator:
- {name: settings, behavior: merge, literals: [colour=COLOUR]}
patches:
- target: {kind: Deployment}
  patch: '[{"op": "add", "path": "/spec/template/spec/serviceAccountName", "value": "web"}]'
`

// TestT8_Kustomize: https://kustomize.io, a base and an overlay, by its own program and by kubectl.
func TestT8_Kustomize(t *testing.T) {
	t.Parallel()
	source(t, "kustomize", "sigs.k8s.io/kustomize/kustomize/v5")
	w := newWorld(t)
	w.both(t, "Overlay", overlay)
	done(t, "a base and an overlay are applied twice without a change, changed, shown by kubectl diff, pruned and deleted")
	w.apart(t)
}

func overlay(t *testing.T, ws *workspace) {
	dir := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(ws.named(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("base/kustomization.yaml", kustomizeBase)
	write("base/app.yaml", kustomizeApp)
	write("overlay/namespace.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}")
	colour := func(c string) { write("overlay/kustomization.yaml", strings.ReplaceAll(kustomizeOverlay, "COLOUR", c)) }
	build := func() string { return run(t, dir, nil, binary(t, "kustomize"), "build", "overlay") }
	ns := ws.named("shop-WORKSPACE")
	web := ws.named("WORKSPACE-web")

	colour("red")
	ws.kubectlWithInput(t, build(), "apply", "-f", "-")
	settings := ws.kubectl(t, "get", "deployment", web, "-n", ns, "-o", "jsonpath={.spec.template.spec.containers[0].envFrom[0].configMapRef.name}")
	ws.shows(t, "red "+ws.name, "configmap", settings, "-n", ns, "-o", "jsonpath={.data.colour} {.data.owner}")
	ws.shows(t, ws.named("3 registry.example/WORKSPACE:2 WORKSPACE-web"), "deployment", web, "-n", ns, "-o",
		"jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image} {.spec.template.spec.serviceAccountName}")
	for line := range strings.Lines(ws.kubectlWithInput(t, build(), "apply", "-f", "-")) {
		if !strings.HasSuffix(strings.TrimSpace(line), "unchanged") {
			t.Errorf("the second apply says %s", line)
		}
	}

	colour("blue")
	// kubectl diff exits with 1 where there is one.
	if out, err := ws.try("", "diff", "-k", filepath.Join(dir, "overlay")); err == nil || !strings.Contains(out, "+  colour: blue") {
		t.Errorf("kubectl diff -k: %v, %s", err, out)
	}
	ws.kubectl(t, "apply", "-k", filepath.Join(dir, "overlay"), "--prune", "-l", "app=web", "-n", ns)
	ws.shows(t, "blue", "configmaps", "-n", ns, "-l", "app=web", "-o", "jsonpath={.items[*].data.colour}") // the red one is pruned
	if out, err := ws.try("", "diff", "-k", filepath.Join(dir, "overlay")); err != nil {
		t.Errorf("kubectl diff -k after the apply: %v, %s", err, out)
	}
	ws.kubectl(t, "auth", "can-i", "list", "pods", "-n", ns, "--as", "system:serviceaccount:"+ns+":"+web)
	ws.kubectlWithInput(t, build(), "delete", "--ignore-not-found", "--wait", "--timeout=60s", "-f", "-") // the namespace first, which takes some along
	ws.shows(t, "", "namespace", ns, "--ignore-not-found", "-o", "name")
	ws.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: after-WORKSPACE}}")
}
