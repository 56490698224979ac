package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/internal/workspacefile"
)

func TestImportRefusesBeforeItAsks(t *testing.T) {
	f := newFakeAtoll(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(`{"atollWorkspace":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		reason string
		args   []string
		words  []string
	}{
		{"no file is named", []string{"shop"}, []string{"--input", "workspace export"}},
		{"there is none", []string{"shop", "--input", file + "x"}, []string{"no such file"}},
		{"half of one", []string{"shop", "--input", file}, []string{file, "cut off"}},
		{"the top of the tree", []string{"root", "--input", file}, []string{"top of the tree"}},
	} {
		_, _, err := f.call(t, newWorkspaceImportCommand, tc.args...)
		refuses(t, tc.reason, err, tc.words...)
	}
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := f.call(t, newWorkspaceExportCommand, "shop", "--output", file)
	refuses(t, "a file that is there", err, "is there already", "--output")
}

// The server is told the type with the request, so that it can refuse before the upload.
func TestImportNamesTheType(t *testing.T) {
	var asked string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked = req.URL.RawQuery
		w.WriteHeader(http.StatusForbidden)
		if err := json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Message: "there is none",
		}); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	dir := t.TempDir()
	kubeconfig := writeKubeconfig(t, dir, s.URL)
	export := func(name, kind string) string {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		w, err := workspacefile.NewWriter(file, workspacefile.Header{Path: "root:shop", Type: kind, Kubernetes: "1.36"})
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return file.Name()
	}
	typed, untyped := export("typed", "root:team"), export("untyped", "")
	const hint = "name that with --type"
	for _, tc := range []struct {
		reason, want string
		hint         bool
		args         []string
	}{
		{"that of the export", "type=root%3Ateam&workspace=root%3Ashop", true, []string{"-i", typed}},
		{"another", "type=root%3Aother&workspace=root%3Ashop", false, []string{"-i", typed, "--type", "root:other"}},
		{"whichever is given there", "type=&workspace=root%3Ashop", false, []string{"-i", typed, "--type", ""}},
		{"of an export that does not say", "type=&workspace=root%3Ashop", false, []string{"-i", untyped}},
	} {
		cmd := newWorkspaceImportCommand(func() (*cli.Hub, error) { return cli.Open(kubeconfig) }, genericiooptions.NewTestIOStreamsDiscard())
		cmd.SetArgs(append(tc.args, "root:shop"))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		refuses(t, tc.reason, err, "there is none", "root:shop")
		if asked != tc.want || strings.Contains(err.Error(), hint) != tc.hint {
			t.Errorf("%s: asked %q, want %q; said %v", tc.reason, asked, tc.want, err)
		}
	}
}
