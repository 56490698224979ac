package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

var admin = keyPair{certPEM: []byte("cert"), keyPEM: []byte("key")}

const address = "https://127.0.0.1:6443"

func mustLoad(t *testing.T, file string) *clientcmdapi.Config {
	t.Helper()
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func servers(config *clientcmdapi.Config) map[string]string {
	urls := map[string]string{}
	for name, cluster := range config.Clusters {
		urls[name] = cluster.Server + " " + string(cluster.CertificateAuthorityData)
	}
	return urls
}

func TestAdminKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "admin.kubeconfig")
	if err := writeAdminKubeconfig(file, address, []byte("ca"), admin); err != nil {
		t.Fatal(err)
	}
	config := mustLoad(t, file)
	want := map[string]string{
		"root": address + "/clusters/root ca", "base": address + " ca",
		"system:admin": address + "/clusters/system:admin ca", "shard-base": address + " ca",
	}
	if diff := cmp.Diff(want, servers(config)); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	for name := range want {
		if c := config.Contexts[name]; c == nil || c.Cluster != name || c.AuthInfo != "admin" {
			t.Errorf("context %q: %+v", name, c)
		}
	}
	if config.CurrentContext != "root" || string(config.AuthInfos["admin"].ClientKeyData) != "key" {
		t.Errorf("current %q, user %+v", config.CurrentContext, config.AuthInfos["admin"])
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v), want 600", info.Mode(), err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeAdminKubeconfig(file, address, []byte("ca"), admin); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v) after a file that all could read, want 600", info.Mode(), err)
	}
}

// What people put into the file stays; where the server was is where it is now.
func TestAdminKubeconfigKeepsTheRest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admin.kubeconfig")
	if err := writeAdminKubeconfig(file, address, []byte("old ca"), admin); err != nil {
		t.Fatal(err)
	}
	config := mustLoad(t, file)
	add := func(name, server, ca string) {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: []byte(ca)}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "mine"}
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: name}
	}
	add("workspace", address+"/clusters/root:shop", "old ca")
	add("other", "https://10.0.0.1:6443", "their ca")
	add("kcp", "https://10.0.0.2:6443/clusters/root:shop", "their ca")
	add("same host", address+"/k8s/clusters/c-1", "their ca")
	config.Contexts["root"].Namespace = "team"
	config.CurrentContext = "workspace"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}

	const moved = "https://127.0.0.1:7443"
	if err := writeAdminKubeconfig(file, moved, []byte("ca"), admin); err != nil {
		t.Fatal(err)
	}
	config = mustLoad(t, file)
	want := map[string]string{
		"root": moved + "/clusters/root ca", "base": moved + " ca",
		"system:admin": moved + "/clusters/system:admin ca", "shard-base": moved + " ca",
		"workspace": moved + "/clusters/root:shop ca",
		"other":     "https://10.0.0.1:6443 their ca",
		"kcp":       "https://10.0.0.2:6443/clusters/root:shop their ca",
		"same host": address + "/k8s/clusters/c-1 their ca",
	}
	if diff := cmp.Diff(want, servers(config)); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	if config.CurrentContext != "workspace" {
		t.Errorf("current context %q, want what was current", config.CurrentContext)
	}
	if config.Contexts["root"].Namespace != "team" || config.Contexts["other"].Namespace != "mine" || config.AuthInfos["other"].Token != "other" {
		t.Errorf("namespaces or users changed: %+v", config.Contexts)
	}
}

// A person's own kubeconfig can be named, and loses nothing.
func TestAdminKubeconfigInAForeignFile(t *testing.T) {
	foreign := func(context, user string) *clientcmdapi.Config {
		config := clientcmdapi.NewConfig()
		config.Clusters[context] = &clientcmdapi.Cluster{Server: "https://10.0.0.1:6443", CertificateAuthorityData: []byte("their ca")}
		config.Contexts[context] = &clientcmdapi.Context{Cluster: context, AuthInfo: user}
		config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: "theirs"}
		config.CurrentContext = context
		return config
	}
	tests := map[string]struct {
		context, user string
		refused       string
	}{
		"apart":        {context: "kind", user: "kind"},
		"same user":    {context: "kind", user: "admin", refused: `user "admin"`},
		"same context": {context: "base", user: "kind", refused: `context "base"`},
		"same root":    {context: "root", user: "kind", refused: `context "root"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config")
			if err := clientcmd.WriteToFile(*foreign(test.context, test.user), file); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			err = writeAdminKubeconfig(file, address, []byte("ca"), admin)
			if test.refused != "" {
				after, readErr := os.ReadFile(file)
				if err == nil || !strings.Contains(err.Error(), test.refused) || !strings.Contains(err.Error(), "--kubeconfig-path") {
					t.Errorf("error %v, want one that names %s", err, test.refused)
				}
				if readErr != nil || string(after) != string(before) {
					t.Errorf("the file changed: %v\n%s", readErr, after)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			config := mustLoad(t, file)
			if got := servers(config)[test.context]; got != "https://10.0.0.1:6443 their ca" {
				t.Errorf("their cluster: %s", got)
			}
			if config.CurrentContext != test.context || config.AuthInfos[test.user].Token != "theirs" {
				t.Errorf("current %q, user %+v", config.CurrentContext, config.AuthInfos[test.user])
			}
		})
	}
}

func TestAdminKubeconfigBroken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admin.kubeconfig")
	mustWrite(t, file, "{rubbish")
	err := writeAdminKubeconfig(file, address, []byte("ca"), admin)
	if err == nil || !strings.Contains(err.Error(), "move the file away") || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v, want one that names the file and says what to do", err)
	}
	if content, _ := os.ReadFile(file); string(content) != "{rubbish" {
		t.Errorf("the file changed: %s", content)
	}
}

func TestAdminKubeconfigThroughALink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	mustWrite(t, file, "")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := writeAdminKubeconfig(link, address, []byte("ca"), admin); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v (%v)", info.Mode(), err)
	}
	if mustLoad(t, file).CurrentContext != "root" {
		t.Error("the file at the link's end was not written")
	}
}
