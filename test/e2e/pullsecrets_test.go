package e2e

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// TestT1_PullSecretsOfTheDefaultAccount: pods that name no ServiceAccount pull images with the Secrets that the
// workspace's account default has.
func TestT1_PullSecretsOfTheDefaultAccount(t *testing.T) {
	t.Parallel()
	f := &fleet{Atoll: framework.StartAtoll(t), clusters: map[string]*framework.Physical{"east": framework.StartPhysical(t, "east")}}
	f.MustRun("cluster", "add", "east", "--kubeconfig", f.clusters["east"].Kubeconfig)
	w := f.workspace(t, "pulls")
	w.kubectl("create", "secret", "docker-registry", "registry", "--docker-server=registry.example", "--docker-username=me", "--docker-password=secret")
	framework.Eventually(t, patience, "the ServiceAccount default is there", func() string {
		_, err := f.Clients().Kube.CoreV1().ServiceAccounts("default").Get(w.ctx(), "default", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	pullWith := func(secret string) {
		t.Helper()
		w.kubectl("patch", "serviceaccount", "default", "--patch", `{"imagePullSecrets":[{"name":"`+secret+`"}]}`)
	}
	pullWith("registry")
	w.kubectlWithInput(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: pulls}
spec:
  replicas: 2
  selector: {matchLabels: {app: pulls}}
  template:
    metadata: {labels: {app: pulls}}
    spec: {containers: [{name: web, image: registry.example/web:1}]}
`, "apply", "-f", "-")
	w.spread(map[string]int{"east": 2})
	w.rolledOut()
	down := f.clusters["east"].Clientset().CoreV1()
	ns := w.namespaceIn("east")
	pods := func() string {
		t.Helper()
		list, err := down.Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
		if err != nil {
			t.Fatal(err)
		}
		var all string
		for _, pod := range list.Items {
			all += fmt.Sprintf("%s pulls with %v\n", pod.Name, pod.Spec.ImagePullSecrets)
		}
		return all
	}
	before := pods()
	if strings.Count(before, "[{registry}]") != 2 {
		t.Errorf("the pods in east are to pull with the Secret registry:\n%s", before)
	}
	if _, err := down.Secrets(ns).Get(t.Context(), "registry", metav1.GetOptions{}); err != nil {
		t.Errorf("the pull Secret is not in east: %v", err)
	}
	if d := w.deployment(); len(d.Spec.Template.Spec.ImagePullSecrets) > 0 {
		t.Errorf("the Deployment in the workspace was changed: %v", d.Spec.Template.Spec.ImagePullSecrets)
	}

	// As in one cluster, what runs does not change with the account, though a restart has every Deployment looked at.
	pullWith("another")
	f.Restart()
	w.services("east", "marker")
	if after := pods(); after != before {
		t.Errorf("a change of the account changed pods:\nbefore %s\nafter  %s", before, after)
	}
	w.kubectl("rollout", "restart", "deployment/"+w.app)
	w.rolledOut()
	w.spread(map[string]int{"east": 2})
	if after := pods(); strings.Count(after, "[{another}]") != 2 {
		t.Errorf("new pods are to pull with the Secret another:\n%s", after)
	}
	w.kubectl("delete", "deployment/"+w.app, "service/marker")
	w.gone("east")
}
