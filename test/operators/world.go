package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/atoll/test/framework"
)

// patience is longer than anything that is waited for on a machine that does something else meanwhile.
const patience = 2 * time.Minute

// names of the two workspaces. They are in the name of whatever a test makes there, and in nothing else, so that a word of
// one in the other is a bleed.
var names = []string{"kiwi", "quince"}

// world is one server with two workspaces.
type world struct {
	*framework.Atoll
	workspaces []*workspace
}

// workspace is one of the two, as its administrator sees it.
type workspace struct {
	name  string // the word that marks what is made here
	url   string
	atoll *framework.Atoll
	admin *rest.Config

	atollBinary string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	a := framework.StartAtoll(t, "--webhook-allowed-addresses=127.0.0.1") // where the tests run their webhooks
	w := &world{Atoll: a}
	for _, name := range names {
		a.MustRun("workspace", "create", name)
		config := a.Config()
		config.Host += "/clusters/root:" + name
		config.WarningHandler = rest.NoWarnings{} // what runs nowhere is warned of
		w.workspaces = append(w.workspaces, &workspace{name: name, url: config.Host, atoll: a, admin: config, atollBinary: framework.Binary(t)})
	}
	return w
}

// both does the same in both workspaces at once, and goes on when both are through.
func (w *world) both(t *testing.T, what string, do func(*testing.T, *workspace)) {
	t.Helper()
	ok := t.Run(what, func(t *testing.T) {
		for _, ws := range w.workspaces {
			t.Run(ws.name, func(t *testing.T) {
				t.Parallel()
				do(t, ws)
			})
		}
	})
	if !ok {
		t.FailNow()
	}
}

// apart fails the test if one workspace holds a word of the other in anything that it serves, or none of its own.
func (w *world) apart(t *testing.T) {
	t.Helper()
	for i, ws := range w.workspaces {
		dump := ws.dump(t)
		if !strings.Contains(dump, ws.name) {
			t.Errorf("%s has nothing of its own, so this shows nothing", ws.name)
		}
		other := w.workspaces[1-i].name
		for line := range strings.SplitSeq(dump, "\n") {
			if strings.Contains(line, other) {
				t.Errorf("%s has something of %s: %s", ws.name, other, line)
			}
		}
	}
	done(t, "everything that each workspace serves, listed in full, holds no word of the other")
}

// dump is every object of every kind that the workspace lists, one a line.
func (w *workspace) dump(t *testing.T) string {
	t.Helper()
	found, err := discovery.NewDiscoveryClientForConfig(w.admin)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := found.ServerPreferredResources()
	if err != nil {
		t.Fatalf("discover what %s serves: %v", w.name, err)
	}
	objects := w.objects(t)
	var b strings.Builder
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		if gv.Group == "metrics.k8s.io" { // a physical cluster measures it, or not
			continue
		}
		for _, r := range list.APIResources {
			all, err := objects.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("list %s of %s: %v", r.Name, w.name, err)
			}
			for _, o := range all.Items {
				line, err := json.Marshal(o.Object)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "%s %s/%s %s\n", r.Name, o.GetNamespace(), o.GetName(), line)
			}
		}
	}
	return b.String()
}

// objects is the administrator's access to any kind.
func (w *workspace) objects(t *testing.T) dynamic.Interface {
	t.Helper()
	objects, err := dynamic.NewForConfig(w.admin)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// kubectl runs the kubectl that is built in, as the workspace's administrator, and returns what it prints.
func (w *workspace) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return w.kubectlWithInput(t, "", args...)
}

func (w *workspace) kubectlWithInput(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := w.try(input, args...)
	if err != nil {
		t.Fatalf("%s: kubectl %s: %v\n%s", w.name, strings.Join(args, " "), err, out)
	}
	return out
}

// try is kubectl that may fail: what it prints, and with an error what it says, too.
func (w *workspace) try(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.atollBinary, append([]string{"kubectl", "--server=" + w.url}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.atoll.Kubeconfig)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil // without warnings
}

// apply applies a manifest in which WORKSPACE stands for the workspace's name.
func (w *workspace) apply(t *testing.T, manifest string) {
	t.Helper()
	w.kubectlWithInput(t, w.named(manifest), "apply", "-f", "-")
}

func (w *workspace) named(text string) string { return strings.ReplaceAll(text, "WORKSPACE", w.name) }

// shows waits until kubectl get with these arguments prints want.
func (w *workspace) shows(t *testing.T, want string, args ...string) {
	t.Helper()
	framework.Eventually(t, patience, fmt.Sprintf("%s: kubectl get %s shows %q", w.name, strings.Join(args, " "), want), func() string {
		out, err := w.try("", append([]string{"get"}, args...)...)
		if got := strings.TrimSpace(out); err != nil || got != want {
			return fmt.Sprintf("%q, %v\n%s", got, err, w.events())
		}
		return ""
	})
}

// gone waits until none of these is left in the namespace.
func (w *workspace) gone(t *testing.T, namespace, kinds string, selector ...string) {
	t.Helper()
	w.shows(t, "", append([]string{kinds, "-n", namespace, "-o", "name", "--ignore-not-found"}, selector...)...)
}

// events is what a person would look at after a failure.
func (w *workspace) events() string {
	out, err := w.try("", "get", "events", "-A")
	if err != nil {
		out += err.Error()
	}
	return out
}

// kubeconfig writes one with the token of a ServiceAccount, which is all that a program in a Pod has. At address it is told
// where it is, or not: a server that knows the token knows the workspace.
func (w *workspace) kubeconfig(t *testing.T, namespace, account, address string) string {
	t.Helper()
	token := w.token(t, namespace, account)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"here": {Server: address, CertificateAuthorityData: w.admin.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{account: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"here": {Cluster: "here", AuthInfo: account, Namespace: namespace}},
		CurrentContext: "here",
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func (w *workspace) token(t *testing.T, namespace, account string) string {
	t.Helper()
	return strings.TrimSpace(w.kubectl(t, "create", "token", account, "-n", namespace))
}

// address is one of two ways in which a program is told where the server is: with the workspace in the first one, and
// without in the second, as in a Pod.
func (w *world) address(ws *workspace) string {
	if ws == w.workspaces[0] {
		return ws.url
	}
	return w.URL
}

// strangers checks that the token of each workspace's ServiceAccount is nobody in the other.
func (w *world) strangers(t *testing.T, namespace, account string) {
	t.Helper()
	for i, ws := range w.workspaces {
		other := w.workspaces[1-i]
		config := rest.AnonymousClientConfig(other.admin)
		config.BearerToken = ws.token(t, namespace, account)
		objects, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsUnauthorized(err) {
			t.Errorf("the token of %s/%s of %s in %s: %v, want Unauthorized", namespace, account, ws.name, other.name, err)
		}
	}
}

// led checks that a Lease has one holder in each workspace, and that they differ.
func (w *world) led(t *testing.T, namespace, lease string) {
	t.Helper()
	var holders []string
	for _, ws := range w.workspaces {
		framework.Eventually(t, patience, ws.name+" has a leader", func() string {
			holder, err := ws.try("", "get", "lease", lease, "-n", namespace, "-o", "jsonpath={.spec.holderIdentity}")
			if err != nil || holder == "" {
				return fmt.Sprintf("%q, %v", holder, err)
			}
			holders = append(holders, holder)
			return ""
		})
	}
	if holders[0] == holders[1] {
		t.Errorf("both workspaces are led by %s", holders[0])
	}
	done(t, "each workspace has its leader, by the Lease %s/%s", namespace, lease)
}

// done says what was shown, for docs/operators.md.
func done(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("done: "+format, args...)
}

// binary is a program that build.sh made, in ATOLL_BIN_DIR, else in the repository's bin.
func binary(t testing.TB, name string) string {
	t.Helper()
	file := filepath.Join(filepath.Dir(framework.Binary(t)), name)
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("find %s: %v; run `make operators` or `test/operators/build.sh bin` first", name, err)
	}
	return file
}

// source is the folder in the module cache of a module in a module file, and its version.
func source(t *testing.T, name, module string) (dir, version string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-modfile", name+".mod", "-m", "-f", "{{.Dir}} {{.Version}}", module).Output()
	if err != nil {
		t.Fatalf("find %s in the module cache: %v", module, err)
	}
	dir, version, _ = strings.Cut(strings.TrimSpace(string(out)), " ")
	if dir == "" {
		t.Fatalf("%s is not in the module cache; run `test/operators/build.sh bin` first", module)
	}
	t.Logf("program: %s %s", module, version)
	return dir, version
}

// answers is a check of Program.Ready: a GET of url is answered 200.
func answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", url, resp.Status)
		}
		return nil
	}
}

// run runs a program without this person's settings of kubectl and Helm, and returns what it prints.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := tryRun(t, dir, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return out
}

func tryRun(t *testing.T, dir string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "HELM_") || strings.HasPrefix(v, "XDG_") || strings.HasPrefix(v, "KUBE")
	}), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
