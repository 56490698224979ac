package operators

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"atoll.dev/atoll/test/framework"
)

// The sample controller comes without roles: these are the requests that it makes.
const sampleRoles = `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: sample, namespace: kube-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sample}
rules:
- {apiGroups: [samplecontroller.k8s.io], resources: [foos], verbs: [get, list, watch]}
- {apiGroups: [samplecontroller.k8s.io], resources: [foos/status], verbs: [update]}
- {apiGroups: [samplecontroller.k8s.io], resources: [foos/finalizers], verbs: [update]}
- {apiGroups: [apps], resources: [deployments], verbs: [get, list, watch, create, update]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sample}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: sample}
subjects: [{kind: ServiceAccount, name: sample, namespace: kube-system}]
`

const foo = `
apiVersion: samplecontroller.k8s.io/v1alpha1
kind: Foo
metadata: {name: foo-WORKSPACE, namespace: default}
spec: {deploymentName: made-for-WORKSPACE, replicas: 2}
`

// startSample installs the sample controller in both workspaces, and starts it for each.
func (w *world) startSample(t *testing.T) {
	t.Helper()
	from, _ := source(t, "sample", "k8s.io/sample-controller")
	definition, err := os.ReadFile(filepath.Join(from, "artifacts", "examples", "crd-status-subresource.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, ws := range w.workspaces {
		ws.kubectlWithInput(t, string(definition), "apply", "-f", "-")
		ws.kubectlWithInput(t, sampleRoles, "apply", "-f", "-")
		ws.kubectl(t, "wait", "--for=condition=Established", "crd/foos.samplecontroller.k8s.io", "--timeout=60s")
		framework.StartProgram(t, framework.Program{
			Name: "sample controller of " + ws.name, Binary: binary(t, "sample-controller"),
			Args:  []string{"--kubeconfig=" + ws.kubeconfig(t, "kube-system", "sample", w.address(ws))},
			Ready: func(context.Context) error { return nil }, // what it makes says so
		})
	}
	done(t, "installed from its own definition; runs as a ServiceAccount with the roles that it needs alone")
}

// TestT10_SampleController: https://github.com/kubernetes/sample-controller, as people write them with client-go alone.
func TestT10_SampleController(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startSample(t)
	w.strangers(t, "kube-system", "sample")
	w.both(t, "Foos", func(t *testing.T, ws *workspace) {
		ws.apply(t, foo)
		deployment := "made-for-" + ws.name
		ws.shows(t, "2 Foo/foo-"+ws.name, "deployment", deployment, "--ignore-not-found", "-o",
			"jsonpath={.spec.replicas} {.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}")
		ws.shows(t, "0", "foo", "foo-"+ws.name, "-o", "jsonpath={.status.availableReplicas}")
		ws.kubectl(t, "patch", "foo", "foo-"+ws.name, "--type=merge", "-p", `{"spec":{"replicas":3}}`)
		ws.shows(t, "3", "deployment", deployment, "-o", "jsonpath={.spec.replicas}")
		ws.kubectl(t, "scale", "deployment", deployment, "--replicas=1") // somebody else's idea
		ws.shows(t, "3", "deployment", deployment, "-o", "jsonpath={.spec.replicas}")
		framework.Eventually(t, patience, "an Event says that it is done", func() string {
			out, err := ws.try("", "events", "--for=foo/foo-"+ws.name, "--types=Normal", "-o", "jsonpath={.items[*].reason}")
			if err != nil || out == "" {
				return fmt.Sprintf("%q, %v", out, err)
			}
			return ""
		})
	})
	done(t, "a Foo becomes a Deployment that it owns, which is brought back when somebody changes it; its status and Events say so")
	w.apart(t)
	w.both(t, "Deleted", func(t *testing.T, ws *workspace) {
		ws.kubectl(t, "delete", "foo", "foo-"+ws.name, "--wait", "--timeout=60s")
		ws.shows(t, "", "deployment", "made-for-"+ws.name, "--ignore-not-found", "-o", "name")
		ws.kubectl(t, "delete", "crd", "foos.samplecontroller.k8s.io", "--wait", "--timeout=60s")
	})
	done(t, "its Deployment goes with it, and the definition goes")
}
