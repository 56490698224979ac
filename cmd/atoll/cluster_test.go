package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/syncer"
)

// physicalKubeconfig writes a kubeconfig as physical clusters have it, changed by change.
func physicalKubeconfig(t *testing.T, server string, change func(*clientcmdapi.Config)) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["east"] = &clientcmdapi.Cluster{Server: server}
	c.Contexts["east"] = &clientcmdapi.Context{Cluster: "east", AuthInfo: "admin"}
	c.Contexts["other"] = &clientcmdapi.Context{Cluster: "gone", AuthInfo: "admin"}
	c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "t"}
	c.CurrentContext = "east"
	if change != nil {
		change(c)
	}
	file := filepath.Join(t.TempDir(), "east.kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLoadCredentialNamesWhatIsWrong(t *testing.T) {
	for fault, test := range map[string]struct {
		context string
		change  func(*clientcmdapi.Config)
	}{
		`no context "nope": it has "east", "other"`: {context: "nope"},
		`the cluster "gone", which is not in it`:    {context: "other"},
		"no current context":                        {change: func(c *clientcmdapi.Config) { c.CurrentContext = "" }},
		"is a workspace of an Atoll":                {change: func(c *clientcmdapi.Config) { c.Clusters["east"].Server += "/clusters/root" }},
		"credentials from a plugin": {change: func(c *clientcmdapi.Config) {
			c.AuthInfos["admin"].Exec = &clientcmdapi.ExecConfig{Command: "aws", APIVersion: "client.authentication.k8s.io/v1"}
		}},
		"ca.crt": {change: func(c *clientcmdapi.Config) { c.Clusters["east"].CertificateAuthority = "/nowhere/ca.crt" }},
	} {
		file := physicalKubeconfig(t, "https://127.0.0.1:1", test.change)
		if _, err := loadCredential(file, test.context); err == nil || !strings.Contains(err.Error(), fault) || !strings.Contains(err.Error(), file) {
			t.Errorf("error %v, want one with %q and the file", err, fault)
		}
	}
	if _, err := loadCredential("/nowhere/x", ""); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
	for content, fault := range map[string]string{
		"hello":         "is no kubeconfig: want YAML",
		"clusters: 3":   "is no kubeconfig: want YAML",
		"clusters: [\n": "is no kubeconfig: line 1",
	} {
		file := filepath.Join(t.TempDir(), "garbage")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := loadCredential(file, "")
		if err == nil || !strings.HasPrefix(err.Error(), file+" "+fault) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%q: error %v, want the file and %q", content, err, fault)
		}
	}
}

func TestLoadCredentialStandsAlone(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadCredential(physicalKubeconfig(t, "https://127.0.0.1:1", func(c *clientcmdapi.Config) {
		c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{TokenFile: token}
		c.AuthInfos["somebody"] = &clientcmdapi.AuthInfo{Token: "secret of another"}
	}), "")
	if err != nil {
		t.Fatal(err)
	}
	if s := string(c.data); !strings.Contains(s, "from-file") || strings.Contains(s, dir) || strings.Contains(s, "another") {
		t.Errorf("want the token inlined, no path and no other user, got:\n%s", s)
	}
}

func TestConnect(t *testing.T) {
	answer, allowed := http.StatusOK, "true"
	var asked sync.WaitGroup // by many at a time, for a cluster may be far away
	asked.Add(reviewsAtOnce)
	var reviews atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case answer != http.StatusOK:
			w.WriteHeader(answer)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":` + map[int]string{401: `401,"reason":"Unauthorized"`, 403: `403,"reason":"Forbidden"`}[answer] + `}`))
		case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			if reviews.Add(1) <= reviewsAtOnce {
				asked.Done()
				asked.Wait()
			}
			_, _ = w.Write([]byte(`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":` + allowed + `}}`))
		case r.URL.Path == "/version":
			_, _ = w.Write([]byte(`{"gitVersion":"v1.36.3"}`))
		default:
			_, _ = w.Write([]byte(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"u1"}}`))
		}
	}))
	defer server.Close()
	c, err := loadCredential(physicalKubeconfig(t, server.URL, nil), "")
	if err != nil {
		t.Fatal(err)
	}
	if c.config.QPS >= 0 {
		t.Errorf("a hundred requests wait for each other: %v are let through in a second", c.config.QPS)
	}
	if who, err := c.connect(t.Context()); err != nil || who != (identity{"u1", "v1.36.3"}) {
		t.Errorf("got %+v, %v", who, err)
	}
	allowed = "false"
	if _, err := c.connect(t.Context()); err == nil || !strings.Contains(err.Error(), "may not get namespaces") {
		t.Errorf("error %v, want one that names what the user may not do", err)
	}
	for code, fault := range map[int]string{401: "does not accept the credentials", 403: "cluster-admin"} {
		answer = code
		if _, err := c.connect(t.Context()); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%d: error %v, want one with %q", code, err, fault)
		}
	}
	server.Close()
	if _, err := c.connect(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot connect to "+c.file) || !strings.Contains(err.Error(), server.URL) {
		t.Errorf("error %v, want one that names the file and the server", err)
	}
}

// adding returns the add command with a physical cluster that answers with that UID.
func adding(uid string) newCommand {
	return func(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
		o := &clusterAdd{IOStreams: streams, connect: func(*credential, context.Context) (identity, error) { return identity{uid, "v1.36.3"}, nil }}
		return o.command(open)
	}
}

func TestClusterCommands(t *testing.T) {
	f := newFakeAtoll(t, "shop")
	file := physicalKubeconfig(t, "https://127.0.0.1:1", nil)
	f.put(t, "root", &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "old"}, Status: workloadv1alpha1.SyncTargetStatus{ClusterUID: "uid-of-old", Mirror: "root:old-mirror"},
	})
	// A mirror holds a copy of its SyncTarget; nobody knows that one.
	f.born("root:old-mirror")
	f.put(t, "root:old-mirror", &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "old"}, Status: workloadv1alpha1.SyncTargetStatus{ClusterUID: "uid-of-old"},
	})
	place := func(*testing.T) {}
	for _, step := range []struct {
		reason  string
		before  func(*testing.T)
		command newCommand
		args    string
		out     string
		fault   string
	}{
		{"add", place, adding("u1"), "east --region eu --labels tier=gold --dns-knows-workspaces --kubeconfig " + file, "Cluster east is ready: Kubernetes v1.36.3, 3 nodes", ""},
		{"a name that is taken", place, adding("u2"), "east --kubeconfig " + file, "", `another cluster "east"`},
		{"a cluster that is there under another name", place, adding("uid-of-old"), "new --kubeconfig " + file, "", `added already: as "old" in workspace root`},
		{"a name that can be none", place, adding("u3"), "East --kubeconfig " + file, "", `cluster name "East"`},
		{"a label that can be none", place, adding("u3"), "west --labels a=b/c --kubeconfig " + file, "", "label a=b/c"},
		{"one that does not get ready", place, adding("u3"), "slow --timeout 100ms --kubeconfig " + file, "", `the server has not begun`},
		{"list", place, newClusterListCommand, "", "east   True      v1.36.3   3       0            -", ""},
		{"list wide", place, newClusterListCommand, "-o wide", "WORKSPACE", ""},
		{"list as names", place, newClusterListCommand, "-o name", "synctarget.workload.kcp.io/east\n", ""},
		{"cordon", place, func(o hubOpener, s genericiooptions.IOStreams) *cobra.Command {
			return newClusterCordonCommand(o, s, true)
		}, "east", "is cordoned", ""},
		{"list shows it", place, newClusterListCommand, "", "Cordoned", ""},
		{"uncordon", place, func(o hubOpener, s genericiooptions.IOStreams) *cobra.Command {
			return newClusterCordonCommand(o, s, false)
		}, "east", "takes new", ""},
		{"nothing to confirm", place, newClusterConfirmCommand, "east deletions", "", "waits for no such confirmation"},
		{"nonsense to confirm", place, newClusterConfirmCommand, "east yes", "", `"yes" cannot be confirmed`},
		{"remove one in use", func(t *testing.T) { f.placeOn(t, "east") }, newClusterRemoveCommand, "east", "", "root:shop namespace default\n"},
		{"status shows what is there", place, newClusterStatusCommand, "east", "root:shop namespace default: Ready, 3 of 3 replicas ready", ""},
		{"status shows what its DNS knows", place, newClusterStatusCommand, "east", "Workspace DNS:    yes\n", ""},
		{"remove", func(t *testing.T) { f.unplace(t) }, newClusterRemoveCommand, "east", "Cluster east is removed", ""},
		{"it is gone", place, newClusterStatusCommand, "east", "", `no cluster "east" in workspace "root" or above`},
	} {
		step.before(t)
		out, _, err := f.call(t, step.command, strings.Fields(step.args)...)
		switch {
		case step.fault == "" && err != nil:
			t.Fatalf("%s: %v", step.reason, err)
		case step.fault != "" && (err == nil || !strings.Contains(err.Error(), step.fault)):
			t.Errorf("%s: error %v, want one with %q", step.reason, err, step.fault)
		case !strings.Contains(out, step.out):
			t.Errorf("%s: printed %q, want %q", step.reason, out, step.out)
		}
		if step.reason != "add" {
			continue
		}
		target, secret := &workloadv1alpha1.SyncTarget{}, &corev1.Secret{}
		ctx := client.In(t.Context(), "root")
		if err := f.objects().Get(ctx, ctrlclient.ObjectKey{Name: "east"}, target); err != nil {
			t.Fatal(err)
		}
		if target.Labels["tier"] != "gold" || target.Labels[corev1.LabelTopologyRegion] != "eu" {
			t.Errorf("labels %v", target.Labels)
		}
		if !target.Spec.DNSKnowsWorkspaces {
			t.Error("that its DNS knows workspaces is not written down")
		}
		ref := target.Spec.KubeconfigSecretRef
		if err := f.objects().Get(ctx, ctrlclient.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(secret.Data[secretKey]), "https://127.0.0.1:1") {
			t.Errorf("Secret holds %q", secret.Data)
		}
	}
	secrets := &corev1.SecretList{}
	if err := f.objects().List(client.In(t.Context(), "root"), secrets); err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets.Items {
		if s.Name == secretName("east") {
			t.Error("the credential of the removed cluster is still there")
		}
	}
}

func TestRefusedRegistrationLeavesNoCredential(t *testing.T) {
	f := newFakeAtoll(t)
	f.refuse = func(_ logicalcluster.Name, obj ctrlclient.Object) error {
		if _, ok := obj.(*workloadv1alpha1.SyncTarget); ok {
			return errors.New("not here")
		}
		return nil
	}
	_, _, err := f.call(t, adding("u1"), "east", "--kubeconfig", physicalKubeconfig(t, "https://127.0.0.1:1", nil))
	if err == nil || !strings.Contains(err.Error(), "not here") {
		t.Fatalf("error %v", err)
	}
	secrets := &corev1.SecretList{}
	if err := f.objects().List(client.In(t.Context(), "root"), secrets); err != nil || len(secrets.Items) > 0 {
		t.Errorf("left %d Secrets, %v", len(secrets.Items), err)
	}
}

// Two add a cluster of one name at the same moment: who comes second leaves the first one's credential as it is.
func TestWhoLosesTheNameLeavesTheCredential(t *testing.T) {
	key := ctrlclient.ObjectKey{Namespace: secretNamespace, Name: secretName("east")}
	others := func() *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: map[string][]byte{secretKey: []byte("the other's")}}
	}
	taken := apierrors.NewAlreadyExists(schema.GroupResource{Group: workloadv1alpha1.GroupVersion.Group, Resource: "synctargets"}, "east")
	for reason, others := range map[string]struct{ before, between func(*fakeAtoll) error }{
		"stored before ours": {before: func(f *fakeAtoll) error { return f.objects().Create(client.In(t.Context(), "root"), others()) }},
		"stored over ours":   {between: func(f *fakeAtoll) error { return f.objects().Update(client.In(t.Context(), "root"), others()) }},
	} {
		f := newFakeAtoll(t)
		if others.before != nil {
			if err := others.before(f); err != nil {
				t.Fatal(err)
			}
		}
		f.refuse = func(_ logicalcluster.Name, obj ctrlclient.Object) error {
			if _, ok := obj.(*workloadv1alpha1.SyncTarget); !ok {
				return nil
			}
			if others.between != nil {
				if err := others.between(f); err != nil {
					t.Fatal(err)
				}
			}
			return taken
		}
		_, _, err := f.call(t, adding("u1"), "east", "--kubeconfig", physicalKubeconfig(t, "https://127.0.0.1:1", nil))
		if err == nil || !strings.Contains(err.Error(), "already exists") {
			t.Errorf("%s: error %v", reason, err)
		}
		secret := &corev1.Secret{}
		if err := f.objects().Get(client.In(t.Context(), "root"), key, secret); err != nil || string(secret.Data[secretKey]) != "the other's" {
			t.Errorf("%s: there is %q, %v", reason, secret.Data, err)
		}
	}
}

// A cluster is added by the name of one that has just been removed, before its credential is.
func TestRemoveLeavesTheCredentialOfTheNext(t *testing.T) {
	f := newFakeAtoll(t)
	add := func() {
		t.Helper()
		if _, _, err := f.call(t, adding("u1"), "east", "--kubeconfig", physicalKubeconfig(t, "https://127.0.0.1:1", nil)); err != nil {
			t.Fatal(err)
		}
	}
	add()
	f.refuse = func(_ logicalcluster.Name, obj ctrlclient.Object) error {
		if _, ok := obj.(*corev1.Secret); ok {
			f.refuse = nil
			add()
		}
		return nil
	}
	_, told, err := f.call(t, newClusterRemoveCommand, "east")
	if err != nil {
		t.Fatal(err)
	}
	if f.refuse != nil {
		t.Fatal("the credential was not removed, so nothing was tested")
	}
	secret := &corev1.Secret{}
	if err := f.objects().Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Namespace: secretNamespace, Name: secretName("east")}, secret); err != nil {
		t.Errorf("the credential of the cluster that was added meanwhile: %v", err)
	}
	if want := "is left there"; !strings.Contains(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// placeOn has the namespace default of root:shop run on a cluster.
func (f *fakeAtoll) placeOn(t *testing.T, name string) {
	t.Helper()
	target := &workloadv1alpha1.SyncTarget{}
	if err := f.objects().Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: name}, target); err != nil {
		t.Fatal(err)
	}
	f.put(t, "root:shop", &placementv1alpha1.Placement{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: placementv1alpha1.PlacementSpec{
			Namespace: "default", Clusters: []placementv1alpha1.PlacedCluster{{Name: name, UID: target.UID}},
		},
		Status: placementv1alpha1.PlacementStatus{Clusters: []placementv1alpha1.PlacedClusterStatus{
			{Name: name, Phase: placementv1alpha1.PhaseReady, Replicas: 3, ReadyReplicas: 3},
		}},
	})
}

func (f *fakeAtoll) unplace(t *testing.T) {
	t.Helper()
	p := &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if err := f.objects().Delete(client.In(t.Context(), "root:shop"), p); err != nil {
		t.Fatal(err)
	}
}

func TestPlacedOn(t *testing.T) {
	east := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "1"}}
	to := func(uid string) placementv1alpha1.PlacementSpec {
		return placementv1alpha1.PlacementSpec{Clusters: []placementv1alpha1.PlacedCluster{{Name: "east", UID: types.UID(uid)}}}
	}
	still := placementv1alpha1.PlacementStatus{Clusters: []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: placementv1alpha1.PhaseDraining}}}
	for _, test := range []struct {
		reason string
		p      placementv1alpha1.Placement
		want   int
	}{
		{"wanted there", placementv1alpha1.Placement{Spec: to("1")}, 1},
		{"wanted at another cluster of that name", placementv1alpha1.Placement{Spec: to("2"), Status: still}, 0},
		{"left, but not gone yet", placementv1alpha1.Placement{Status: still}, 1},
		{"elsewhere", placementv1alpha1.Placement{}, 0},
	} {
		if got := len(placedOn(east, []placementv1alpha1.Placement{test.p})); got != test.want {
			t.Errorf("%s: got %d, want %d", test.reason, got, test.want)
		}
	}
}

func TestNamesKubeconfig(t *testing.T) {
	for args, want := range map[string]bool{
		"get pods":                             false,
		"get pods --kubeconfig x":              true,
		"--kubeconfig=x get pods":              true,
		"exec p -- cmd --kubeconfig x":         false,
		"get pods -l kubeconfig=--kubeconfig=": false,
	} {
		if got := namesKubeconfig(strings.Fields(args)); got != want {
			t.Errorf("%q: got %v", args, got)
		}
	}
}

// TestKubectlAsksNobody: without a kubeconfig kubectl asks localhost:8080, where nothing of ours ever is.
func TestKubectlAsksNobody(t *testing.T) {
	t.Chdir(t.TempDir())
	home := clientcmd.RecommendedHomeFile
	clientcmd.RecommendedHomeFile = filepath.Join(t.TempDir(), "config")
	t.Cleanup(func() { clientcmd.RecommendedHomeFile = home })
	t.Setenv("KUBERNETES_MASTER", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	there := physicalKubeconfig(t, "http://localhost:8080", nil)
	for name, tc := range map[string]struct {
		environment, file, server string
		want                      bool
	}{
		"nothing":          {want: true},
		"a file not there": {environment: "gone", want: true},
		"a kubeconfig":     {environment: there},
		"one of the flag":  {environment: "gone", file: there},
		"a server":         {server: "http://localhost:8080"},
	} {
		t.Setenv(clientcmd.RecommendedConfigPathEnvVar, tc.environment)
		flags := genericclioptions.NewConfigFlags(false)
		*flags.KubeConfig, *flags.APIServer = tc.file, tc.server
		if got := asksNobody(flags); got != tc.want {
			t.Errorf("%s: asks nobody: %v, want %v", name, got, tc.want)
		}
	}
	if hint := hintFor("The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?"); !strings.Contains(hint, self+" start") {
		t.Errorf("of a server that does not run the hint is %q", hint)
	}
	if hint := hintFor("error: the server doesn't have a resource type"); hint != "" {
		t.Errorf("of one that runs the hint is %q", hint)
	}
}

// TestClustersOfTheWorkspacesAbove: what the list shows can be worked with, the nearest of two, and it is said where that is.
func TestClustersOfTheWorkspacesAbove(t *testing.T) {
	cordon := func(o hubOpener, s genericiooptions.IOStreams) *cobra.Command {
		return newClusterCordonCommand(o, s, true)
	}
	f := newFakeAtoll(t, "shop")
	file := physicalKubeconfig(t, "https://127.0.0.1:1", nil)
	for cluster, names := range map[logicalcluster.Name][]string{"root": {"east", "west"}, "root:shop": {"west"}} {
		for _, name := range names {
			f.put(t, cluster, &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: workloadv1alpha1.SyncTargetStatus{ClusterUID: "uid-of-" + name}})
		}
	}
	f.put(t, "root", &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "north"}, Spec: workloadv1alpha1.SyncTargetSpec{DedicatedTo: "root:bank"}})
	if _, _, err := f.call(t, newWorkspaceUseCommand, "shop"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		reason     string
		before     func()
		command    newCommand
		args       string
		out, fault string
	}{
		{"it is here already", nil, adding("u1"), "east --kubeconfig " + file, "", `cluster "east" of workspace root can be used in root:shop already: nothing is to be added`},
		{"and so is the cluster by another name", nil, adding("uid-of-east"), "new --kubeconfig " + file, "", `as "east" in workspace root, and root:shop can use it: nothing is to be added`},
		{"one of somebody else is not", nil, adding("u2"), "north --kubeconfig " + file, "", `dedicated to workspace root:bank: choose another name`},
		{"nothing says how", nil, newClusterAddCommand, "new", "", "--kubeconfig FILE if the server is to sync it, or --manifest"},
		{"both say how", nil, newClusterAddCommand, "new --manifest --kubeconfig " + file, "", "give --kubeconfig or --manifest, not both"},
		{"no name", nil, newClusterAddCommand, "", "", "an argument is missing. Usage: add NAME"},
		{"two names", nil, newClusterAddCommand, "new other", "", `unexpected argument "other". Usage: add NAME`},
		{"status finds it above", nil, newClusterStatusCommand, "east", "Workspace:        root\n", ""},
		{"the nearest wins", nil, newClusterStatusCommand, "west", "Workspace:        root:shop\n", ""},
		{"cordon", nil, cordon, "east", "Cluster east of root is cordoned", ""},
		{"no more rights than to look", func() {
			f.refuse = func(cluster logicalcluster.Name, _ ctrlclient.Object) error {
				if cluster == "root" {
					return forbidden
				}
				return nil
			}
		}, cordon, "east", "", `registered in workspace "root", where you have not the right to; who may, does this after "` + self + ` workspace use root"`},
		{"remove", nil, newClusterRemoveCommand, "east", "", self + ` workspace use root"`},
		{"remove the nearest", nil, newClusterRemoveCommand, "west", "west is removed from root:shop", ""},
		{"then the next one", nil, newClusterStatusCommand, "west", "Workspace:        root\n", ""},
		{"not even that right", func() { f.hidden = map[logicalcluster.Name]bool{"root": true} }, newClusterStatusCommand, "east", "",
			`registered in "root"; who may, does this after "` + self + ` workspace use root"`},
	} {
		if step.before != nil {
			step.before()
		}
		out, _, err := f.call(t, step.command, strings.Fields(step.args)...)
		switch {
		case step.fault == "" && err != nil:
			t.Errorf("%s: %v", step.reason, err)
		case step.fault != "" && (err == nil || !strings.Contains(err.Error(), step.fault)):
			t.Errorf("%s: error %v, want one with %q", step.reason, err, step.fault)
		case !strings.Contains(out, step.out):
			t.Errorf("%s: printed %q, want %q", step.reason, out, step.out)
		}
	}
}

func TestReadinessLooksAtTheHeartbeat(t *testing.T) {
	now := time.Now()
	target := &workloadv1alpha1.SyncTarget{Status: workloadv1alpha1.SyncTargetStatus{
		Conditions: []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: "Connected"}},
	}}
	for _, test := range []struct{ reason, counter, written, ready, because, shown string }{
		{"answered", "8", "7", "True", "", "5s"},
		{"the last one was not", "9", "7", "Unknown", "HeartbeatUnanswered", "unanswered"},
		{"the first one", "1", "", "True", "", "5s"},
		{"after a confirmed restore", "90", "0", "True", "", "5s"},
	} {
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{workloadv1alpha1.HeartbeatCounterAnnotation: test.counter, workloadv1alpha1.HeartbeatWrittenAnnotation: test.written}},
			Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now.Add(-5 * time.Second)}},
		}
		beat := heartbeatOf(lease)
		ready, reason := readiness(target, beat)
		if ready != test.ready || reason != test.because || beat.String() != test.shown {
			t.Errorf("%s: %s %s %s, want %s %s %s", test.reason, ready, reason, beat, test.ready, test.because, test.shown)
		}
	}
}

// TestListShowsWhatIsRefused: a cluster that is registered anew refuses what it still has of its registration before.
func TestListShowsWhatIsRefused(t *testing.T) {
	target := workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "u"}, Status: workloadv1alpha1.SyncTargetStatus{
		Conditions: []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: "Connected"}},
	}}
	for phase, want := range map[placementv1alpha1.PlacedClusterPhase]string{placementv1alpha1.PhaseRefused: "Refuses", placementv1alpha1.PhaseReady: ""} {
		all := []placementv1alpha1.Placement{{
			Spec:   placementv1alpha1.PlacementSpec{Clusters: []placementv1alpha1.PlacedCluster{{Name: "east", UID: "u"}}},
			Status: placementv1alpha1.PlacementStatus{Clusters: []placementv1alpha1.PlacedClusterStatus{{Name: "west", Phase: "Refused"}, {Name: "east", Phase: phase}}},
		}}
		header, rows := clusterTable([]listedCluster{{SyncTarget: target}}, nil, all, true, false)
		if got := rows[0][slices.Index(header, "REASON")]; got != want {
			t.Errorf("%s: REASON %q, want %q", phase, got, want)
		}
	}
}

// TestRemoveNamesAWayOut: what has been moved already is not told to be moved, and a cluster that is away can be given up.
func TestRemoveNamesAWayOut(t *testing.T) {
	placement := &placementv1alpha1.Placement{Spec: placementv1alpha1.PlacementSpec{Namespace: "default", Clusters: []placementv1alpha1.PlacedCluster{{Name: "east", UID: "u"}}}}
	moved := placement.DeepCopy()
	moved.Spec.Clusters[0] = placementv1alpha1.PlacedCluster{Name: "west", UID: "w"}
	for reason, tc := range map[string]struct {
		ready       metav1.ConditionStatus
		placements  []*placementv1alpha1.Placement
		move, yield bool
	}{
		"there":                  {metav1.ConditionTrue, []*placementv1alpha1.Placement{placement}, true, false},
		"there, all moved":       {metav1.ConditionTrue, []*placementv1alpha1.Placement{moved}, false, false},
		"away":                   {metav1.ConditionUnknown, []*placementv1alpha1.Placement{moved, placement}, true, true},
		"away, all moved":        {metav1.ConditionUnknown, []*placementv1alpha1.Placement{moved}, false, true},
		"of the same name, away": {metav1.ConditionFalse, []*placementv1alpha1.Placement{moved}, false, true},
	} {
		target := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "u"}}
		target.Status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: tc.ready}}
		var uses []use
		for _, p := range tc.placements {
			uses = append(uses, use{workspace: "root:shop", placement: p})
		}
		said := inUseError(target, uses).Error()
		if strings.Contains(said, "Move it first") != tc.move || strings.Contains(said, "confirm=abandon") != tc.yield {
			t.Errorf("%s: %s", reason, said)
		}
	}
}

// TestRemoveNamesSome: of a cluster that is used a lot, not everything is told.
func TestRemoveNamesSome(t *testing.T) {
	target := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "u"}}
	var uses []use
	for i := range usesShown + 5 {
		uses = append(uses, use{workspace: "root:shop", placement: &placementv1alpha1.Placement{Spec: placementv1alpha1.PlacementSpec{Namespace: fmt.Sprintf("n%d", i)}}})
	}
	if said := inUseError(target, uses).Error(); strings.Count(said, "root:shop") != usesShown || !strings.Contains(said, "\n  and 5 more\n") {
		t.Errorf("it says\n%s", said)
	}
	if said := inUseError(target, uses[:usesShown]).Error(); strings.Count(said, "root:shop") != usesShown || strings.Contains(said, "more\n") {
		t.Errorf("it says\n%s", said)
	}
}

// duplicate is a SyncTarget of that cluster that the server found to be a duplicate, with the words of a restore before.
func duplicate(name, uid string, ref *corev1.SecretReference) *workloadv1alpha1.SyncTarget {
	return &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       workloadv1alpha1.SyncTargetSpec{KubeconfigSecretRef: ref},
		Status: workloadv1alpha1.SyncTargetStatus{ClusterUID: uid, Conditions: []metav1.Condition{
			{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionFalse, Reason: syncer.ReasonDuplicate, Message: "SyncTarget \"east\" is the same physical cluster."},
			{Type: workloadv1alpha1.SyncTargetObserveOnly, Status: metav1.ConditionTrue, Reason: "PhysicalRestored"},
		}},
	}
}

// TestRemoveDuplicate: a duplicate that never was anything else runs nothing, whatever names it; one that was synced before may.
func TestRemoveDuplicate(t *testing.T) {
	for reason, synced := range map[string]bool{"runs nothing": false, "was synced before": true} {
		f := newFakeAtoll(t, "shop")
		target := duplicate("north", "u1", nil)
		target.UID = "north-uid"
		if !synced {
			target.Status.Conditions = target.Status.Conditions[:1]
		}
		f.put(t, "root", target)
		f.placeOn(t, "north")
		out, _, err := f.call(t, newClusterRemoveCommand, "north")
		if (err != nil) != synced || strings.Contains(out, "is removed") == synced {
			t.Errorf("%s: removed: %v %s", reason, err, out)
		}
	}
}

// TestRemoveSaysWhatItLeaves: what nobody deletes in a cluster is named to who removes it.
func TestRemoveSaysWhatItLeaves(t *testing.T) {
	f := newFakeAtoll(t, "shop")
	target := duplicate("north", "u1", nil)
	target.UID = "north-uid"
	target.Status.Conditions = []metav1.Condition{{Type: syncer.ConditionOrphans, Status: metav1.ConditionTrue, Reason: "Found", Message: "namespaces shop-1a (kept for persistentvolumeclaims data-db-0)"}}
	f.put(t, "root", target)
	out, _, err := f.call(t, newClusterRemoveCommand, "north")
	if err != nil || !strings.Contains(out, "kept for persistentvolumeclaims data-db-0") {
		t.Errorf("%v, %q, want what is left", err, out)
	}
}

// TestDuplicateWaitsForNoConfirmation: what is not synced at all does not ask for one.
func TestDuplicateWaitsForNoConfirmation(t *testing.T) {
	f := newFakeAtoll(t)
	f.put(t, "root", duplicate("pushed", "u1", &corev1.SecretReference{Name: "pushed"}))
	if _, _, err := f.call(t, newClusterConfirmCommand, "pushed", "restored"); err == nil || !strings.Contains(err.Error(), "Give it the kubeconfig of its own") {
		t.Errorf("confirm: error %v, want one with what to do", err)
	}
	f.put(t, "root", duplicate("west2", "u1", nil))
	_, _, err := f.call(t, newClusterConfirmCommand, "west2", "restored")
	for _, words := range []string{"Duplicate", `SyncTarget "east" is the same physical cluster`, "Run its syncer in its own physical cluster"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("confirm: error %v, want one with %q", err, words)
		}
	}
	target := &workloadv1alpha1.SyncTarget{}
	if err := f.objects().Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: "west2"}, target); err != nil {
		t.Fatal(err)
	}
	if word, ok := target.Annotations[workloadv1alpha1.ConfirmAnnotation]; ok {
		t.Errorf("confirmed: %q", word)
	}
	if ready, reason := readiness(target, heartbeat{}); ready != "False" || reason != "Duplicate" {
		t.Errorf("listed as %s %s, want False Duplicate", ready, reason)
	}
	out, _, err := f.call(t, newClusterStatusCommand, "west2")
	if err != nil || strings.Contains(out, "cluster confirm") || strings.Contains(out, "A confirmation") || strings.Contains(out, "a confirmation") {
		t.Errorf("status asks for a confirmation: %v\n%s", err, out)
	}
}

// TestConfirmSaysWhatComesOfIt: a confirmation that a cluster was restored is reported when it was accepted; the server takes away
// one that answers nothing.
func TestConfirmSaysWhatComesOfIt(t *testing.T) {
	for reason, test := range map[string]struct {
		comes func(*workloadv1alpha1.SyncTarget) // nil for nothing
		fault string
	}{
		"accepted": {func(t *workloadv1alpha1.SyncTarget) {
			t.Status.Conditions[1].Status = metav1.ConditionFalse
		}, ""},
		"accepted and used up": {func(t *workloadv1alpha1.SyncTarget) {
			t.Status.Conditions[1].Status = metav1.ConditionFalse
			delete(t.Annotations, workloadv1alpha1.ConfirmAnnotation)
		}, ""},
		"taken away": {func(t *workloadv1alpha1.SyncTarget) {
			delete(t.Annotations, workloadv1alpha1.ConfirmAnnotation)
		}, "look again in some seconds, and confirm then"},
		"nobody looks": {nil, "its syncer has not acted upon it"},
	} {
		t.Run(reason, func(t *testing.T) {
			f := newFakeAtoll(t)
			target := duplicate("east", "u1", nil)
			target.Status.Conditions[0].Reason = "Connected"
			f.put(t, "root", target)
			ctx, stop := context.WithCancel(client.In(t.Context(), "root"))
			timeout := "200ms"
			var server sync.WaitGroup
			if test.comes != nil {
				timeout = "1m"
				server.Go(func() {
					for ctx.Err() == nil && target.Annotations[workloadv1alpha1.ConfirmAnnotation] == "" {
						if err := f.objects().Get(ctx, ctrlclient.ObjectKeyFromObject(target), target); err != nil {
							t.Error(err)
							return
						}
					}
					test.comes(target)
					if err := f.objects().Update(ctx, target); err != nil {
						t.Error(err)
					}
				})
			}
			out, _, err := f.call(t, newClusterConfirmCommand, "east", "restored", "--timeout", timeout)
			stop()
			server.Wait()
			if (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) || strings.Contains(out, "Confirmed") != (test.fault == "") {
				t.Errorf("printed %q, error %v, want one with %q", out, err, test.fault)
			}
		})
	}
}

// TestStatusSaysTheSameEachTime: of a cluster that waits for more than one confirmation, too.
func TestStatusSaysTheSameEachTime(t *testing.T) {
	f := newFakeAtoll(t)
	target := duplicate("east", "u1", nil)
	target.Status.Conditions = []metav1.Condition{
		{Type: workloadv1alpha1.SyncTargetObserveOnly, Status: metav1.ConditionTrue, Reason: "HubRestored"},
		{Type: workloadv1alpha1.SyncTargetFrozen, Status: metav1.ConditionTrue, Reason: "RootsMissing"},
	}
	f.put(t, "root", target)
	first, _, err := f.call(t, newClusterStatusCommand, "east")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if again, _, err := f.call(t, newClusterStatusCommand, "east"); again != first || err != nil {
			t.Fatalf("first:\n%s\nthen (%v):\n%s", first, err, again)
		}
	}
}

// TestAddNamesTheRegistrationThatWorks: of several of one physical cluster.
func TestAddNamesTheRegistrationThatWorks(t *testing.T) {
	file := physicalKubeconfig(t, "https://127.0.0.1:1", nil)
	ready := func(name, secret string, status metav1.ConditionStatus, reason string) *workloadv1alpha1.SyncTarget {
		target := duplicate(name, "u1", nil)
		if secret != "" {
			target.Spec.KubeconfigSecretRef = &corev1.SecretReference{Namespace: secretNamespace, Name: secret}
		}
		target.Status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: status, Reason: reason}}
		return target
	}
	going, named := ready("east", "east-kubeconfig", "True", syncer.ReasonTerminating), ready("new", "new-kubeconfig", "True", syncer.ReasonTerminating)
	named.Status.ClusterUID = "u2"
	for _, t := range []*workloadv1alpha1.SyncTarget{going, named} {
		t.DeletionTimestamp, t.Finalizers = &metav1.Time{}, []string{syncer.ManagerFinalizer}
	}
	for _, test := range []struct {
		reason  string
		targets []*workloadv1alpha1.SyncTarget
		want    string
	}{
		{"a duplicate comes first by name", []*workloadv1alpha1.SyncTarget{duplicate("dup", "u1", nil), ready("east", "east-kubeconfig", "True", "Connected")},
			`as "east" in workspace root. Its credential can be replaced in Secret atoll-system/east-kubeconfig there`},
		{"the one that holds the cluster is away", []*workloadv1alpha1.SyncTarget{duplicate("dup", "u1", nil), ready("east", "east-kubeconfig", "Unknown", "HeartbeatLost")},
			`as "east" in workspace root`},
		{"one of two works", []*workloadv1alpha1.SyncTarget{ready("east", "a", "Unknown", "HeartbeatLost"), ready("west", "b", "True", "Connected")},
			`as "west" in workspace root`},
		{"one with a syncer of its own", []*workloadv1alpha1.SyncTarget{ready("east", "", "True", "Connected")},
			`as "east" in workspace root. A syncer in the cluster connects it`},
		{"the one that holds the cluster is being removed", []*workloadv1alpha1.SyncTarget{duplicate("dup", "u1", nil), going},
			`still registered, as "east" in workspace root, and is being removed: add it when that is gone`},
		{"one of that name is being removed", []*workloadv1alpha1.SyncTarget{named},
			`another cluster "new" in workspace root, which is being removed`},
	} {
		f := newFakeAtoll(t)
		for _, target := range test.targets {
			deleted := target.DeletionTimestamp != nil
			f.put(t, "root", target)
			if deleted {
				if err := f.objects().Delete(client.In(t.Context(), "root"), target); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, _, err := f.call(t, adding("u1"), "new", "--kubeconfig", file)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "<none>") {
			t.Errorf("%s: error %v, want one with %q", test.reason, err, test.want)
		}
	}
}
