package operators

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"atoll.dev/atoll/test/framework"
)

// TestT10_Operator: an operator of our own (operator/doc.go), two processes in each workspace.
func TestT10_Operator(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.both(t, "Life", func(t *testing.T, ws *workspace) {
		o := newOperator(t, w, ws)
		o.convert(t)
		o.admit(t)
		o.finalize(t)
		o.takeOver(t)
		o.withoutWebhook(t)
	})
	done(t, "two versions are converted both ways by a webhook that the workspace names by URL, and the stored one works while it is away")
	done(t, "its admission webhooks give defaults and refuse, each only in the workspace that has them")
	done(t, "a finalizer runs before an object goes, its owned objects go after it, in the background, in the foreground, and with --cascade=orphan not")
	done(t, "a leader that is killed by SIGKILL is followed by the other process, which finishes what was begun")
	w.strangers(t, "printers", "printer")
	w.apart(t)
}

// operator is two processes, a and b, of which a leads and b answers webhooks.
type operator struct {
	*workspace
	a, b *framework.Process
	fill *strings.Replacer // of what stands in manifests for its address and certificate
}

func newOperator(t *testing.T, w *world, ws *workspace) *operator {
	t.Helper()
	o := &operator{workspace: ws}
	webhooks := framework.FreePort(t)
	certs := t.TempDir()
	o.fill = strings.NewReplacer("WEBHOOK", "https://127.0.0.1:"+strconv.Itoa(webhooks), "caBundle: CA",
		"caBundle: "+base64.StdEncoding.EncodeToString(writeCertificate(t, certs)))
	o.applies(t, "crd.yaml")
	o.applies(t, "operator.yaml")
	ws.kubectl(t, "wait", "--for=condition=Established", "crd/posters.print.example", "--timeout=60s")
	kubeconfig := ws.kubeconfig(t, "printers", "printer", w.address(ws))
	start := func(id string, port int) *framework.Process {
		health := net.JoinHostPort("127.0.0.1", strconv.Itoa(framework.FreePort(t)))
		return framework.StartProgram(t, framework.Program{
			Name: "operator " + id + " of " + ws.name, Binary: binary(t, "operator"), Ready: answers("http://" + health + "/readyz"),
			Args: []string{"--kubeconfig=" + kubeconfig, "--id=" + id + "-of-" + ws.name, "--webhook-port=" + strconv.Itoa(port), "--cert-dir=" + certs,
				"--health-probe-bind-address=" + health},
		})
	}
	o.a = start("a", framework.FreePort(t))
	o.leads(t, "")
	o.b = start("b", webhooks)
	return o
}

// applies applies a file of its manifests.
func (o *operator) applies(t *testing.T, file string) {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join("operator", "manifests", file))
	if err != nil {
		t.Fatal(err)
	}
	o.kubectlWithInput(t, o.fill.Replace(string(manifest)), "apply", "-f", "-")
}

// leads waits until somebody but before holds the Lease, and returns who.
func (o *operator) leads(t *testing.T, before string) (holder string) {
	t.Helper()
	framework.Eventually(t, patience, "somebody leads", func() string {
		out, err := o.try("", "get", "lease", "printer", "-n", "printers", "-o", "jsonpath={.spec.holderIdentity}")
		if err != nil || out == "" || out == before {
			return fmt.Sprintf("%q, %v", out, err)
		}
		holder = out
		return ""
	})
	return holder
}

// poster applies one of version v1.
func (o *operator) poster(t *testing.T, name string) {
	t.Helper()
	o.apply(t, fmt.Sprintf(`{apiVersion: print.example/v1, kind: Poster, metadata: {name: %s, namespace: default}, spec: {text: for WORKSPACE, width: 30, height: 40}}`, name))
}

func (o *operator) printed(t *testing.T, name, by string) {
	t.Helper()
	o.shows(t, "True "+by+"-of-"+o.name, "posters.v1.print.example", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.printedBy}`)
	o.shows(t, "for "+o.name+", 30 by 40", "configmap", name, "-o", "jsonpath={.data.print}")
}

func (o *operator) convert(t *testing.T) {
	t.Helper()
	o.poster(t, "new")
	o.printed(t, "new", "a")
	o.apply(t, `{apiVersion: print.example/v1beta1, kind: Poster, metadata: {name: old, namespace: default}, spec: {text: for WORKSPACE, size: 30x40}}`)
	o.printed(t, "old", "a")
	o.shows(t, "30x40 30x40", "posters.v1beta1.print.example", "-o", "jsonpath={.items[*].spec.size}")
	o.shows(t, "30 30", "posters.v1.print.example", "-o", "jsonpath={.items[*].spec.width}")
	o.kubectl(t, "patch", "posters.v1beta1.print.example", "new", "--type=merge", "-p", `{"spec":{"size":"90x40"}}`)
	o.shows(t, "90", "posters.v1.print.example", "new", "-o", "jsonpath={.spec.width}")
	o.kubectl(t, "patch", "posters.v1.print.example", "new", "--type=merge", "-p", `{"spec":{"width":30}}`)
	if out, err := o.try("", "patch", "posters.v1beta1.print.example", "new", "--type=merge", "-p", `{"spec":{"size":"wide"}}`); err == nil || !strings.Contains(out, "spec.size") {
		t.Errorf("a size that the schema of its version refuses: %v, %s", err, out)
	}
	if out, err := o.try("", "patch", "posters.v1.print.example", "new", "--type=merge", "-p", `{"spec":{"width":500}}`); err == nil || !strings.Contains(out, "too wide for its height") {
		t.Errorf("a poster that breaks the rule of its definition: %v, %s", err, out)
	}
	if out := o.kubectl(t, "get", "posters"); !strings.Contains(out, "PRINTED-BY") {
		t.Errorf("the table has not the columns of the definition: %s", out)
	}
}

// admit installs the admission webhooks, and removes them again: they would stand in the way of what comes after b stopped.
func (o *operator) admit(t *testing.T) {
	t.Helper()
	o.applies(t, "webhooks.yaml")
	const poster = `{apiVersion: print.example/v1, kind: Poster, metadata: {name: admitted, namespace: default}, spec: {width: %d, height: %d}}`
	framework.Eventually(t, patience, "the webhooks are called", func() string {
		out, err := o.try(fmt.Sprintf(poster, 2000, 2000), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(out, "no paper is that large") {
			return fmt.Sprintf("%v, %s", err, out)
		}
		return ""
	})
	o.kubectlWithInput(t, fmt.Sprintf(poster, 20, 20), "create", "-f", "-")
	o.shows(t, "untitled", "posters.v1.print.example", "admitted", "-o", "jsonpath={.spec.text}")
	// Another version is converted for webhooks that are for v1 alone.
	if out, err := o.try("", "patch", "posters.v1beta1.print.example", "admitted", "--type=merge", "-p", `{"spec":{"size":"2000x2000"}}`); err == nil || !strings.Contains(out, "no paper is that large") {
		t.Errorf("a poster that is too large in v1beta1: %v, %s", err, out)
	}
	o.kubectl(t, "delete", "poster", "admitted", "--wait", "--timeout=60s")
	o.kubectl(t, "delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "printer")
}

func (o *operator) finalize(t *testing.T) {
	t.Helper()
	o.kubectl(t, "delete", "poster", "old", "--wait", "--timeout=60s")
	o.shows(t, "a-of-"+o.name, "configmap", "archive", "-o", "jsonpath={.data.old}")
	o.shows(t, "", "configmap", "old", "--ignore-not-found", "-o", "name")

	o.kubectl(t, "delete", "poster", "new", "--cascade=foreground", "--wait", "--timeout=60s")
	if out := o.kubectl(t, "get", "configmap", "new", "--ignore-not-found", "-o", "name"); out != "" {
		t.Errorf("the poster went before what it owns: %s", out)
	}

	o.poster(t, "orphan")
	o.printed(t, "orphan", "a")
	o.kubectl(t, "delete", "poster", "orphan", "--cascade=orphan", "--wait", "--timeout=60s")
	o.shows(t, "", "configmap", "orphan", "-o", "jsonpath={.metadata.ownerReferences}")
	o.kubectl(t, "delete", "configmap", "orphan")
}

// takeOver kills the leader while it has something to do.
func (o *operator) takeOver(t *testing.T) {
	t.Helper()
	before := o.leads(t, "")
	o.poster(t, "leaving")
	o.printed(t, "leaving", "a")
	o.a.Kill()
	o.poster(t, "late")
	o.kubectl(t, "delete", "poster", "leaving", "--wait=false")
	o.shows(t, "poster.print.example/late\nposter.print.example/leaving", "posters", "-o", "name") // nobody leads
	o.leads(t, before)
	o.printed(t, "late", "b")
	for _, kind := range []string{"poster", "configmap"} {
		o.shows(t, "", kind, "leaving", "--ignore-not-found", "-o", "name")
	}
	o.shows(t, "b-of-"+o.name, "configmap", "archive", "-o", "jsonpath={.data.leaving}")
	o.shows(t, "1", "lease", "printer", "-n", "printers", "-o", "jsonpath={.spec.leaseTransitions}")
}

// withoutWebhook: who asks for another version is told why not, and everything else works.
func (o *operator) withoutWebhook(t *testing.T) {
	t.Helper()
	o.b.Stop()
	if out, err := o.try("", "get", "posters.v1beta1.print.example", "late"); err == nil || !strings.Contains(out, "conversion webhook for print.example/v1") {
		t.Errorf("a version whose webhook is away: %v, %s", err, out)
	}
	o.shows(t, "30", "posters.v1.print.example", "late", "-o", "jsonpath={.spec.width}")
	if out := o.kubectl(t, "get", "all", "-A", "-o", "name"); strings.Contains(out, "rror") {
		t.Errorf("the rest of the workspace: %s", out)
	}
}
