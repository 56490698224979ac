package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestI1_NoBleed_EachVerbOfEachKind does everything that can be done with a resource in workspace a, as an administrator
// whom no role stops, and looks that a sees and changes nothing of b, which holds an object of the same name in each.
func TestI1_NoBleed_EachVerbOfEachKind(t *testing.T) {
	t.Parallel()
	w := newIsoWorld(t)
	before := w.settled(t, w.b)
	namespaces := []isoResource{}
	for _, r := range w.resources {
		if r.kind == "Namespace" {
			namespaces = append(namespaces, r) // goes last
			continue
		}
		t.Run(r.Resource+"."+r.Group, func(t *testing.T) { w.eachVerb(t, r) })
	}
	for _, r := range namespaces {
		t.Run(r.Resource, func(t *testing.T) { w.eachVerb(t, r) })
	}
	after := w.settled(t, w.b)
	// The watches make second objects in b and take them away; an Event about one may stay, and a ResourceQuota of b's is
	// charged and given back.
	for _, dump := range []map[string]string{before, after} {
		for key, text := range dump {
			if strings.HasPrefix(key, "resourcequotas.") {
				dump[key] = withoutVersion(t, text)
			}
		}
	}
	maps.DeleteFunc(after, func(key, _ string) bool {
		return strings.HasPrefix(key, "events.") && strings.Contains(key, "-second.")
	})
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("what was done in a changed b (- before, + after):\n%s", diff)
	}
}

func withoutVersion(t *testing.T, text string) string {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetResourceVersion("")
	return string(mustJSON(t, o.Object))
}

func (w *isoWorld) eachVerb(t *testing.T, r isoResource) {
	inA := client.In(t.Context(), w.a)
	theirs, err := w.in(r).Get(client.In(t.Context(), w.b), r.name(), metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get in b: %v", err)
	}
	ours, err := w.in(r).Get(inA, r.name(), metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get in a: %v", err)
	}
	w.mine(t, "get", *ours)
	if ours.GetUID() == theirs.GetUID() {
		t.Fatalf("the objects of a and b have one UID %s", ours.GetUID())
	}
	w.lists(t, r)
	w.watches(t, r)
	w.writes(t, r)
	w.deletes(t, r)
}

// mine fails the test if objects, that a was shown, are not of a alone.
func (w *isoWorld) mine(t *testing.T, verb string, objects ...unstructured.Unstructured) {
	t.Helper()
	for i := range objects {
		if got := objects[i].GetAnnotations()[clusterAnnotation]; got != w.a.String() {
			t.Errorf("%s in a (%s) shows an object of logical cluster %q: %s/%s", verb, w.a, got, objects[i].GetNamespace(), objects[i].GetName())
		}
		if text := string(mustJSON(t, objects[i].Object)); strings.Contains(text, canary) {
			t.Errorf("%s in a shows b's canary: %s", verb, text)
		}
	}
}

func (w *isoWorld) lists(t *testing.T, r isoResource) {
	t.Helper()
	inA := client.In(t.Context(), w.a)
	all := w.clients.Dynamic.Resource(r.GroupVersionResource)
	keys := func(items []unstructured.Unstructured) map[string]bool {
		found := map[string]bool{}
		for i := range items {
			found[items[i].GetNamespace()+"/"+items[i].GetName()] = true
		}
		return found
	}
	whole, err := all.List(inA, metav1.ListOptions{})
	if err != nil {
		t.Fatalf("list in a: %v", err)
	}
	w.mine(t, "list", whole.Items...)
	want := keys(whole.Items)
	if !want[r.namespace()+"/"+r.name()] {
		t.Errorf("list in a lacks %s", r.name())
	}
	for what, options := range map[string]metav1.ListOptions{
		"list at resourceVersion 0":    {ResourceVersion: "0"},
		"list at one resourceVersion":  {ResourceVersion: whole.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact},
		"list not older":               {ResourceVersion: whole.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		"list at 0 with label b":       {ResourceVersion: "0", LabelSelector: isoLabel + "=b"},
		"list with label b":            {LabelSelector: isoLabel + "=b"},
		"list with label and limit":    {LabelSelector: isoLabel + "=b", Limit: 1},
		"list with the canary's label": {LabelSelector: "canary"},
		"list by name":                 {FieldSelector: "metadata.name=" + r.name()},
	} {
		got, err := all.List(inA, options)
		if err != nil {
			t.Errorf("%s in a: %v", what, err)
			continue
		}
		w.mine(t, what, got.Items...)
		switch {
		case options.LabelSelector != "":
			if len(got.Items) > 0 {
				t.Errorf("%s in a finds %v", what, keys(got.Items))
			}
		case options.FieldSelector != "":
			if len(got.Items) != 1 {
				t.Errorf("%s in a finds %v", what, keys(got.Items))
			}
		default:
			if diff := cmp.Diff(want, keys(got.Items)); diff != "" {
				t.Errorf("%s in a differs from a list (- list):\n%s", what, diff)
			}
		}
	}
	paged := map[string]bool{}
	for options := (metav1.ListOptions{Limit: 1}); ; {
		page, err := all.List(inA, options)
		if err != nil {
			t.Errorf("list by pages in a: %v", err)
			break
		}
		w.mine(t, "a page", page.Items...)
		for key := range keys(page.Items) {
			if paged[key] {
				t.Errorf("list by pages in a shows %s twice", key)
			}
			paged[key] = true
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			break
		}
	}
	if diff := cmp.Diff(want, paged); diff != "" {
		t.Errorf("pages of one in a differ from a list (- list):\n%s", diff)
	}
}

// watches watches a in every way there is while objects change in b and then one in a; it must see that one.
func (w *isoWorld) watches(t *testing.T, r isoResource) {
	t.Helper()
	inA, inB := client.In(t.Context(), w.a), client.In(t.Context(), w.b)
	all := w.clients.Dynamic.Resource(r.GroupVersionResource)
	list, err := all.List(inA, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	watches := map[string]watch.Interface{}
	for what, options := range map[string]metav1.ListOptions{
		"watch":                        {ResourceVersion: list.GetResourceVersion()},
		"watch from resourceVersion 0": {ResourceVersion: "0"},
		"watch from now":               {},
		"watch by name":                {ResourceVersion: list.GetResourceVersion(), FieldSelector: "metadata.name=" + r.name()},
		"watch with initial events":    {SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true},
	} {
		watching, err := all.Watch(inA, options)
		if err != nil {
			t.Errorf("%s in a: %v", what, err)
			continue
		}
		defer watching.Stop()
		watches[what] = watching
	}
	// In b: a change that is undone, so that b's dump differs in resourceVersion and nothing else; then a new object.
	second := w.second(t, r, "b")
	if second != nil {
		if _, err := w.in(r).Create(inB, second, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create a second in b: %v", err)
		}
		if _, err := w.in(r).Patch(inB, second.GetName(), types.MergePatchType, []byte(`{"metadata":{"labels":{"changed":"`+canary+`"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatalf("patch the second in b: %v", err)
		}
		if err := w.in(r).Delete(inB, second.GetName(), now()); err != nil {
			t.Fatalf("delete the second in b: %v", err)
		}
		defer w.goneIn(t, r, inB, second.GetName())
	}
	isShown := w.change(t, r, inA)
	for what, watching := range watches {
		w.seesOnlyUntil(t, what, watching, isShown)
	}
}

// seesOnlyUntil reads a watch of a until it shows a change.
func (w *isoWorld) seesOnlyUntil(t *testing.T, what string, watching watch.Interface, isShown func(watch.Event) bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case <-timeout:
			t.Errorf("%s in a did not show the change in a", what)
			return
		case event, ok := <-watching.ResultChan():
			if !ok {
				t.Errorf("%s in a ended before the change in a", what)
				return
			}
			object, isObject := event.Object.(*unstructured.Unstructured)
			switch {
			case event.Type == watch.Error || !isObject:
				t.Errorf("%s in a: %v", what, apierrors.FromObject(event.Object))
				return
			case event.Type == watch.Bookmark:
				if text := string(mustJSON(t, object.Object)); strings.Contains(text, w.b.String()) {
					t.Errorf("%s in a: a bookmark names b: %s", what, text)
				}
				continue
			}
			w.mine(t, what, *object)
			if isShown(event) {
				return
			}
		}
	}
}

// writes changes a's object in every way there is, each time claiming to be of b.
func (w *isoWorld) writes(t *testing.T, r isoResource) {
	t.Helper()
	if r.isDecision() {
		return // TestDecisionsAreTheServers in server
	}
	inA := client.In(t.Context(), w.a)
	spoof := `{"metadata":{"annotations":{"` + clusterAnnotation + `":"` + w.b.String() + `"},"labels":{"spoof":%q}}}`
	check := func(what string, got *unstructured.Unstructured, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s in a: %v", what, err)
			return
		}
		w.mine(t, what, *got)
		read, err := w.in(r).Get(inA, r.name(), metav1.GetOptions{})
		if err != nil {
			t.Errorf("get in a after %s: %v", what, err)
			return
		}
		w.mine(t, "get after "+what, *read)
	}
	if second := w.second(t, r, "a"); second != nil {
		second.SetAnnotations(map[string]string{clusterAnnotation: w.b.String()})
		created, err := w.in(r).Create(inA, second, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("create in a: %v", err)
		} else {
			w.mine(t, "create", *created)
		}
		if got, err := w.in(r).Get(client.In(t.Context(), w.b), second.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("what was created in a is in b: %v, %v", got, err)
		}
		again := w.object(r, "a")
		if r.kind == "Service" { // else its address would be refused first
			again = w.second(t, r, "a")
			again.SetName(r.name())
		}
		if _, err := w.in(r).Create(inA, again, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("create in a of what is there: %v, want AlreadyExists", err)
		}
	}
	framework.Eventually(t, 10*time.Second, "update in a", func() string { // controllers write, too
		object, err := w.in(r).Get(inA, r.name(), metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		setAnnotation(object, clusterAnnotation, w.b.String())
		setLabel(object, "spoof", "update")
		got, err := w.in(r).Update(inA, object, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return err.Error()
		}
		check("update", got, err)
		return ""
	})
	got, err := w.in(r).Patch(inA, r.name(), types.MergePatchType, fmt.Appendf(nil, spoof, "merge"), metav1.PatchOptions{})
	check("merge patch", got, err)
	got, err = w.in(r).Patch(inA, r.name(), types.JSONPatchType, fmt.Appendf(nil,
		`[{"op":"add","path":"/metadata/annotations/kcp.io~1cluster","value":%q},{"op":"add","path":"/metadata/labels/spoof","value":"json"}]`, w.b), metav1.PatchOptions{})
	check("JSON patch", got, err)
	if !strings.Contains(r.Group, "kcp.io") && !strings.Contains(r.Group, "atoll.dev") {
		got, err = w.in(r).Patch(inA, r.name(), types.StrategicMergePatchType, fmt.Appendf(nil, spoof, "strategic"), metav1.PatchOptions{})
		check("strategic merge patch", got, err)
	}
	applied := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
		"name": r.name(), "annotations": map[string]any{clusterAnnotation: w.b.String()}, "labels": map[string]any{"spoof": "apply"},
	}}}
	applied.SetGroupVersionKind(r.manifest.GroupVersionKind())
	got, err = w.in(r).Apply(inA, r.name(), applied, metav1.ApplyOptions{FieldManager: "iso", Force: true})
	check("apply", got, err)
	if r.hasStatus {
		got, err = w.in(r).Patch(inA, r.name(), types.MergePatchType, fmt.Appendf(nil, spoof, "status"), metav1.PatchOptions{}, "status")
		check("status patch", got, err)
		got, err = w.in(r).Get(inA, r.name(), metav1.GetOptions{}, "status")
		check("status get", got, err)
	}
}

// deletes removes from a what there is; b's stays.
func (w *isoWorld) deletes(t *testing.T, r isoResource) {
	t.Helper()
	inA, inB := client.In(t.Context(), w.a), client.In(t.Context(), w.b)
	if r.kind == "LogicalCluster" {
		return // goes with its workspace alone
	}
	stays := func(what string) {
		t.Helper()
		got, err := w.in(r).Get(inB, r.name(), metav1.GetOptions{})
		if err != nil || got.GetDeletionTimestamp() != nil {
			t.Fatalf("%s in a took it from b: %v, %v", what, got, err)
		}
	}
	uid := types.UID("")
	if theirs, err := w.in(r).Get(inB, r.name(), metav1.GetOptions{}); err == nil {
		uid = theirs.GetUID()
	}
	options := now()
	options.Preconditions = &metav1.Preconditions{UID: &uid}
	if err := w.in(r).Delete(inA, r.name(), options); !apierrors.IsConflict(err) {
		t.Errorf("delete in a of the UID in b: %v, want a conflict", err)
	}
	if err := w.in(r).Delete(inA, r.name(), now()); err != nil {
		t.Errorf("delete in a: %v", err)
	}
	if !r.bySystem() {
		w.goneIn(t, r, inA, r.name())
	}
	stays("delete")
	if r.can("deletecollection") {
		// First by b's label, which nothing in a has; then all, where that does not take what a needs.
		if err := w.in(r).DeleteCollection(inA, now(), metav1.ListOptions{LabelSelector: isoLabel + "=b"}); err != nil {
			t.Errorf("deletecollection in a of b's label: %v", err)
		}
		stays("deletecollection by label")
		selector := ""
		switch {
		case !r.namespaced:
			selector = isoLabel + "=a"
		case r.kind == "Event": // two APIs, one storage, and the other one's turn comes
			selector = isoLabel + "=a,group=" + w.object(r, "a").GetLabels()["group"]
		}
		if err := w.in(r).DeleteCollection(inA, now(), metav1.ListOptions{LabelSelector: selector}); err != nil {
			t.Errorf("deletecollection in a: %v", err)
		}
		stays("deletecollection")
		if second := w.second(t, r, "a"); second != nil {
			w.goneIn(t, r, inA, second.GetName())
		}
	}
}

// second is another object of the resource, or nil where there can be one only.
func (w *isoWorld) second(t *testing.T, r isoResource, letter string) *unstructured.Unstructured {
	t.Helper()
	object := w.object(r, letter)
	switch r.kind {
	case "LogicalCluster", "Placement":
		return nil
	case "IPAddress":
		object.SetName("192.0.2.8")
		return object
	case "SyncTarget":
		if letter == "b" {
			return nil // placement would say something about it on b's Deployments, rightly
		}
	case "Service": // addresses of its own
		unstructured.RemoveNestedField(object.Object, "spec", "clusterIP")
		setNested(t, object, []any{map[string]any{"port": int64(80)}}, "spec", "ports")
	}
	object.SetName(r.name() + "-second")
	if r.kind == "CustomResourceDefinition" { // whose name says what it defines
		object.SetName("seconds.iso.example")
		setNested(t, object, "seconds", "spec", "names", "plural")
		setNested(t, object, "Second", "spec", "names", "kind")
	}
	return object
}

// goneIn waits until an object is gone, or on its way: Workspaces and namespaces take their content first, and in time.
func (w *isoWorld) goneIn(t *testing.T, r isoResource, ctx context.Context, name string) {
	t.Helper()
	framework.Eventually(t, 30*time.Second, r.Resource+" "+name+" is gone", func() string {
		got, err := w.in(r).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return ""
		case err != nil:
			return err.Error()
		case got.GetDeletionTimestamp() == nil:
			return "it is not being deleted"
		}
		return fmt.Sprintf("finalizers %v", got.GetFinalizers())
	})
}

// now is a deletion without grace: there is no kubelet to end a pod.
func now() metav1.DeleteOptions {
	zero, background := int64(0), metav1.DeletePropagationBackground
	return metav1.DeleteOptions{GracePeriodSeconds: &zero, PropagationPolicy: &background}
}

func setLabel(o *unstructured.Unstructured, key, value string) {
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	o.SetLabels(labels)
}

func setAnnotation(o *unstructured.Unstructured, key, value string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	o.SetAnnotations(annotations)
}
