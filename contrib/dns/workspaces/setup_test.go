package workspaces

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}, {name: other, context: {cluster: c}}]
current-context: c
`

func TestSetup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"workspaces {\n kubeconfig " + file + "\n}":                             "cluster.local.",
		"workspaces {\n kubeconfig " + file + " other\n}":                       "cluster.local.",
		"workspaces a.example B.example {\n kubeconfig " + file + "\n}":         "a.example. b.example.",
		"workspaces {\n kubeconfig\n}":                                          "want a file",
		"workspaces {\n kubeconfig a b c\n}":                                    "want a file",
		"workspaces {\n kubeconfig " + file + " none\n}":                        `context "none" does not exist`,
		"workspaces {\n kubeconfig " + file + ".none\n}":                        "no such file",
		"workspaces {\n api atoll\n kubeconfig " + file + "\n}":                 "want a Service and its namespace",
		"workspaces {\n api atoll atoll-system\n kubeconfig " + file + "\n}":    "cluster.local.",
		"workspaces {\n api Atoll atoll-system\n kubeconfig " + file + "\n}":    "a lowercase RFC 1123 label",
		"workspaces {\n pods\n}":                                                "want the networks of pods",
		"workspaces {\n pods x\n}":                                              "want the networks of pods",
		"workspaces {\n pods 10.0.0.0/8 fd00::/8\n kubeconfig " + file + "\n}":  "cluster.local.",
		"workspaces {\n server x\n}":                                            `unknown property "server"`,
		"workspaces":                                                            "in-cluster",
		"workspaces {\n kubeconfig " + file + "\n}\nworkspaces cluster.local\n": "once",
	} {
		w, err := parse(caddy.NewTestController("dns", text))
		switch {
		case err != nil:
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", text, err, want)
			}
		case !slices.Equal(w.zones, strings.Fields(want)):
			t.Errorf("%s: zones %q, want %q", text, w.zones, want)
		}
	}
}
