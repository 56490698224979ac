package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
)

func TestParseAddress(t *testing.T) {
	for server, want := range map[string]struct{ base, path, fault string }{
		"https://h:6443":                       {base: "https://h:6443"},
		"https://h:6443/":                      {base: "https://h:6443"},
		"https://h:6443/clusters/root":         {base: "https://h:6443", path: "root"},
		"https://h:6443/clusters/root:a:b/":    {base: "https://h:6443", path: "root:a:b"},
		"https://h/atoll/clusters/root":        {base: "https://h/atoll", path: "root"},
		"https://h/clusters/system:admin":      {base: "https://h", path: "system:admin"},
		"https://h/clusters/1a2b3c4d5e6f7g8h":  {base: "https://h", path: "1a2b3c4d5e6f7g8h"},
		"https://h/clusters/*":                 {fault: `"*" must be lower-case`},
		"https://h/clusters/root/services/any": {fault: "lower-case"},
		"https://h:port":                       {fault: "invalid port"},
	} {
		got, err := ParseAddress(server)
		if want.fault != "" {
			if err == nil || !strings.Contains(err.Error(), want.fault) {
				t.Errorf("%s: error %v, want one with %q", server, err, want.fault)
			}
			continue
		}
		if err != nil || got.Base != want.base || got.Path.String() != want.path {
			t.Errorf("%s: got %+v, %v", server, got, err)
		}
	}
}

func TestResolvePath(t *testing.T) {
	for _, test := range []struct{ from, arg, want, fault, reason string }{
		{from: "root", arg: "shop", want: "root:shop", reason: "a name is a child"},
		{from: "root:org", arg: "team:dev", want: "root:org:team:dev", reason: "a relative path goes down"},
		{from: "root:org", arg: "root:shop", want: "root:shop", reason: "a path from root is absolute"},
		{from: "root:org", arg: "root", want: "root"},
		{from: "root:org", arg: "rooted", want: "root:org:rooted", reason: "root is a whole segment"},
		{from: "root:org:team", arg: "..", want: "root:org"},
		{from: "root:org", arg: ".", want: "root:org"},
		{from: "root", arg: "..", fault: `above "root"`},
		{from: "system:admin", arg: "..", fault: `above "system:admin"`, reason: "its colon is part of the name"},
		{from: "root", arg: "system:admin", want: "system:admin"},
		{from: "root", arg: ":1a2b3c", want: "1a2b3c", reason: "a logical cluster by name"},
		{arg: "shop", fault: `"root:shop"`, reason: "nothing to be relative to"},
		{arg: "root:shop", want: "root:shop"},
		{from: "root", arg: "", fault: "empty"},
		{from: "root", arg: "Shop", fault: `"Shop" must be lower-case`},
		{from: "root", arg: "a::b", fault: `"a::b": a name is missing`},
		{from: "root", arg: "a/b", fault: `"a/b": its names are separated by colons: "a:b"`, reason: "a slash would leave the URL's segment"},
		{from: "root", arg: "root/shop", fault: `"root:shop"`},
		{from: "root", arg: "root:", fault: `"root:": a name is missing`},
		{from: "root", arg: ":", fault: `":": a name is missing`},
		{from: "root", arg: strings.Repeat("a", 64), fault: "63"},
	} {
		got, err := ResolvePath(logicalcluster.NewPath(test.from), test.arg)
		if test.fault != "" {
			if err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("%s from %q: error %v, want one with %q (%s)", test.arg, test.from, err, test.fault, test.reason)
			}
			continue
		}
		if err != nil || got.String() != test.want {
			t.Errorf("%s from %q: got %q, %v, want %q (%s)", test.arg, test.from, got, err, test.want, test.reason)
		}
	}
}

func TestAncestors(t *testing.T) {
	for path, want := range map[string]string{
		"root": "root", "root:a:b": "root:a:b root:a root", "system:admin": "system:admin",
	} {
		var got []string
		for _, p := range Ancestors(logicalcluster.NewPath(path)) {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", path, got, want)
		}
	}
}

func kubeconfig() *clientcmdapi.Config {
	c := clientcmdapi.NewConfig()
	c.Clusters["root"] = &clientcmdapi.Cluster{Server: "https://h/clusters/root", CertificateAuthorityData: []byte("ca")}
	c.Contexts["root"] = &clientcmdapi.Context{Cluster: "root", AuthInfo: "admin", Namespace: "mine"}
	c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "t"}
	c.CurrentContext = "root"
	return c
}

func TestEnterAndBack(t *testing.T) {
	c := kubeconfig()
	at := func(step, current, previous string) {
		t.Helper()
		if c.CurrentContext != CurrentContext {
			t.Fatalf("%s: current context %q", step, c.CurrentContext)
		}
		got := []string{c.Clusters[CurrentContext].Server, c.Clusters[PreviousContext].Server}
		if diff := cmp.Diff([]string{"https://h/clusters/" + current, "https://h/clusters/" + previous}, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", step, diff)
		}
	}
	if err := Back(c); err == nil {
		t.Error("back worked before anything was entered")
	}
	for _, step := range []struct {
		name, current, previous string
		do                      func() error
	}{
		{"enter a", "root:a", "root", func() error { return Enter(c, logicalcluster.NewPath("root:a")) }},
		{"enter b", "root:b", "root:a", func() error { return Enter(c, logicalcluster.NewPath("root:b")) }},
		{"enter b again", "root:b", "root:a", func() error { return Enter(c, logicalcluster.NewPath("root:b")) }},
		{"back", "root:a", "root:b", func() error { return Back(c) }},
		{"back again", "root:b", "root:a", func() error { return Back(c) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		at(step.name, step.current, step.previous)
	}
	context := c.Contexts[CurrentContext]
	if context.AuthInfo != "admin" || context.Namespace != "" || string(c.Clusters[CurrentContext].CertificateAuthorityData) != "ca" {
		t.Errorf("context %+v: want the credentials and the CA of before, and no namespace", context)
	}
	if c.Clusters["root"].Server != "https://h/clusters/root" || c.Contexts["root"].Namespace != "mine" {
		t.Error("the context that was left has changed")
	}
}

func TestLocate(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(clientcmd.RecommendedConfigPathEnvVar, "")
	if got := Locate(""); got != "" {
		t.Errorf("in an empty directory: %q", got)
	}
	if err := os.Mkdir(".atoll", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(adminKubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Locate(""); got != filepath.Join(".atoll", "admin.kubeconfig") {
		t.Errorf("beside a server: %q", got)
	}
	if got := Locate("other"); got != "other" {
		t.Errorf("with a flag: %q", got)
	}
	t.Setenv(clientcmd.RecommendedConfigPathEnvVar, "mine")
	if got := Locate(""); got != "" {
		t.Errorf("with KUBECONFIG: %q", got)
	}
}

func TestOpenAndSwitchAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig(), file); err != nil {
		t.Fatal(err)
	}
	h, err := Open(file)
	if err == nil {
		t.Fatalf("a kubeconfig with a CA that is none gave %+v", h)
	}
	c := kubeconfig()
	c.Clusters["root"].CertificateAuthorityData = nil
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	if h, err = Open(file); err != nil {
		t.Fatal(err)
	}
	if h.Base != "https://h" || h.Path.String() != "root" {
		t.Errorf("address %v", h.Address)
	}
	if err := h.modify(func(c *clientcmdapi.Config) error { return Enter(c, logicalcluster.NewPath("root:shop")) }); err != nil {
		t.Fatal(err)
	}
	if h, err = Open(file); err != nil || h.Path.String() != "root:shop" {
		t.Fatalf("after entering root:shop: %v, %v", h, err)
	}
	there := fake.NewClientBuilder().WithScheme(client.Scheme).Build()
	h.Objects = there
	if err := h.Gone(t.Context()); err == nil || !strings.Contains(err.Error(), `"root:shop", which is gone`) {
		t.Errorf("of a workspace that is gone it is said: %v", err)
	}
	if _, err := h.Back(t.Context()); err == nil || !strings.Contains(err.Error(), `"root:shop" stays`) || !strings.Contains(err.Error(), `no workspace "root"`) {
		t.Errorf("back to a workspace that is gone: error %v, want one that names both", err)
	}
	if h, err = Open(file); err != nil || h.Path.String() != "root:shop" {
		t.Fatalf("after the way back was refused: %v, %v", h, err)
	}
	if err := there.Create(t.Context(), &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName}}); err != nil {
		t.Fatal(err)
	}
	h.Objects = there
	if err := h.Gone(t.Context()); err != nil {
		t.Errorf("of a workspace that is there it is said: %v", err)
	}
	if back, err := h.Back(t.Context()); err != nil || back.String() != "root" {
		t.Errorf("back: %q, %v", back, err)
	}
}

func TestCalledAs(t *testing.T) {
	dir := t.TempDir()
	binary, other := filepath.Join(dir, "bin", "atoll"), filepath.Join(dir, "other", "atoll")
	for _, file := range []string{binary, other} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ typed, path, want, reason string }{
		{"bin/atoll", "", "bin/atoll", "as README says"},
		{"./atoll", "", "./atoll", ""},
		{"atoll", "", "atoll", "found in PATH by the shell"},
		{binary, filepath.Dir(binary), "atoll", "the bare name does the same"},
		{binary, filepath.Dir(other), binary, "the bare name is another one"},
		{binary, "", binary, "the bare name is nothing"},
	} {
		t.Setenv("PATH", test.path)
		if got := calledAs(test.typed, exec.LookPath); got != test.want {
			t.Errorf("%s with PATH=%s: %s, want %s (%s)", test.typed, test.path, got, test.want, test.reason)
		}
	}
}

func TestOpenWithoutKubeconfigSaysWhatToDo(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv(clientcmd.RecommendedConfigPathEnvVar, filepath.Join(t.TempDir(), "none"))
	if _, err := Open(""); err == nil || !strings.Contains(err.Error(), Self+" start") {
		t.Errorf("error %v, want one that names the command that starts one", err)
	}
	if _, err := Open("nowhere.kubeconfig"); err == nil || !strings.Contains(err.Error(), "nowhere.kubeconfig") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// TestOpenNamesWhatIsWrong: .atoll was said not to be here, where KUBECONFIG was what ruled.
func TestOpenNamesWhatIsWrong(t *testing.T) {
	t.Chdir(t.TempDir())
	home := clientcmd.RecommendedHomeFile
	clientcmd.RecommendedHomeFile = filepath.Join(t.TempDir(), "config")
	t.Cleanup(func() { clientcmd.RecommendedHomeFile = home })
	if err := os.WriteFile("empty", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ environment, flag, want string }{
		{"gone", "", "KUBECONFIG=gone: there is no such file; name the file"},
		{"empty", "", "KUBECONFIG=empty: it has no cluster; name the file"},
		{"", "empty", "kubeconfig empty: it has no cluster; name the file"},
		{"gone", "other", "kubeconfig other: there is no such file; name the file"},
		{"", "", "neither .atoll/admin.kubeconfig here nor anything in"},
	} {
		t.Setenv(clientcmd.RecommendedConfigPathEnvVar, tc.environment)
		if _, err := Open(tc.flag); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("KUBECONFIG %q, --kubeconfig %q: error %v, want one with %q", tc.environment, tc.flag, err, tc.want)
		}
	}
}
