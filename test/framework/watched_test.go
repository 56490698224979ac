package framework

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

func TestWatched(t *testing.T) {
	w := &Watched{there: map[string]bool{}}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	at := Place{Name: "east", Of: func(_ schema.GroupVersionResource, o metav1.Object) bool { return o.GetNamespace() != "other" }}
	saw := func(event watch.EventType, namespace, name string) {
		w.saw(at, pods, event, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "7"}})
	}
	saw("", "a", "there")
	saw(watch.Added, "a", "before")
	w.last = time.Now().Add(-time.Hour)
	w.Rests(t, time.Second, time.Minute)
	if changes := w.Changes(); len(changes) > 0 {
		t.Errorf("what was before is told: %q", changes)
	}
	saw(watch.Added, "a", "short")
	saw(watch.Deleted, "a", "short")
	saw(watch.Added, "other", "b")
	saw(watch.Modified, "a", "there")
	if diff := cmp.Diff([]string{
		"east pods a/short: ADDED, resourceVersion 7, generation 0", "east pods a/short: DELETED, resourceVersion 7, generation 0",
		"east pods a/there: MODIFIED, resourceVersion 7, generation 0",
	}, w.Changes()); diff != "" {
		t.Errorf("changes, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"east pods a/there": true, "east pods a/before": true}, w.There()); diff != "" {
		t.Errorf("there, -want +got:\n%s", diff)
	}
	f := &failures{TB: t}
	func() {
		defer func() { _ = recover() }() // what f panics with
		w.Rests(f, 0, time.Minute)
	}()
	if !f.Failed() {
		t.Error("it rests just after a change")
	}
}
