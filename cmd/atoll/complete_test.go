package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// typing completes the last of words as a shell asks for it, and returns the words found and the directive.
func (f *fakeAtoll) typing(t *testing.T, command newCommand, words ...string) (found []string, directive string) {
	t.Helper()
	out, errOut, err := f.call(t, func(open hubOpener, streams genericiooptions.IOStreams) *cobra.Command {
		root := &cobra.Command{Use: "atoll"}
		root.AddCommand(command(open, streams))
		root.SetOut(streams.Out)
		root.SetErr(streams.ErrOut)
		return root
	}, slices.Concat([]string{cobra.ShellCompRequestCmd}, words)...)
	if err != nil || strings.Contains(errOut, "rror") {
		t.Fatalf("complete %q: %v\n%s", words, err, errOut)
	}
	lines := strings.Fields(out)
	return lines[:len(lines)-1], lines[len(lines)-1]
}

const (
	noFiles         = ":4"
	noFilesNorSpace = ":6"
)

func TestCompletion(t *testing.T) {
	f := newFakeAtoll(t, "shop", "store", "team")
	for cluster, names := range map[logicalcluster.Name][]string{"root": {"east", "west"}, "root:team": {"east", "edge"}} {
		for _, name := range names {
			f.put(t, cluster, &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	}
	for _, path := range []string{"root:team:dev", "root:team:dev:ann"} {
		if _, _, err := f.call(t, newWorkspaceCreateCommand, path); err != nil {
			t.Fatal(err)
		}
	}
	f.put(t, "root", &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "org"}})
	f.put(t, "root:team", &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "app"}})
	cordon := func(o hubOpener, s genericiooptions.IOStreams) *cobra.Command {
		return newClusterCordonCommand(o, s, true)
	}
	uncordon := func(o hubOpener, s genericiooptions.IOStreams) *cobra.Command {
		return newClusterCordonCommand(o, s, false)
	}
	for _, test := range []struct {
		reason    string
		command   newCommand
		words     string // the last one, which may be empty, is what is being typed
		want      string
		directive string
	}{
		{"the current one's, and where paths begin", newWorkspaceUseCommand, "use ", "root shop store team", noFilesNorSpace},
		{"what begins so", newWorkspaceUseCommand, "use s", "shop store", noFilesNorSpace},
		{"a path's first level", newWorkspaceUseCommand, "use root:", "root:shop root:store root:team", noFilesNorSpace},
		{"its second", newWorkspaceUseCommand, "use root:team:d", "root:team:dev", noFilesNorSpace},
		{"its third", newWorkspaceDeleteCommand, "delete root:team:dev:", "root:team:dev:ann", noFilesNorSpace},
		{"a relative path", newWorkspaceDeleteCommand, "delete team:", "team:dev", noFilesNorSpace},
		{"root cannot be deleted, what is below can", newWorkspaceDeleteCommand, "delete ", "root: shop store team", noFilesNorSpace},
		{"and begins so", newWorkspaceDeleteCommand, "delete ro", "root:", noFilesNorSpace},
		{"in no such workspace", newWorkspaceUseCommand, "use root:nowhere:", "", noFilesNorSpace},
		{"a path that can be none", newWorkspaceUseCommand, "use A::", "", noFilesNorSpace},
		{"there is one argument", newWorkspaceUseCommand, "use shop ", "", noFiles},
		{"a list can be of another", newWorkspaceListCommand, "list st", "store", noFilesNorSpace},
		{"so can a tree", newWorkspaceTreeCommand, "tree st", "store", noFilesNorSpace},
		{"types of here and above", newWorkspaceCreateCommand, "create x --type ", "root:team:app root:org", noFiles},
		{"one of them", newWorkspaceCreateCommand, "create x --type root:o", "root:org", noFiles},
		{"forms of a list", newWorkspaceListCommand, "list -o ", "wide json yaml name", noFiles},
		{"forms of a list of clusters", newClusterListCommand, "list -o ", "wide json yaml name", noFiles},
		{"a new name is the person's", newWorkspaceCreateCommand, "create ", "", noFiles},
		{"clusters", newClusterStatusCommand, "status ", "east west", noFiles},
		{"one of them", cordon, "cordon w", "west", noFiles},
		{"none", uncordon, "uncordon x", "", noFiles},
		{"those above, too, each name once", newClusterRemoveCommand, "remove ", "east edge west", noFiles},
		{"the word that confirms", newClusterConfirmCommand, "confirm east ", "restored deletions", noFiles},
	} {
		at := "root"
		if strings.HasPrefix(test.reason, "those above") || strings.HasPrefix(test.reason, "types") {
			at = "root:team"
		}
		if _, _, err := f.call(t, newWorkspaceUseCommand, at); err != nil {
			t.Fatal(err)
		}
		got, directive := f.typing(t, test.command, strings.Split(test.words, " ")...)
		if diff := cmp.Diff(strings.Join(strings.Fields(test.want), " "), strings.Join(got, " ")); diff != "" || directive != test.directive {
			t.Errorf("%s: %q (-want +got), directive %s:\n%s", test.reason, test.words, directive, diff)
		}
	}
}

// TestCompletionDoesNotHang: where the server does not answer, or is none, a TAB finds nothing and says nothing.
func TestCompletionDoesNotHang(t *testing.T) {
	forever := make(chan struct{})
	mute := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-forever:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(mute.Close)
	t.Cleanup(func() { close(forever) })
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for reason, url := range map[string]string{"mute": mute.URL, "gone": gone.URL} {
		c := clientcmdapi.NewConfig()
		c.Clusters["root"] = &clientcmdapi.Cluster{Server: url + "/clusters/root"}
		c.Contexts["root"] = &clientcmdapi.Context{Cluster: "root"}
		c.CurrentContext = "root"
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if err := clientcmd.WriteToFile(*c, file); err != nil {
			t.Fatal(err)
		}
		t.Setenv(clientcmd.RecommendedConfigPathEnvVar, file)
		for _, words := range [][]string{{"cluster", "status", ""}, {"workspace", "use", ""}, {"kubectl", "get", "pods", ""}} {
			var out, errOut bytes.Buffer
			streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}
			root := &cobra.Command{Use: "atoll"} // the real one is made once a process: it has the feature gates
			root.AddCommand(newClusterCommand(streams), newWorkspaceCommand(streams), newKubectlCommand(streams))
			root.SetOut(&out)
			root.SetErr(&errOut)
			root.SetArgs(slices.Concat([]string{cobra.ShellCompRequestCmd}, words))
			if err := root.Execute(); err != nil || strings.Contains(errOut.String(), "rror") {
				t.Errorf("%s: %q: %v\n%s", reason, words, err, &errOut)
			}
			if got := strings.TrimPrefix(out.String(), "root\n"); got != ":4\n" && got != ":6\n" {
				t.Errorf("%s: %q found %q", reason, words, got)
			}
		}
	}
}

func TestParseCompletions(t *testing.T) {
	for answer, want := range map[string]completions{
		"a\tof that kind\nb\n:4\n": {words: []string{"a\tof that kind", "b"}, directive: cobra.ShellCompDirectiveNoFileComp},
		":0\n":                     {words: []string{}, directive: cobra.ShellCompDirectiveDefault},
		"a\nb\n":                   nothing,
		"":                         nothing,
	} {
		if diff := cmp.Diff(want, parseCompletions(answer), cmp.AllowUnexported(completions{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", answer, diff)
		}
	}
}
