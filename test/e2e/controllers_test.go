package e2e

import (
	"fmt"
	"strings"
	"testing"

	"atoll.dev/atoll/test/framework"
)

// TestControllersOfAWorkspace: in a workspace the server does what a cluster's kube-controller-manager does there, each of it by a controller
// that the server runs.
func TestControllersOfAWorkspace(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	a.MustRun("workspace", "create", "shop", "--enter")
	apply := func(manifest string) {
		t.Helper()
		a.MustRunWithInput(manifest, "kubectl", "apply", "-f", "-")
	}
	// ends waits until what kubectl is asked answers so.
	ends := func(what, want string, args ...string) {
		t.Helper()
		framework.Eventually(t, patience, what, func() string {
			if out, err := a.Run(append([]string{"kubectl"}, args...)...); err != nil || strings.TrimSpace(out) != want {
				return fmt.Sprintf("%q %v, want %q", out, err, want)
			}
			return ""
		})
	}
	const gone = "" // what get --ignore-not-found says

	a.MustRun("kubectl", "create", "namespace", "web")
	ends("a namespace has its ServiceAccount", "default", "-n", "web", "get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}")
	ends("and the root certificate", "kube-root-ca.crt", "-n", "web", "get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.metadata.name}")

	apply(`
apiVersion: v1
kind: ResourceQuota
metadata: {name: few}
spec: {hard: {services: "2"}}
`)
	ends("a quota counts", "0", "get", "resourcequota", "few", "-o", "jsonpath={.status.used.services}")

	apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: owner}
`)
	owner := a.MustRun("kubectl", "get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
	apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: owned, ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: ` + owner + `}]}
`)
	a.MustRun("kubectl", "delete", "configmap", "owner")
	ends("what is owned goes", gone, "get", "configmap", "owned", "--ignore-not-found")

	apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: widgets, labels: {rbac.authorization.k8s.io/aggregate-to-view: "true"}}
rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get]}]
`)
	ends("the role view grows", "widgets", "get", "clusterrole", "view", "-o", `jsonpath={.rules[?(@.apiGroups[0]=="example.com")].resources[0]}`)

	apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: done}
spec:
  ttlSecondsAfterFinished: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: registry.example/c:1}]
`)
	const at = `"2025-01-01T00:00:00Z"`
	a.MustRun("kubectl", "patch", "job", "done", "--subresource=status", "--type=merge", "--patch", `{"status": {
		"startTime": `+at+`, "completionTime": `+at+`, "succeeded": 1, "conditions": [
			{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": `+at+`},
			{"type": "Complete", "status": "True", "lastTransitionTime": `+at+`}]}}`)
	ends("a Job that has ended goes at its time", gone, "get", "job", "done", "--ignore-not-found")

	apply(`
apiVersion: batch/v1
kind: CronJob
metadata: {name: hourly}
spec:
  schedule: "0 0 1 1 *"
  startingDeadlineSeconds: 100000000
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: c, image: registry.example/c:1}]
`)
	a.MustRun("kubectl", "patch", "cronjob", "hourly", "--subresource=status", "--type=merge", "--patch", `{"status": {"lastScheduleTime": "2025-01-01T00:00:00Z"}}`)
	ends("a CronJob fires", "hourly", "get", "jobs", "-o", "jsonpath={.items[0].metadata.ownerReferences[0].name}")

	apply(`
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
`)
	ends("a budget counts", "1", "get", "poddisruptionbudget", "web", "-o", "jsonpath={.status.desiredHealthy}")

	apply(`
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: absent}}
`)
	ends("a HorizontalPodAutoscaler looks for its target", "FailedGetScale", "get", "horizontalpodautoscaler", "web", "-o", "jsonpath={.status.conditions[0].reason}")

	a.MustRun("kubectl", "delete", "namespace", "web", "--timeout=60s")
	ends("a namespace is emptied and goes", gone, "get", "namespace", "web", "--ignore-not-found")
}
