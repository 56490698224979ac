package namespaces

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
)

func TestContent(t *testing.T) {
	for _, tc := range []struct {
		reason  string
		content content
		gone    bool
		want    map[corev1.NamespaceConditionType]string // those that are True
	}{
		{"nothing is left", content{}, true, map[corev1.NamespaceConditionType]string{}},
		{"objects with finalizers", content{remaining: map[string]int64{"b": 1, "a.g": 2}, finalizers: map[string]int64{"x/y": 3}}, false,
			map[corev1.NamespaceConditionType]string{
				corev1.NamespaceContentRemaining:    "Some resources are remaining: a.g has 2 resource instances, b has 1 resource instances",
				corev1.NamespaceFinalizersRemaining: "Some content in the namespace has finalizers remaining: x/y in 3 resource instances",
			}},
		{"discovery fails", content{discovery: errors.New("no")}, false, map[corev1.NamespaceConditionType]string{
			corev1.NamespaceDeletionDiscoveryFailure: "Discovery failed for some groups: no"}},
		{"custom resources that nobody serves", content{remaining: map[string]int64{"widgets.shop.example": 2}, hidden: true}, false,
			map[corev1.NamespaceConditionType]string{
				corev1.NamespaceDeletionDiscoveryFailure: "Discovery failed for some groups: widgets.shop.example has 2 resource instances, of which no version is served: serve one, for them to be deleted, or delete the CustomResourceDefinition, which takes them along; if it is gone, create it again before",
				corev1.NamespaceContentRemaining:         "Some resources are remaining: widgets.shop.example has 2 resource instances",
			}},
		{"a deletion is refused", content{deletion: errors.New("no")}, false, map[corev1.NamespaceConditionType]string{
			corev1.NamespaceDeletionContentFailure: "Failed to delete all resource types: no"}},
	} {
		if got := tc.content.gone(); got != tc.gone {
			t.Errorf("%s: gone is %v", tc.reason, got)
		}
		got := map[corev1.NamespaceConditionType]string{}
		for _, c := range tc.content.conditions() {
			if c.Status == corev1.ConditionTrue {
				got[c.Type] = c.Message
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}

func TestSetConditions(t *testing.T) {
	first, later := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	var status corev1.NamespaceStatus
	waiting := content{remaining: map[string]int64{"a": 1}}
	if !setConditions(&status, waiting.conditions(), first) {
		t.Error("the first conditions change nothing")
	}
	if setConditions(&status, waiting.conditions(), later) {
		t.Error("the same conditions change something, so the status would be written again and again")
	}
	waiting.remaining["a"] = 2
	if !setConditions(&status, waiting.conditions(), later) {
		t.Error("another message changes nothing")
	}
	for _, c := range status.Conditions {
		if !c.LastTransitionTime.Equal(&first) {
			t.Errorf("%s: the time changed without the status", c.Type)
		}
	}
}

func TestWantsDefaults(t *testing.T) {
	ns := func(going bool) *corev1.Namespace {
		n := &corev1.Namespace{}
		if going {
			n.DeletionTimestamp = &metav1.Time{}
		}
		return n
	}
	cluster := func(use corev1alpha1.LogicalClusterUse, phase corev1alpha1.LogicalClusterPhase) *corev1alpha1.LogicalCluster {
		return &corev1alpha1.LogicalCluster{Spec: corev1alpha1.LogicalClusterSpec{Use: use}, Status: corev1alpha1.LogicalClusterStatus{Phase: phase}}
	}
	for _, tc := range []struct {
		reason  string
		ns      *corev1.Namespace
		cluster *corev1alpha1.LogicalCluster
		want    bool
	}{
		{"in a workspace", ns(false), cluster("Workspace", "Ready"), true},
		{"use may be left out", ns(false), cluster("", ""), true},
		{"not in a mirror", ns(false), cluster("Mirror", ""), false},
		{"not where the namespace goes", ns(true), cluster("Workspace", "Ready"), false},
		{"not where the workspace goes", ns(false), cluster("Workspace", "Terminating"), false},
		{"not before the logical cluster is known", ns(false), nil, false},
		{"not without the namespace", nil, cluster("Workspace", "Ready"), false},
	} {
		if got := wantsDefaults(tc.ns, tc.cluster); got != tc.want {
			t.Errorf("%s: %v", tc.reason, got)
		}
	}
}

func TestWatcherFindsWhatIsMissing(t *testing.T) {
	ca := newRootCA([]byte("pem"))
	object := func(ns, hash string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: rootCAConfigMap,
			Annotations: map[string]string{lcctx.Annotation: "c", rootCAHashAnnotation: hash}}}
	}
	key := func(ns string) client.Key { return client.Key{Cluster: "c", Name: ns} }
	var checked []client.Key
	w := &watcher{
		right:   func(m *metav1.PartialObjectMetadata) bool { return m.Annotations[rootCAHashAnnotation] == ca.hash },
		changes: true,
		all:     func() []client.Key { return []client.Key{key("good"), key("old"), key("none")} },
		check:   func(k client.Key) { checked = append(checked, k) },
	}
	for _, tc := range []struct {
		reason string
		do     func() error
		want   []client.Key
	}{
		{"a list shows who lacks it and who has an old one", func() error {
			return w.Replace([]any{object("good", ca.hash), object("old", "x")}, "1")
		}, []client.Key{key("old"), key("none")}},
		{"our own creation", func() error { return w.Add(object("none", ca.hash)) }, nil},
		{"somebody else's creation", func() error { return w.Add(object("none", "")) }, []client.Key{key("none")}},
		{"a change of data is not seen in the metadata", func() error { return w.Update(object("good", ca.hash)) }, []client.Key{key("good")}},
		{"a deletion", func() error { return w.Delete(object("good", ca.hash)) }, []client.Key{key("good")}},
	} {
		checked = nil
		if err := tc.do(); err != nil {
			t.Errorf("%s: %v", tc.reason, err)
		}
		if diff := cmp.Diff(tc.want, checked); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}

func TestRootCAPut(t *testing.T) {
	ca := newRootCA([]byte("pem"))
	cm := &corev1.ConfigMap{}
	if !ca.put(cm) || cm.Data[rootCAKey] != "pem" {
		t.Errorf("put left %v", cm.Data)
	}
	if ca.put(cm) {
		t.Error("put again changed something")
	}
	cm.Data["more"] = "x"
	if !ca.put(cm) || len(cm.Data) != 1 {
		t.Errorf("put left %v", cm.Data)
	}
	if !newRootCA([]byte("new")).put(cm) {
		t.Error("a new authority changed nothing")
	}
}

func TestOnNamespace(t *testing.T) {
	ns := func(uid types.UID, going bool) *corev1.Namespace {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: uid}}
		if going {
			n.DeletionTimestamp = &metav1.Time{}
		}
		return n
	}
	type event = client.Event[*corev1.Namespace]
	for _, tc := range []struct {
		reason              string
		event               event
		defaults, deletions int
	}{
		{"a new one", event{New: ns("a", false)}, 1, 0},
		{"one of the first list is compared with the first list of default objects", event{New: ns("a", false), Initial: true}, 0, 0},
		{"a change that is nothing to us", event{Old: ns("a", false), New: ns("a", false)}, 0, 0},
		{"a user deletes it", event{Old: ns("a", false), New: ns("a", true)}, 0, 1},
		{"our own report on the deletion", event{Old: ns("a", true), New: ns("a", true)}, 0, 0},
		{"a deletion goes on after a restart", event{New: ns("a", true), Initial: true}, 0, 1},
		{"another of that name came in a gap of the watch", event{Old: ns("a", true), New: ns("b", false)}, 1, 0},
		{"another of that name came in a gap of the watch, and goes too", event{Old: ns("a", true), New: ns("b", true)}, 0, 1},
		{"it is gone", event{Old: ns("a", true)}, 0, 0},
	} {
		c := &Controller{
			defaults:  queue.New[client.Key]("defaults", nil),
			deletions: queue.New[client.Key]("deletions", nil),
		}
		c.onNamespace(tc.event)
		if c.defaults.Len() != tc.defaults || c.deletions.Len() != tc.deletions {
			t.Errorf("%s: %d looks at defaults, %d at the deletion; want %d and %d", tc.reason, c.defaults.Len(), c.deletions.Len(), tc.defaults, tc.deletions)
		}
	}
}
