package operators

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/test/framework"
)

// kcpFields says where our fields differ from kcp's, and why.
const kcpFields = "testdata/kcp-fields.txt"

// TestP4_KcpClient: a client of kcp's own types and client set (kcpclient/doc.go).
func TestP4_KcpClient(t *testing.T) {
	t.Parallel()
	kcpclient := binary(t, "kcpclient")
	version, err := exec.CommandContext(t.Context(), kcpclient, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("program: %s", version[:len(version)-1])
	missing, extra := differences(t)
	t.Run("Fields", func(t *testing.T) { kcpFieldsAreOurs(t, kcpclient, missing, extra) })
	w := framework.StartAtoll(t)
	t.Run("Objects", func(t *testing.T) { kcpReadsOurs(t, w, kcpclient, extra) })
	t.Run("Use", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), kcpclient, "use", w.Kubeconfig, "quince").CombinedOutput()
		if err != nil {
			t.Fatalf("kcp's client: %v\n%s", err, out)
		}
		framework.Eventually(t, patience, "its workspace is gone", func() string {
			if left := w.MustStdout("workspace", "list"); strings.Contains(left, "quince") {
				return left
			}
			return ""
		})
	})
	done(t, "every field of kcp's Workspace, WorkspaceType and LogicalCluster is there, but for a list with reasons, and so the other way round")
	done(t, "its types read strictly what is served, in every phase, and what they write back has lost nothing else")
	done(t, "its client set makes a workspace, is told by a watch for the label of its phase when it is ready, reads its owner, enters, changes and deletes it")
}

// differences reads kcpFields: the paths that are kcp's alone, and those that are ours alone.
func differences(t *testing.T) (missing, extra []string) {
	t.Helper()
	data, err := os.ReadFile(kcpFields)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		path, reason, ok := strings.Cut(line[1:], ": ")
		path = strings.TrimSpace(path)
		switch {
		case !ok || reason == "":
			t.Fatalf("%s: %q has no reason", kcpFields, line)
		case line[0] == '-':
			missing = append(missing, path)
		case line[0] == '+':
			extra = append(extra, path)
		default:
			t.Fatalf("%s: %q begins with neither - nor +", kcpFields, line)
		}
	}
	return missing, extra
}

func below(path, top string) bool {
	rest, ok := strings.CutPrefix(path, top)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[' || rest[0] == ' ')
}

func kcpFieldsAreOurs(t *testing.T, kcpclient string, missing, extra []string) {
	out, err := exec.CommandContext(t.Context(), kcpclient, "fields").Output()
	if err != nil {
		t.Fatalf("%s fields: %v", kcpclient, err)
	}
	var buffer strings.Builder
	for _, kind := range []any{corev1alpha1.LogicalCluster{}, tenancyv1alpha1.Workspace{}, tenancyv1alpha1.WorkspaceType{}} {
		fieldsOf(reflect.TypeOf(kind).Name(), reflect.TypeOf(kind), &buffer)
	}
	theirs, ours := lines(string(out)), lines(buffer.String())
	if len(theirs) < 50 {
		t.Fatalf("kcp's types have %d fields: %q", len(theirs), theirs)
	}
	for _, d := range []struct {
		who          string
		have, others []string
		listed       []string
	}{{"kcp's alone", theirs, ours, missing}, {"ours alone", ours, theirs, extra}} {
		used := map[string]bool{}
		for _, field := range d.have {
			if slices.Contains(d.others, field) {
				continue
			}
			i := slices.IndexFunc(d.listed, func(top string) bool { return below(field, top) })
			if i < 0 {
				t.Errorf("%s is %s and not in %s", field, d.who, kcpFields)
			} else {
				used[d.listed[i]] = true
			}
		}
		for _, path := range d.listed {
			if !used[path] {
				t.Errorf("%s has %s as %s, which it is not", kcpFields, path, d.who)
			}
		}
	}
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

// fieldsOf writes the fields below a type as kcpclient does those of kcp's.
func fieldsOf(path string, t reflect.Type, w io.Writer) {
	if t.Kind() == reflect.Pointer {
		fieldsOf(path, t.Elem(), w)
		return
	}
	fmt.Fprintln(w, path, t.Kind())
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()):
	case t.Kind() == reflect.Slice:
		fieldsOf(path+"[]", t.Elem(), w)
	case t.Kind() == reflect.Struct:
		for f := range t.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "metadata" {
				fieldsOf(path+"."+name, f.Type, w)
			}
		}
	}
}

const kcpWorkspaces = `
apiVersion: tenancy.kcp.io/v1alpha1
kind: WorkspaceType
metadata: {name: all}
spec:
  initializer: true
  terminator: true
  extend: {with: [{name: universal, path: root}]}
  additionalWorkspaceLabels: {tier: team}
  defaultChildWorkspaceType: {name: universal, path: root}
  limitAllowedParents: {types: [{name: root, path: root}]}
  limitAllowedChildren: {none: true}
---
apiVersion: tenancy.kcp.io/v1alpha1
kind: Workspace
metadata: {name: kiwi}
spec: {type: {name: all}}
---
apiVersion: tenancy.kcp.io/v1alpha1
kind: Workspace
metadata: {name: plain}
`

// kcpReadsOurs follows a workspace through all its phases, and has kcp's types read it, its type and its logical cluster in each.
func kcpReadsOurs(t *testing.T, a *framework.Atoll, kcpclient string, extra []string) {
	file := filepath.Join(t.TempDir(), "workspaces.yaml")
	if err := os.WriteFile(file, []byte(kcpWorkspaces), 0o600); err != nil {
		t.Fatal(err)
	}
	a.MustRun("kubectl", "apply", "-f", file)
	in := func(path string) dynamic.Interface {
		config := rest.CopyConfig(a.Config())
		config.Host += "/clusters/" + path
		d, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	root := in("root")
	workspaces, clusters := tenancyv1alpha1.GroupVersion.WithResource("workspaces"), corev1alpha1.GroupVersion.WithResource("logicalclusters")
	get := func(d dynamic.Interface, gvr schema.GroupVersionResource, name string) *unstructured.Unstructured {
		t.Helper()
		o, err := d.Resource(gvr).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	status := func(field, value string) {
		t.Helper()
		_, err := in("root:kiwi").Resource(clusters).Patch(t.Context(), "cluster", types.MergePatchType, []byte(`{"status":{"`+field+`":`+value+`}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
	}
	// phase waits until the Workspace and its logical cluster are in it, and shows both to kcp.
	phase := func(name, want string) {
		t.Helper()
		var w *unstructured.Unstructured
		framework.Eventually(t, patience, name+" is "+want, func() string {
			w = get(root, workspaces, name)
			if got, _, _ := unstructured.NestedString(w.Object, "status", "phase"); got != want || w.GetLabels()[tenancyv1alpha1.PhaseLabel] != want {
				return fmt.Sprint(w)
			}
			return ""
		})
		lc := get(in("root:"+name), clusters, "cluster")
		if got, _, _ := unstructured.NestedString(lc.Object, "status", "phase"); got != want {
			t.Errorf("the logical cluster of %s is %s, want %s", name, got, want)
		}
		kcpReads(t, kcpclient, extra, w, lc)
	}
	phase("plain", "Ready")
	phase("kiwi", "Initializing")
	kcpReads(t, kcpclient, extra, get(root, tenancyv1alpha1.GroupVersion.WithResource("workspacetypes"), "all"))
	status("initializers", "null")
	phase("kiwi", "Ready")
	a.MustRun("kubectl", "--server="+a.URL+"/clusters/root:kiwi", "create", "configmap", "held")
	a.MustRun("kubectl", "--server="+a.URL+"/clusters/root:kiwi", "patch", "configmap", "held", "--type=merge", "-p", `{"metadata":{"finalizers":["example.com/held"]}}`)
	a.MustRun("workspace", "delete", "kiwi", "--wait=false")
	phase("kiwi", "Terminating")
	status("terminators", "null")
	phase("kiwi", "Deleting")
	a.MustRun("kubectl", "--server="+a.URL+"/clusters/root:kiwi", "patch", "configmap", "held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
}

var index = regexp.MustCompile(`\[\d+\]`)

// kcpReads has kcp's types read objects: strictly, but for what is ours alone. What they write of it our types read strictly, and
// nothing else is lost.
func kcpReads(t *testing.T, kcpclient string, extra []string, objects ...*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
		o.SetManagedFields(nil) // Kubernetes'
		sent, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), kcpclient, "decode")
		cmd.Stdin = bytes.NewReader(sent)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("kcp reads %s: %v\n%s", sent, err, out)
		}
		var got struct {
			Faults []string
			Object json.RawMessage
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		for _, fault := range got.Faults {
			path, unknown := strings.CutPrefix(fault, "unknown field ")
			path = o.GetKind() + "." + index.ReplaceAllString(strings.Trim(path, `"`), "[]")
			if !unknown || !slices.ContainsFunc(extra, func(top string) bool { return below(path, top) }) {
				t.Errorf("kcp reads a %s: %s\n%s", o.GetKind(), fault, sent)
			}
		}
		kinds := map[string]any{"Workspace": &tenancyv1alpha1.Workspace{}, "WorkspaceType": &tenancyv1alpha1.WorkspaceType{}, "LogicalCluster": &corev1alpha1.LogicalCluster{}}
		ours := json.NewDecoder(bytes.NewReader(got.Object))
		ours.DisallowUnknownFields()
		if err := ours.Decode(kinds[o.GetKind()]); err != nil {
			t.Errorf("what kcp writes of a %s: %v\n%s", o.GetKind(), err, got.Object)
		}
		var back any
		if err := json.Unmarshal(got.Object, &back); err != nil {
			t.Fatal(err)
		}
		var before any
		if err := json.Unmarshal(sent, &before); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(full(o.GetKind(), before, extra), full(o.GetKind(), back, nil)); diff != "" {
			t.Errorf("a %s that kcp read and wrote (-was +is):\n%s", o.GetKind(), diff)
		}
	}
}

// full is a JSON value without what is empty, and without fields at and below some paths.
func full(path string, value any, without []string) any {
	if slices.Contains(without, path) {
		return nil
	}
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			if value := full(path+"."+key, value, without); value != nil {
				out[key] = value
			}
		}
		if len(out) > 0 {
			return out
		}
		return nil
	case []any:
		var out []any
		for _, value := range v {
			out = append(out, full(path+"[]", value, without))
		}
		if len(out) > 0 {
			return out
		}
		return nil
	case string:
		if v == "" {
			return nil
		}
	}
	return value
}
