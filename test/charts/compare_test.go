package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The path of an object that one side alone has. Before it is installed where Helm says of an object that it is of the chart.
const (
	workspaceOnly = "in the workspace alone"
	plainOnly     = "in the plain cluster alone"
	installed     = "of the chart, "
)

// difference is where a user sees something else in a workspace than in a plain cluster.
type difference struct {
	chart string
	kind  string // as kindOf says it
	name  string // of the object, as visible makes it
	// path is exact: fields, "[x]" around those that are no words, and items of lists as "[name=x]" by what tells them apart, else by number.
	path string
	// workspace and plain are what is there; nil: nothing.
	workspace, plain any
}

func (d difference) String() string {
	return fmt.Sprintf("%s %s: %s is %s in the workspace, and %s in the plain cluster", d.kind, d.name, d.path, short(d.workspace), short(d.plain))
}

func short(value any) string {
	if value == nil {
		return "not there"
	}
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%v", value)
	}
	if len(data) > 200 {
		return string(data[:200]) + "..."
	}
	return string(data)
}

// compare returns where two lists of visible objects differ, by kind, name and path. Of objects that have one name those are compared that
// differ least.
func compare(workspace, plain []*unstructured.Unstructured) []difference {
	left, right := byName(workspace), byName(plain)
	names := map[[2]string]bool{}
	for name := range left {
		names[name] = true
	}
	for name := range right {
		names[name] = true
	}
	var all []difference
	for _, name := range slices.SortedFunc(maps.Keys(names), func(a, b [2]string) int { return strings.Compare(a[0]+" "+a[1], b[0]+" "+b[1]) }) {
		for _, d := range pairs(left[name], right[name]) {
			d.kind, d.name = name[0], name[1]
			all = append(all, d)
		}
	}
	return all
}

func byName(objects []*unstructured.Unstructured) map[[2]string][]map[string]any {
	all := map[[2]string][]map[string]any{}
	for _, o := range objects {
		name := [2]string{kindOf(o), o.GetName()}
		all[name] = append(all[name], o.Object)
	}
	return all
}

// pairs compares objects of one name.
func pairs(left, right []map[string]any) (all []difference) {
	right = slices.Clone(right)
	var alone []map[string]any
	// Those that are the same first, so that none of them is taken for another.
	left = slices.DeleteFunc(slices.Clone(left), func(l map[string]any) bool {
		i := slices.IndexFunc(right, func(r map[string]any) bool { return reflect.DeepEqual(l, r) })
		if i >= 0 {
			right = slices.Delete(right, i, i+1)
		}
		return i >= 0
	})
	for _, l := range left {
		if len(right) == 0 {
			alone = append(alone, l)
			continue
		}
		best, fewest := 0, []difference(nil)
		for i, r := range right {
			if d := differ("", l, r); i == 0 || len(d) < len(fewest) {
				best, fewest = i, d
			}
		}
		right = slices.Delete(right, best, best+1)
		all = append(all, fewest...)
	}
	for _, l := range alone {
		all = append(all, difference{path: whole(l, workspaceOnly), workspace: l})
	}
	for _, r := range right {
		all = append(all, difference{path: whole(r, plainOnly), plain: r})
	}
	return all
}

// whole is the path of an object that one side alone has.
func whole(of map[string]any, side string) string {
	o := &unstructured.Unstructured{Object: of}
	if _, ok := o.GetAnnotations()["meta.helm.sh/release-name"]; ok && metav1.GetControllerOfNoCopy(o) == nil { // controllers copy annotations
		return installed + side
	}
	return side
}

// differ returns where two values at a path differ, by path. What is not there on one side is one difference, however much of it there is.
func differ(path string, left, right any) (all []difference) {
	if path == "metadata.annotations" || path == "metadata.labels" { // none is empty
		left, right = orEmpty(left), orEmpty(right)
	}
	switch l := left.(type) {
	case map[string]any:
		r, ok := right.(map[string]any)
		if !ok {
			break
		}
		fields := map[string]bool{}
		for field := range l {
			fields[field] = true
		}
		for field := range r {
			fields[field] = true
		}
		for _, field := range slices.Sorted(maps.Keys(fields)) {
			all = append(all, differ(below(path, field), l[field], r[field])...)
		}
		return all
	case []any:
		r, ok := right.([]any)
		if !ok {
			break
		}
		key := "" // the order of a spec is compared
		if strings.HasPrefix(path, "metadata") || strings.HasPrefix(path, "status") {
			key = keyOf(l, r)
		}
		if path == "metadata.ownerReferences" {
			key = "kind" // which has few values, where names are as many as objects
		}
		if key != "" && tellsApart(key, l) && tellsApart(key, r) {
			return differ(path, byKey(key, l), byKey(key, r))
		}
		for i := range max(len(l), len(r)) {
			all = append(all, differ(item(path, i), at(l, i), at(r, i))...)
		}
		return all
	}
	if reflect.DeepEqual(left, right) {
		return nil
	}
	return []difference{{path: path, workspace: left, plain: right}}
}

func orEmpty(value any) any {
	if value == nil {
		return map[string]any{}
	}
	return value
}

// byKey maps "key=value" to the items of a list: their order says nothing.
func byKey(key string, list []any) map[string]any {
	all := map[string]any{}
	for _, item := range list {
		all[fmt.Sprintf("%s=%v", key, item.(map[string]any)[key])] = item
	}
	return all
}

func at(list []any, i int) any {
	if i < len(list) {
		return list[i]
	}
	return nil
}

func TestCompare(t *testing.T) {
	const meta = "apiVersion: v1, kind: Pod, metadata: {name: a}"
	for name, test := range map[string]struct {
		workspace, plain string
		want             []string // paths
	}{
		"the same":             {"{" + meta + ", spec: {a: 1}}", "{" + meta + ", spec: {a: 1}}", nil},
		"nothing":              {"", "", nil},
		"another value":        {"{" + meta + ", spec: {a: {b: 1}}}", "{" + meta + ", spec: {a: {b: 2}}}", []string{"spec.a.b"}},
		"one more field":       {"{" + meta + ", spec: {a: 1}}", "{" + meta + ", spec: {a: 1, b: {c: 1, d: 2}}}", []string{"spec.b"}},
		"a field that is null": {"{" + meta + ", spec: {a: null}}", "{" + meta + ", spec: {}}", nil},
		"a field that is empty": {
			"{" + meta + ", spec: {a: []}}", "{" + meta + ", spec: {}}", []string{"spec.a"},
		},
		"fields that are no words": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {kcp.io/cluster: x}}}",
			"{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {a.b/c: y}}}",
			[]string{"metadata.annotations[a.b/c]", "metadata.annotations[kcp.io/cluster]"},
		},
		"owners": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{kind: ReplicaSet, name: a-1}]}}",
			"{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{kind: ReplicaSet, name: a-1, blockOwnerDeletion: true}, {kind: Deployment, name: a}]}}",
			[]string{"metadata.ownerReferences[kind=Deployment]", "metadata.ownerReferences[kind=ReplicaSet].blockOwnerDeletion"},
		},
		"the first annotation": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {b: c}}}", "{" + meta + "}", []string{"metadata.annotations.b"},
		},
		"a list in another order, of what has names": {
			"{" + meta + ", status: {l: [{name: p, a: 1}, {name: q, a: 2}]}}", "{" + meta + ", status: {l: [{name: q, a: 2}, {name: p, a: 3}]}}", []string{"status.l[name=p].a"},
		},
		"a list of a spec in another order": {
			"{" + meta + ", spec: {l: [{name: p}, {name: q}]}}", "{" + meta + ", spec: {l: [{name: q}, {name: p}]}}", []string{"spec.l[0].name", "spec.l[1].name"},
		},
		"an item more": {
			"{" + meta + ", status: {l: [{type: p}]}}", "{" + meta + ", status: {l: [{type: p}, {type: q}]}}", []string{"status.l[type=q]"},
		},
		"a list of what has no names": {"{" + meta + ", spec: {l: [a, b]}}", "{" + meta + ", spec: {l: [a, c, d]}}", []string{"spec.l[1]", "spec.l[2]"}},
		"names that are not one's own": {
			"{" + meta + ", status: {l: [{key: x, a: 1}, {key: x, a: 2}]}}", "{" + meta + ", status: {l: [{key: x, a: 1}, {key: x, a: 3}]}}", []string{"status.l[1].a"},
		},
		"another type":                {"{" + meta + ", spec: {a: {b: 1}}}", "{" + meta + ", spec: {a: [1]}}", []string{"spec.a"}},
		"an object that one side has": {"{" + meta + "}", "", []string{"in the workspace alone"}},
		"several of a name, of which one differs": {
			"{" + meta + ", status: {a: 1}}\n---\n{" + meta + ", status: {a: 2, b: 1}}\n---\n{" + meta + ", status: {a: 3}}",
			"{" + meta + ", status: {a: 3}}\n---\n{" + meta + ", status: {a: 1}}\n---\n{" + meta + ", status: {a: 2, b: 2}}",
			[]string{"status.b"},
		},
		"several of a name, one too few": {
			"{" + meta + ", status: {a: 1}}\n---\n{" + meta + ", status: {a: 1}}", "{" + meta + ", status: {a: 1}}", []string{"in the workspace alone"},
		},
		"one of the chart that is lost": {
			"", "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {meta.helm.sh/release-name: x}}}", []string{"of the chart, in the plain cluster alone"},
		},
		"one that a controller makes of it": {
			"", "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {meta.helm.sh/release-name: x}, ownerReferences: [{kind: Job, name: a, controller: true}]}}",
			[]string{"in the plain cluster alone"},
		},
		"what has a controller, and what has none": {
			"{" + meta + "}", "{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{kind: Job, name: a, controller: true}]}}", []string{"in the workspace alone", "in the plain cluster alone"},
		},
		"kinds of two groups": {
			"{apiVersion: a/v1, kind: Pod, metadata: {name: a}}", "{apiVersion: b/v1, kind: Pod, metadata: {name: a}}", []string{"in the workspace alone", "in the plain cluster alone"},
		},
	} {
		var got []string
		for _, d := range compare(objects(t, test.workspace), objects(t, test.plain)) {
			got = append(got, d.path)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s, -want +got:\n%s", name, diff)
		}
	}
}

func TestDifferenceSaysWhat(t *testing.T) {
	got := compare(objects(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, status: {replicas: 2}}"), objects(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}"))
	want := `Deployment.apps a: status is {"replicas":2} in the workspace, and not there in the plain cluster`
	if len(got) != 1 || got[0].String() != want {
		t.Errorf("%v, want %s", got, want)
	}
}
