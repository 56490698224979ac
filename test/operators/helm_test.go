package operators

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/atoll/test/framework"
)

// chart has a hook of each moment, two of which are Jobs, and a Job of each version, which --wait-for-jobs waits for. Nothing but this test
// carries them out.
var chart = map[string]string{
	"Chart.yaml": "{apiVersion: v2, name: hooked, version: 0.1.0}",
	"values.yaml": `{tag: "1"}
`,
	"templates/app.yaml": `
apiVersion: batch/v1
kind: Job
metadata: {name: {{ .Release.Name }}-{{ .Values.tag }}}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template: {spec: {restartPolicy: Never, containers: [{name: main, image: "registry.example/app:{{ .Values.tag }}"}]}}
`,
	"templates/hooks.yaml": `
{{- range $when := list "pre-install" "post-install" "pre-upgrade" "post-upgrade" "pre-delete" "post-delete" }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $.Release.Name }}-{{ $when }}
  annotations: {helm.sh/hook: {{ $when }}, helm.sh/hook-weight: "-5", helm.sh/hook-delete-policy: before-hook-creation}
data: {revision: "{{ $.Release.Revision }}"}
{{- end }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .Release.Name }}-migrate
  annotations: {helm.sh/hook: "pre-install,pre-upgrade", helm.sh/hook-delete-policy: "before-hook-creation,hook-succeeded"}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template: {spec: {restartPolicy: Never, containers: [{name: main, image: "registry.example/migrate:{{ .Values.tag }}"}]}}
`,
}

// TestT8_HelmHooks: https://helm.sh, v4, with hooks, --wait and what follows a hook that fails.
func TestT8_HelmHooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.both(t, "Release", release)
	done(t, "install and upgrade wait for a Job of a hook, then for a Job of its own; a hook that fails fails the upgrade, a rollback follows; uninstall runs its hooks")
	w.apart(t)
}

func release(t *testing.T, ws *workspace) {
	dir := filepath.Join(t.TempDir(), "hooked")
	for name, text := range chart {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	home := t.TempDir()
	env := ws.helmEnv(t, home)
	name := "app-" + ws.name
	helm := func(args ...string) <-chan error {
		result := make(chan error, 1)
		go func() {
			out, err := tryRun(t, home, env, binary(t, "helm"), args...)
			if err != nil {
				err = fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
			}
			result <- err
		}()
		return result
	}
	waits := func(result <-chan error, what string) {
		t.Helper()
		select {
		case err := <-result:
			t.Fatalf("%s: helm does not wait for %s: %v", ws.name, what, err)
		default:
		}
	}
	migrated := func(result <-chan error, image string) {
		t.Helper()
		ws.shows(t, image, "job", name+"-migrate", "--ignore-not-found", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
		waits(result, "the Job of its hook")
		succeed(t, ws, name+"-migrate")
	}
	completed := func(result <-chan error, tag string) {
		t.Helper()
		job := name + "-" + tag
		ws.shows(t, "registry.example/app:"+tag, "job", job, "--ignore-not-found", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
		waits(result, "its Job")
		succeed(t, ws, job)
	}
	ended := func(result <-chan error) {
		t.Helper()
		if err := <-result; err != nil {
			t.Fatalf("%s: %v", ws.name, err)
		}
	}

	install := helm("install", name, dir, "--wait", "--wait-for-jobs", "--timeout", "2m")
	migrated(install, "registry.example/migrate:1")
	completed(install, "1")
	ended(install)
	ws.shows(t, "1 1", "configmaps", name+"-pre-install", name+"-post-install", "-o", "jsonpath={.items[*].data.revision}")
	ws.shows(t, "", "job", name+"-migrate", "--ignore-not-found", "-o", "name") // it succeeded

	upgrade := helm("upgrade", name, dir, "--set", "tag=2", "--wait", "--wait-for-jobs", "--timeout", "2m")
	migrated(upgrade, "registry.example/migrate:2")
	completed(upgrade, "2")
	ended(upgrade)

	broken := helm("upgrade", name, dir, "--set", "tag=3", "--wait", "--wait-for-jobs", "--timeout", "2m")
	ws.shows(t, "registry.example/migrate:3", "job", name+"-migrate", "--ignore-not-found", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	fail(t, ws, name+"-migrate")
	if err := <-broken; err == nil || !strings.Contains(err.Error(), "pre-upgrade hooks failed") {
		t.Errorf("%s: an upgrade whose hook failed: %v", ws.name, err)
	}
	ws.shows(t, "registry.example/app:2", "job", name+"-2", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	ws.shows(t, "failed", "secrets", "-l", "owner=helm,version=3,name="+name, "-o", "jsonpath={.items[*].metadata.labels.status}")

	back := helm("rollback", name, "1", "--wait", "--wait-for-jobs", "--timeout", "2m")
	completed(back, "1")
	ended(back)

	ended(helm("uninstall", name, "--wait", "--timeout", "2m"))
	ws.shows(t, "", "secrets", "-l", "owner=helm", "-o", "name")
	ws.shows(t, "", "job", name+"-1", "--ignore-not-found", "-o", "name")
	framework.Eventually(t, patience, "what hooks left is left", func() string {
		out, err := ws.try("", "get", "configmaps", name+"-pre-delete", name+"-post-delete", "-o", "name")
		if err != nil {
			return out
		}
		return ""
	})
}

// helmEnv is a home of its own: neither this person's plugins and settings, nor traces in his caches.
func (w *workspace) helmEnv(t *testing.T, dir string) []string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(w.atoll.Kubeconfig)
	if err != nil {
		t.Fatalf("read the administrator's kubeconfig: %v", err)
	}
	config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server = w.url
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatalf("write the workspace's kubeconfig: %v", err)
	}
	return []string{"HOME=" + dir, "KUBECONFIG=" + file}
}

// fail writes the status of a Job whose pods have all failed.
func fail(t *testing.T, ws *workspace, job string) {
	t.Helper()
	const at = `"2026-01-01T00:00:00Z"`
	ws.kubectl(t, "patch", "job", job, "--subresource=status", "--type=merge", "-p", `{"status":{"startTime":`+at+`}}`)
	condition := func(kind string) string {
		return fmt.Sprintf(`{"type":%q,"status":"True","reason":"BackoffLimitExceeded","lastTransitionTime":%s,"lastProbeTime":%s}`, kind, at, at)
	}
	ws.kubectl(t, "patch", "job", job, "--subresource=status", "--type=merge", "-p",
		`{"status":{"failed":7,"uncountedTerminatedPods":{},"conditions":[`+condition("FailureTarget")+`,`+condition("Failed")+`]}}`)
}
