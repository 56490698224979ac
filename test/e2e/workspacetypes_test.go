package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"atoll.dev/atoll/test/framework"
)

// everybodyGets is what the preparer puts into each workspace.
const everybodyGets = `
apiVersion: v1
kind: Namespace
metadata: {name: web}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: policy, namespace: web}
data: {by: preparer}
`

// usePrepared lets the staff make workspaces of the type.
const usePrepared = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: use-prepared}
rules:
- {apiGroups: [tenancy.kcp.io], resources: [workspacetypes], resourceNames: [prepared], verbs: [use]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: use-prepared}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: use-prepared}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: staff}
`

// TestP1_InitializersAndTerminators follows a workspace of the type in docs/workspace-types.md from a tenant's wish for it until
// nothing of it is left. It waits for its initializer before the tenant gets it, and for its terminator before what it holds goes,
// over a server that is killed; each time a ServiceAccount of the type's workspace finds it, works in it and is out again.
func TestP1_InitializersAndTerminators(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("ann-token,ann,1,staff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	atoll := framework.StartAtoll(t, "--token-auth-file="+tokens, "--home-workspaces=staff")
	p := newPreparer(t, atoll)
	ann := person(t, atoll, "ann-token")
	ann.MustRun("workspace", "use")
	home := strings.TrimSpace(ann.MustRun("workspace", "current", "--short"))
	inShop := func(args ...string) []string {
		return append([]string{"kubectl", "--server=" + atoll.URL + "/clusters/" + home + ":shop"}, args...)
	}
	overAKill := func(check func()) {
		check()
		atoll.Kill()
		atoll.Start()
		check()
	}

	framework.Eventually(t, patience, "ann makes a workspace", func() string { // when her right is known
		out, err := ann.Run("workspace", "create", "shop", "--type=root:prepared", "--ignore-existing", "--timeout=1s")
		if err == nil {
			t.Fatalf("the workspace is ready before it is prepared: %s", out)
		}
		if !strings.Contains(out, "was created but is not ready") {
			return out
		}
		return ""
	})
	said(t, ann, "shop Initializing", "[root:prepared]")
	cluster := ann.MustStdout("kubectl", "get", "workspace", "shop", "-o=jsonpath={.spec.cluster}")
	overAKill(func() {
		said(t, ann, "shop Initializing", "[root:prepared]")
		refused(t, ann, "the workspace is not ready: it is being initialized", "workspace", "use", "shop")
		refused(t, ann, "the workspace is not ready: it is being initialized", inShop("get", "--raw=/api/v1/configmaps")...)
		p.finds(p.initializing, cluster)
	})
	waiting := p.watch(p.initializing)
	defer waiting.Kill()
	told(t, waiting, "ADDED "+cluster)
	p.must(everybodyGets, p.initializing, cluster, "apply", "--filename=-")
	p.leaves(p.initializing, cluster, "initializers")
	told(t, waiting, "DELETED "+cluster)
	said(t, ann, "shop Ready")
	if got := ann.MustStdout(inShop("get", "configmap", "policy", "--namespace=web", "-o=jsonpath={.data.by}")...); got != "preparer" {
		t.Errorf("the workspace is ready and holds a policy by %q", got)
	}
	p.finds(p.initializing)
	p.refused(p.initializing, cluster)
	p.refused(p.terminating, cluster)

	ann.MustRun(inShop("create", "configmap", "account")...)
	ann.MustRun("workspace", "delete", "shop", "--wait=false")
	overAKill(func() {
		said(t, ann, "shop Terminating", "terminators root:prepared")
		refused(t, ann, "the workspace is being deleted and takes nothing new", inShop("create", "configmap", "late")...)
		p.finds(p.terminating, cluster)
		p.must("", p.terminating, cluster, "get", "configmap", "account")
		p.must("", p.terminating, cluster, "get", "configmap", "policy", "--namespace=web")
		p.refused(p.initializing, cluster)
	})
	going := p.watch(p.terminating)
	defer going.Kill()
	told(t, going, "ADDED "+cluster)
	p.leaves(p.terminating, cluster, "terminators")
	told(t, going, "DELETED "+cluster)
	framework.Eventually(t, patience, "the workspace is gone", func() string { return ann.MustStdout("workspace", "list") })
	p.refused(p.terminating, cluster)

	// Who waits for attendants that never come is told how to go on without them, and who administers the server does so.
	without := func(args ...string) {
		t.Helper()
		out, err := ann.Run(args...)
		_, commands, told := strings.Cut(out, "goes on without them:\n")
		if err == nil || !told {
			t.Fatalf("atoll %s: %v, %s", strings.Join(args, " "), err, out)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+atoll.KubeconfigOf(t, "root"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", commands, err, out)
		}
	}
	without("workspace", "create", "stuck", "--type=root:prepared", "--timeout=2s")
	said(t, ann, "stuck Ready")
	without("workspace", "delete", "stuck", "--timeout=2s")
	framework.Eventually(t, patience, "the other workspace is gone", func() string { return ann.MustStdout("workspace", "list") })

	atoll.Stop()
	rows := rows(t, atoll)
	if of := rowsOf(rows, cluster); len(of) > 0 {
		t.Errorf("of the workspace are left %q", of)
	}
	if _, name, _ := strings.Cut(home, "root:users:"); len(rowsOf(rows, name)) == 0 {
		t.Errorf("no row is found of the home that is there: %q", rows)
	}
}

// said waits until the workspaces that somebody is shown are one, whose line begins with its name and phase and has the words.
func said(t *testing.T, who *framework.Atoll, begins string, words ...string) {
	t.Helper()
	framework.Eventually(t, patience, "workspaces are "+begins, func() string {
		out := who.MustStdout("workspace", "list")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 2 || !strings.HasPrefix(strings.Join(strings.Fields(lines[1]), " "), begins+" ") {
			return out
		}
		for _, word := range words {
			if !strings.Contains(lines[1], word) {
				return out
			}
		}
		return ""
	})
}

// told waits until a watch has printed a line.
func told(t *testing.T, watch *framework.Process, line string) {
	t.Helper()
	framework.Eventually(t, patience, "the watch tells "+line, func() string {
		if log := watch.Log(); !strings.Contains(log, line+"\n") {
			return fmt.Sprintf("it told %q", log)
		}
		return ""
	})
}

// preparer is the ServiceAccount that docs/workspace-types.md has initialize and terminate workspaces.
type preparer struct {
	t                         *testing.T
	atoll                     *framework.Atoll
	access                    []string // its flags of kubectl
	initializing, terminating string   // addresses in the status of the type
}

// newPreparer does as docs/workspace-types.md says.
func newPreparer(t *testing.T, atoll *framework.Atoll) *preparer {
	t.Helper()
	doc, err := os.ReadFile("../../docs/workspace-types.md")
	if err != nil {
		t.Fatal(err)
	}
	_, manifest, ok := strings.Cut(string(doc), "```yaml\n# prepared.yaml\n")
	manifest, _, closed := strings.Cut(manifest, "```")
	if !ok || !closed {
		t.Fatal("docs/workspace-types.md has no prepared.yaml")
	}
	atoll.MustRunWithInput(manifest, "kubectl", "apply", "--filename=-")
	atoll.MustRunWithInput(usePrepared, "kubectl", "apply", "--filename=-")
	atoll.MustRun("kubectl", "create", "serviceaccount", "preparer")
	address := func(kind string) string {
		return atoll.MustStdout("kubectl", "get", "workspacetype", "prepared", `-o=jsonpath={.status.virtualWorkspaces[?(@.type=="`+kind+`")].url}`)
	}
	token := strings.TrimSpace(atoll.MustStdout("kubectl", "create", "token", "preparer"))
	return &preparer{
		t: t, atoll: atoll, initializing: address("initializing"), terminating: address("terminating"),
		access: []string{"kubectl", "--kubeconfig=/dev/null", "--certificate-authority=" + filepath.Join(atoll.Dir, "pki", "ca.crt"), "--token=" + token},
	}
}

// kubectl are the arguments of a command below one of the addresses, in a logical cluster or in all (*).
func (p *preparer) kubectl(address, cluster string, args ...string) []string {
	return append(append(p.access[:len(p.access):len(p.access)], "--server="+address+"/clusters/"+cluster), args...)
}

func (p *preparer) must(input, address, cluster string, args ...string) {
	p.t.Helper()
	p.atoll.MustRunWithInput(input, p.kubectl(address, cluster, args...)...)
}

// finds wants those that wait to be these.
func (p *preparer) finds(address string, clusters ...string) {
	p.t.Helper()
	want := strings.Join(clusters, " ")
	framework.Eventually(p.t, patience, "the preparer is shown "+want, func() string {
		out, err := p.atoll.Run(p.kubectl(address, "*", "get", "logicalclusters", `-o=jsonpath={.items[*].metadata.annotations.kcp\.io/cluster}`)...)
		if err != nil || out != want {
			return fmt.Sprintf("%v\n%s", err, out)
		}
		return ""
	})
}

// watch tells of those that wait, a line an event.
func (p *preparer) watch(address string) *framework.Process {
	p.t.Helper()
	return framework.StartProgram(p.t, framework.Program{
		Name: "watch", Binary: framework.Binary(p.t), Ready: func(context.Context) error { return nil },
		Args: p.kubectl(address, "*", "get", "logicalclusters", "--watch", "--output-watch-events", `-o=jsonpath={.type} {.object.metadata.annotations.kcp\.io/cluster}{"\n"}`),
	})
}

// leaves takes its own name out of a field of the status.
func (p *preparer) leaves(address, cluster, field string) {
	p.t.Helper()
	p.must("", address, cluster, "patch", "logicalcluster", "cluster", "--subresource=status", "--type=merge", `--patch={"status":{"`+field+`":[]}}`)
}

// refused wants a logical cluster to be closed to him below an address.
func (p *preparer) refused(address, cluster string) {
	p.t.Helper()
	refused(p.t, p.atoll, "it does not wait for this initializer or terminator now", p.kubectl(address, cluster, "get", "--raw=/api/v1/configmaps")...)
}

// rows are what the store of a stopped server holds, by key.
func rows(t *testing.T, atoll *framework.Atoll) map[string]string {
	t.Helper()
	var all *clientv3.GetResponse
	inStoppedStore(t, atoll, func(store *clientv3.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var err error
		if all, err = store.Get(ctx, "/", clientv3.WithPrefix()); err != nil {
			t.Errorf("read the store of the stopped server: %v", err)
		}
	})
	found := map[string]string{}
	for _, kv := range all.Kvs {
		found[string(kv.Key)] = string(kv.Value)
	}
	return found
}

// rowsOf are the keys of rows that have a name anywhere. That of a logical cluster is random: whatever has it is of that one.
func rowsOf(rows map[string]string, name string) (keys []string) {
	for key, value := range rows {
		if strings.Contains(key, name) || strings.Contains(value, name) {
			keys = append(keys, key)
		}
	}
	return keys
}
