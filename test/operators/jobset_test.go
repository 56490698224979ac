package operators

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"atoll.dev/atoll/test/framework"
)

var jobset = manager{
	name: "jobset", module: "sigs.k8s.io/jobset", namespace: "jobset-system", crd: "jobsets.jobset.x-k8s.io",
	hooks: map[string][]string{
		"MutatingWebhookConfiguration mutating-webhook-configuration":     {"/mutate-jobset-x-k8s-io-v1alpha2-jobset", "/mutate--v1-pod"},
		"ValidatingWebhookConfiguration validating-webhook-configuration": {"/validate-jobset-x-k8s-io-v1alpha2-jobset", "/validate--v1-pod"},
	},
}

// A JobSet with everything that its webhook would default.
const trainer = `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train-WORKSPACE, namespace: default}
spec:
  network: {enableDNSHostnames: true, publishNotReadyAddresses: true}
  successPolicy: {operator: All}
  startupPolicy: {startupPolicyOrder: AnyOrder}
  replicatedJobs:
  - name: driver
    replicas: 1
    template: &job
      spec:
        parallelism: 2
        completions: 2
        completionMode: Indexed
        backoffLimit: 0
        template:
          spec:
            restartPolicy: Never
            containers: [{name: main, image: registry.example/WORKSPACE:1}]
  - name: workers
    replicas: 2
    template: *job
`

// TestJobSet: https://jobset.sigs.k8s.io, of the API of Jobs.
func TestJobSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	instances := map[string]ports{}
	for _, ws := range w.workspaces {
		p := newPorts(t)
		instances[ws.name] = p
		jobset.install(t, ws, p)
		jobset.start(t, w, ws, p)
	}
	done(t, "installed from its own config/default by kustomize and a server-side apply; runs as its ServiceAccount, with its roles alone")
	w.led(t, jobset.namespace, "6d4f6a47.jobset.x-k8s.io")
	w.strangers(t, jobset.namespace, "jobset-controller-manager")

	w.both(t, "Jobs", jobs)
	done(t, "a JobSet becomes Jobs and a Service, is suspended and resumed, completes as its Jobs do; its CEL rules refuse a change")
	w.both(t, "Metrics", func(t *testing.T, ws *workspace) {
		other := w.workspaces[0]
		if ws == other {
			other = w.workspaces[1]
		}
		jobset.metrics(t, ws, other, instances[ws.name])
	})
	done(t, "/metrics of the manager asks its workspace who calls, by TokenReview and SubjectAccessReview: its own ServiceAccount may read, that of the other workspace is nobody")
	w.apart(t)
	w.both(t, "Deleted", func(t *testing.T, ws *workspace) {
		ws.kubectl(t, "delete", "jobset", "train-"+ws.name, "--wait", "--timeout=60s")
		ws.gone(t, "default", "jobs,services,jobsets", "--selector=jobset.sigs.k8s.io/jobset-name")
		ws.gone(t, "default", "service", "train-"+ws.name)
		ws.kubectl(t, "delete", "crd", jobset.crd, "--wait", "--timeout=60s")
		if out, err := ws.try("", "get", "jobsets"); err == nil || !strings.Contains(out, "resource") {
			// kubectl says it one way or the other, by whether it has discovery of before in its cache
			t.Errorf("jobsets without their definition: %v, %s", err, out)
		}
	})
	done(t, "the JobSet's deletion takes Jobs and Service along; the definition goes")
}

func jobs(t *testing.T, ws *workspace) {
	ws.apply(t, trainer)
	made := []string{"train-WORKSPACE-driver-0", "train-WORKSPACE-workers-0", "train-WORKSPACE-workers-1"}
	const mine = "--selector=jobset.sigs.k8s.io/jobset-name=train-WORKSPACE"
	ws.shows(t, ws.named("job.batch/"+strings.Join(made, "\njob.batch/")), "jobs", ws.named(mine), "-o", "name")
	ws.shows(t, "None", "service", "train-"+ws.name, "-o", "jsonpath={.spec.clusterIP}")
	ws.shows(t, ws.named("JobSet/train-WORKSPACE/true"), "job", ws.named(made[0]), "-o",
		"jsonpath={range .metadata.ownerReferences[*]}{.kind}/{.name}/{.controller}{end}")

	jobset := "jobset/train-" + ws.name
	if out, err := ws.try("", "patch", jobset, "--type=merge", "-p", `{"spec":{"successPolicy":{"operator":"Any"}}}`); err == nil || !strings.Contains(out, "immutable") {
		t.Errorf("a change of what a CEL rule protects: %v, %s", err, out)
	}

	ws.kubectl(t, "patch", jobset, "--type=merge", "-p", `{"spec":{"suspend":true}}`)
	ws.shows(t, "true true true", "jobs", ws.named(mine), "-o", "jsonpath={.items[*].spec.suspend}")
	ws.shows(t, "True", jobset, "-o", `jsonpath={.status.conditions[?(@.type=="Suspended")].status}`)
	ws.kubectl(t, "patch", jobset, "--type=merge", "-p", `{"spec":{"suspend":false}}`)
	ws.shows(t, "false false false", "jobs", ws.named(mine), "-o", "jsonpath={.items[*].spec.suspend}")

	// What the controller of Jobs of a physical cluster would say, first of the workers.
	for i := len(made) - 1; i >= 0; i-- {
		succeed(t, ws, ws.named(made[i]))
		if made[i] == made[1] {
			ws.shows(t, "2", jobset, "-o", `jsonpath={.status.replicatedJobsStatus[?(@.name=="workers")].succeeded}`)
		}
	}
	ws.shows(t, "True Completed", jobset, "-o", `jsonpath={.status.conditions[?(@.type=="Completed")].status} {.status.terminalState}`)
	ws.shows(t, "Completed", jobset, "-o", "custom-columns=:.status.terminalState", "--no-headers")
}

// succeed writes the status of a Job whose pods have all succeeded.
func succeed(t *testing.T, ws *workspace, job string) {
	t.Helper()
	began, ended := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339)
	condition := func(kind string) string {
		return fmt.Sprintf(`{"type":%q,"status":"True","reason":"CompletionsReached","lastTransitionTime":%q,"lastProbeTime":%q}`, kind, ended, ended)
	}
	status := func(fields string) {
		ws.kubectl(t, "patch", "job", job, "--subresource=status", "--type=merge", "-p", `{"status":{`+fields+`}}`)
	}
	if ws.kubectl(t, "get", "job", job, "-o", "jsonpath={.status.startTime}") == "" {
		status(fmt.Sprintf(`"startTime":%q`, began))
	}
	status(fmt.Sprintf(`"succeeded":2,"completedIndexes":"0-1","uncountedTerminatedPods":{},"completionTime":%q,"conditions":[%s,%s]`,
		ended, condition("SuccessCriteriaMet"), condition("Complete")))
}

// metrics asks the manager, which asks the workspace.
func (m manager) metrics(t *testing.T, ws, other *workspace, p ports) {
	t.Helper()
	// The manager makes a certificate for its metrics that nobody can know.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, RootCAs: x509.NewCertPool()}}}
	defer client.CloseIdleConnections()
	get := func(token string) (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics", p.metrics), nil)
		if err != nil {
			return "", err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.Status + " " + string(body), err
	}
	framework.Eventually(t, patience, "the manager shows its metrics to its own ServiceAccount", func() string {
		out, err := get(ws.token(t, m.namespace, m.name+"-controller-manager"))
		if err != nil || !strings.HasPrefix(out, "200 ") || !strings.Contains(out, "controller_runtime_reconcile_total") {
			return fmt.Sprintf("%.300s, %v", out, err)
		}
		return ""
	})
	if out, err := get(other.token(t, m.namespace, m.name+"-controller-manager")); err != nil || strings.HasPrefix(out, "200 ") || strings.HasPrefix(out, "403 ") {
		// 401, or 500 where the TokenReview says what is wrong with the token; never somebody who is known, but not allowed.
		t.Errorf("the ServiceAccount of %s at the manager of %s: %.300s, %v, want it to be nobody", other.name, ws.name, out, err)
	}
}
