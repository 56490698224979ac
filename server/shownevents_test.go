package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// event is one of east's about its leaf, as its syncer puts it, by the UID that it has below.
func (s *showing) event(uid string, change func(*corev1.Event)) *corev1.Event {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: inEast, Name: uid},
		InvolvedObject: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: inEast, Name: "web", UID: s.leaf.UID},
		Type:           corev1.EventTypeNormal, Reason: "ScalingReplicaSet", Message: "Scaled up replica set web-5d8c from 0 to 2", Count: 1, FirstTimestamp: at, LastTimestamp: at,
		Source: corev1.EventSource{Component: "deployment-controller", Host: "node-7"}, ReportingController: "deployment-controller", ReportingInstance: "node-7",
	}
	if change != nil {
		change(e)
	}
	return e
}

// tell puts an event as the syncer of east.
func (s *showing) tell(t *testing.T, e *corev1.Event) error {
	t.Helper()
	_, err := s.east.CoreV1().Events(e.Namespace).Update(t.Context(), e, metav1.UpdateOptions{})
	return err
}

// eventsOf are those that the workspace has about what has that UID.
func (s *showing) eventsOf(t *testing.T, uid types.UID) []corev1.Event {
	t.Helper()
	list, err := s.shop.CoreV1().Events(team).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid)})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// TestShownEvents: what a physical cluster tells of what it runs is told of the workspace's objects there.
func TestShownEvents(t *testing.T) {
	s := startShowing(t)
	before := s.revision(t)
	first := s.event("uid-1", func(e *corev1.Event) {
		e.Labels, e.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
		e.Related = &corev1.ObjectReference{Kind: "Node", Name: "node-7"}
		e.InvolvedObject.FieldPath = "spec"
		e.Message = "in " + inEast + "/web, not in " + inEast + "-1 or x" + inEast
	})
	for range 2 {
		if err := s.tell(t, first); err != nil {
			t.Fatal(err)
		}
	}
	if writes := s.revision(t) - before; writes != 1 {
		t.Errorf("%d writes, want one event, once", writes)
	}
	events := s.eventsOf(t, s.root.UID)
	if len(events) != 1 {
		t.Fatalf("%d events of the Deployment, want one", len(events))
	}
	got := events[0]
	name := got.Name
	want := corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: team, Name: name, UID: got.UID, ResourceVersion: got.ResourceVersion, CreationTimestamp: got.CreationTimestamp, Annotations: map[string]string{"kcp.io/cluster": string(shop)}},
		InvolvedObject: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: team, Name: "web", UID: s.root.UID, FieldPath: "spec"},
		Type:           first.Type, Reason: first.Reason, Message: "in " + team + "/web, not in " + inEast + "-1 or x" + inEast, Count: 1,
		FirstTimestamp: first.FirstTimestamp, LastTimestamp: first.LastTimestamp,
		Source: corev1.EventSource{Component: "deployment-controller", Host: "us-east-1"}, ReportingController: "deployment-controller", ReportingInstance: "us-east-1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the event in the workspace (-want +got):\n%s", diff)
	}

	first.Count, first.LastTimestamp = 3, metav1.NewTime(first.LastTimestamp.Add(time.Minute))
	if err := s.tell(t, first); err != nil {
		t.Fatal(err)
	}
	if events := s.eventsOf(t, s.root.UID); len(events) != 1 || events[0].Name != name || events[0].Count != 3 || !events[0].LastTimestamp.Equal(&first.LastTimestamp) {
		t.Errorf("%+v, want the same event, which counts 3", events)
	}

	// Of a ReplicaSet, if it is the root's, and of a pod that is shown.
	set, err := s.shop.AppsV1().ReplicaSets(team).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web-5d8c", Labels: map[string]string{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: "5d8c"}, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: s.root.UID, Controller: ptr.To(true)},
		}},
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: s.root.Spec.Template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("web-1", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	newer := s.event("uid-3", func(e *corev1.Event) { // of a recorder of events.k8s.io
		e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: inEast, Name: "web-1", UID: "uid-of-web-1", FieldPath: "spec.containers{c}"}
		e.EventTime, e.FirstTimestamp, e.LastTimestamp, e.Count = metav1.NewMicroTime(time.Unix(1_700_000_000, 1000)), metav1.Time{}, metav1.Time{}, 0
		e.Series = &corev1.EventSeries{Count: 7, LastObservedTime: metav1.NewMicroTime(time.Unix(1_700_000_100, 0))}
		e.Source, e.ReportingController, e.Action = corev1.EventSource{}, "default-scheduler", "Binding"
	})
	for _, e := range []*corev1.Event{
		newer,
		s.event("uid-2", func(e *corev1.Event) { e.Annotations = map[string]string{workloadv1alpha1.RevisionAnnotation: "5d8c"} }),
		s.event("uid-4", func(e *corev1.Event) { e.Message = strings.Repeat("ö", 1000) }),
	} {
		if err := s.tell(t, e); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
	if events := s.eventsOf(t, set.UID); len(events) != 1 || events[0].InvolvedObject.Kind != "ReplicaSet" || events[0].InvolvedObject.Name != set.Name {
		t.Errorf("%+v, want the event of the ReplicaSet", events)
	}
	if events := s.eventsOf(t, shown.UID); len(events) != 1 || events[0].InvolvedObject.FieldPath != "spec.containers{c}" || events[0].Series == nil || events[0].Series.Count != 7 ||
		events[0].ReportingInstance != "us-east-1" || events[0].Source.Host != "" {
		t.Errorf("%+v, want the event of the pod", events)
	}
	for _, e := range s.eventsOf(t, s.root.UID) {
		if len(e.Message) > 1024 || strings.ContainsRune(e.Message, '�') {
			t.Errorf("a message of %d bytes, want at most 1024, and whole characters", len(e.Message))
		}
	}
}

// TestShownEventsOfAHostileCluster: whatever a syncer says, it tells of nothing but what is assigned to its cluster, in bounds.
func TestShownEventsOfAHostileCluster(t *testing.T) {
	s := startShowing(t)
	if _, err := s.shop.CoreV1().ConfigMaps(team).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.makeNamespace(t, bank, "default")
	other := s.makeDeployment(t, bank, "default", 1, nil, nil)
	inBank, err := s.in(t, bank).CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ofWest := s.below("web-w", nil)
	leafOfWest, err := s.in(t, west).AppsV1().Deployments(inEast).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ofWest.OwnerReferences[0].UID = leafOfWest.UID
	if _, err := s.west.CoreV1().Pods(inEast).Create(t.Context(), ofWest, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.shop.CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: ofWest.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := func(name, uid string) func(*corev1.Event) {
		return func(e *corev1.Event) {
			e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: inEast, Name: name, UID: types.UID(uid)}
		}
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*corev1.Event)
	}{
		"root-uid":      {"it knows its leaf alone", func(e *corev1.Event) { e.InvolvedObject.UID = s.root.UID }},
		"no-uid":        {"it must say which", func(e *corev1.Event) { e.InvolvedObject.UID = "" }},
		"leaf-of-west":  {"that is another mirror's", func(e *corev1.Event) { e.InvolvedObject.UID = leafOfWest.UID }},
		"of-bank":       {"that is another workspace's", func(e *corev1.Event) { e.InvolvedObject.UID = other.UID }},
		"not-a-leaf":    {"the workspace has it, and it is not assigned", func(e *corev1.Event) { e.InvolvedObject.APIVersion, e.InvolvedObject.Kind = "v1", "ConfigMap" }},
		"node":          {"nothing of a workspace", func(e *corev1.Event) { e.InvolvedObject.APIVersion, e.InvolvedObject.Kind = "v1", "Node" }},
		"pod-of-west":   {"west shows it", pod("web-w", "uid-of-web-w")},
		"pod-by-nobody": {"no cluster shows it", pod("bare", "")},
		"pod-unknown":   {"there is none", pod("web-9", "uid-of-web-9")},
		"nobodys":       {"the namespace is for no workspace", func(e *corev1.Event) { e.Namespace, e.InvolvedObject.Namespace = "nobodys", "nobodys" }},
		"default":       {"so is this", func(e *corev1.Event) { e.Namespace, e.InvolvedObject.Namespace = "default", "default" }},
		"type":          {"there are two", func(e *corev1.Event) { e.Type = "Fatal" }},
		"reason":        {"it is a word", func(e *corev1.Event) { e.Reason = strings.Repeat("r", 129) }},
		"component":     {"it is a name", func(e *corev1.Event) { e.Source.Component = strings.Repeat("r", 129) }},
		"path":          {"it names a container", func(e *corev1.Event) { e.InvolvedObject.FieldPath = strings.Repeat("r", 257) }},
	} {
		if err := s.tell(t, s.event(name, tc.change)); !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v, want it refused: %s", name, err, tc.reason)
		} else if strings.Contains(err.Error(), string(shop)) {
			t.Errorf("%s: %v says what the workspace is called", name, err)
		}
	}
	events := s.east.CoreV1().Events(inEast)
	for verb, request := range map[string]func() error{
		"create": func() error {
			_, err := events.Create(t.Context(), s.event("kept-in-the-mirror", nil), metav1.CreateOptions{})
			return err
		},
		"get":    func() error { _, err := events.Get(t.Context(), "x", metav1.GetOptions{}); return err },
		"list":   func() error { _, err := events.List(t.Context(), metav1.ListOptions{}); return err },
		"delete": func() error { return events.Delete(t.Context(), "x", metav1.DeleteOptions{}) },
		"in the workspace": func() error {
			cfg := s.MirrorConfig(west)
			cfg.Host = s.LoopbackConfig().Host + clustersPrefix + string(shop)
			_, err := s.as(t, cfg, "").CoreV1().Events(team).Update(t.Context(), s.event("x", func(e *corev1.Event) { e.Namespace = team }), metav1.UpdateOptions{})
			return err
		},
	} {
		if err := request(); !apierrors.IsForbidden(err) && !apierrors.IsMethodNotSupported(err) {
			t.Errorf("%s: %v, want it refused", verb, err)
		}
	}
	if list, err := s.shop.CoreV1().Events("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("%v: the workspace has %v, want nothing of that", err, list.Items)
	}
	if list, err := s.in(t, bank).CoreV1().Events("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != len(inBank.Items) {
		t.Errorf("%v: the other workspace has %v", err, list.Items)
	}
	if list, err := s.in(t, east).CoreV1().Events("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("%v: the mirror has %v, want no events of its own", err, list.Items)
	}

	// One object has so many, however they are called.
	var err2 error
	told := 0
	for ; err2 == nil && told < 200; told++ {
		err2 = s.tell(t, s.event(fmt.Sprint("spam-", told), nil))
	}
	if !apierrors.IsTooManyRequests(err2) || told < 51 || told > 60 {
		t.Errorf("%d events of one object are told, the last with %v; want some 50", told, err2)
	}
}

// TestShownEventsHaveTheirRoom: they are among the Events of the workspace, and use up nothing of what its users have to write in.
func TestShownEventsHaveTheirRoom(t *testing.T) {
	s := startShowingWith(t, func(o *Options) { o.MaxObjectsPerWorkspace = 60 })
	var err error
	told := 0
	for ; err == nil && told < 40; told++ {
		err = s.tell(t, s.event(fmt.Sprint("uid-", told), nil))
	}
	if !apierrors.IsForbidden(err) || told != 7 || !strings.HasSuffix(err.Error(), "its workspace has no room for more events") {
		t.Errorf("%d are told, the last with %v; want a tenth of 60, and nothing said of the workspace", told, err)
	}
	user := s.MirrorConfig(west)
	user.Host, user.BearerToken = s.LoopbackConfig().Host+clustersPrefix+string(shop), root
	if _, err := s.as(t, user, "").CoreV1().ConfigMaps(team).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "note"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("%v, want room for what is no event", err)
	}
}
