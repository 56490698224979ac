package conformance

import (
	_ "embed"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/conformance/exceptions"
	"atoll.dev/atoll/test/framework"
	"atoll.dev/atoll/test/host"
)

var (
	reportFile = flag.String("report", "", "write the report to this `file` when nothing fails")
	seedFlag   = flag.Int64("seed", 0, "the order of specs; 0 is another one each time")
)

//go:embed specs.txt
var specsText string

// runTime bounds a whole run of specs on one side. It takes 2 to 3 minutes on a machine that does nothing else.
const runTime = 30 * time.Minute

// processesOfSide is how many processes of the suite run on one side at a time. Two on each of three sides keep two cores busy.
const processesOfSide = 2

// exceptionsAtOnce is how many exceptions are tried at a time. Most of them wait.
const exceptionsAtOnce = 6

func lists(t *testing.T) ([]string, []exceptions.Exception) {
	t.Helper()
	specs, err := parseSpecs(specsText)
	if err != nil {
		t.Fatalf("specs.txt: %v", err)
	}
	allowed, err := exceptions.All()
	if err != nil {
		t.Fatal(err)
	}
	return specs, allowed
}

// TestConformance: two workspaces at a time pass what a plain Kubernetes passes, and a third one does not notice.
func TestConformance(t *testing.T) {
	specs, allowed := lists(t)
	suite := newSuite(t)
	var this host.Run
	if *reportFile != "" {
		var err error
		if this, err = host.ThisRun(".", "make conformance"); err != nil {
			t.Fatal(err)
		}
	}

	tenants := []string{"a", "b", "exceptions"}
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	var rows string
	for i, name := range tenants {
		rows += fmt.Sprintf("%s,%s,%d\n", token(name), user(name), i)
	}
	if err := os.WriteFile(tokens, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	atoll := framework.StartAtoll(t, "--token-auth-file="+tokens)
	plain := framework.StartPhysical(t, "peer", framework.PhysicalNodes(0))
	clients := atoll.Clients()
	third := framework.MakeWorkspace(t, clients, "root", "quiet")
	fill(t, clients, third)
	kubeconfigs := map[string]string{}
	for _, name := range tenants {
		cluster := framework.MakeWorkspace(t, clients, "root", name)
		makeAdmin(t, clients, cluster, user(name))
		makeKubernetesService(t, clients, cluster)
		kubeconfigs[name] = tenantKubeconfig(t, atoll, name)
	}
	before := settled(t, clients, third)

	began := time.Now()
	wanted, excepted := split(specs, allowed)
	peer, apart := side{name: "peer"}, side{name: "exceptions"}
	workspaces := []side{{name: "a"}, {name: "b"}}
	var wg sync.WaitGroup
	start := func(s *side, kubeconfig string) {
		dir := t.TempDir()
		wg.Go(func() {
			var err error
			if s.results, err = suite.share(t.Context(), kubeconfig, dir, wanted, processesOfSide); err != nil {
				t.Errorf("run the suite on %s: %v", s.name, err)
			}
		})
	}
	start(&peer, plain.Kubeconfig)
	for i := range workspaces {
		start(&workspaces[i], kubeconfigs[workspaces[i].name])
	}
	apart.results = suite.each(t, apart.name, kubeconfigs[apart.name], excepted, exceptionsAtOnce)
	beside := suite.each(t, peer.name, plain.Kubeconfig, excepted, exceptionsAtOnce)
	wg.Wait()
	if peer.results != nil {
		maps.Copy(peer.results, beside)
	}
	took := time.Since(began)
	t.Logf("%d specs took %s, seed %d", len(specs), took.Round(time.Second), suite.seed)
	for _, s := range append([]side{peer}, workspaces...) {
		t.Logf("%s passed %d", s.name, s.passes(specs))
	}

	for _, p := range compare(before, dump(t, clients, third)) {
		t.Errorf("the third workspace is another than before: %s", p)
	}
	for _, p := range judge(specs, allowed, peer, workspaces, apart) {
		t.Error(p)
	}
	for _, spec := range specs {
		if r := peer.of(spec); r.state != passed {
			t.Logf("not judged, since %s %s it: %s: %s", peer.name, r.state, spec, r.message)
		}
	}
	if *reportFile != "" && !t.Failed() {
		text := report(this, kubernetesVersion(t, clients), suite.seed, took, specs, allowed, peer, workspaces)
		if err := os.WriteFile(*reportFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// newSuite is the built suite, with the kubectl that is built into atoll.
func newSuite(t *testing.T) suite {
	t.Helper()
	atoll := framework.Binary(t)
	binary := filepath.Join(filepath.Dir(atoll), "e2e.test")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("find Kubernetes' end-to-end suite: %v; run `make bin/e2e.test` first", err)
	}
	// Specs start "kubectl proxy", which has to go when the suite is killed.
	kubectl := filepath.Join(t.TempDir(), "kubectl")
	script := "#!/bin/sh\nexec setpriv --pdeathsig KILL '" + atoll + "' kubectl \"$@\"\n"
	if err := os.WriteFile(kubectl, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Int64N(1 << 31)
	}
	return suite{binary: binary, kubectl: kubectl, seed: seed, timeout: runTime}
}

func user(workspace string) string  { return "user-of-" + workspace }
func token(workspace string) string { return "token-of-" + workspace }

// makeAdmin makes a user cluster-admin of a logical cluster.
func makeAdmin(t *testing.T, clients *client.Clients, cluster logicalcluster.Name, user string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if err := clients.Objects.Create(client.In(t.Context(), cluster), binding); err != nil {
		t.Fatalf("make %s admin of %s: %v", user, cluster, err)
	}
}

// makeKubernetesService makes the Service that the suite, before any spec, asks for the family of cluster IPs. Workspaces have
// none, since their API is not behind a cluster IP.
func makeKubernetesService(t *testing.T, clients *client.Clients, cluster logicalcluster.Name) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}
	if err := clients.Objects.Create(client.In(t.Context(), cluster), service); err != nil {
		t.Fatalf("create Service kubernetes in %s: %v", cluster, err)
	}
}

// tenantKubeconfig writes the kubeconfig of the admin of a workspace, by its path, and returns the file.
func tenantKubeconfig(t *testing.T, atoll *framework.Atoll, workspace string) string {
	t.Helper()
	const name = "workspace"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server: atoll.URL + "/clusters/root:" + workspace, CertificateAuthorityData: atoll.Config().CAData,
	}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token(workspace)}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func kubernetesVersion(t *testing.T, clients *client.Clients) string {
	t.Helper()
	var version struct{ GitVersion string }
	data, err := clients.Kube.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(client.In(t.Context(), "root"))
	if err == nil {
		err = decode(data, &version)
	}
	if err != nil {
		t.Fatalf("ask for the version: %v", err)
	}
	return version.GitVersion
}
