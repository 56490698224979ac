package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// owner is a client of shop that belongs to no controller.
func (s *showing) owner(t *testing.T) kubernetes.Interface {
	config := rest.CopyConfig(s.LoopbackConfig())
	config.Host, config.BearerToken = s.LoopbackConfig().Host+clustersPrefix+string(shop), root
	return s.as(t, config, "")
}

// bound makes a pod in shop, as its owner, and binds it to east.
func (s *showing) bound(t *testing.T, name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	made := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "db"}, Annotations: map[string]string{"note": "mine"}},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To(int64(7)), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	for _, change := range changes {
		change(made)
	}
	pod, err := s.owner(t).CoreV1().Pods(team).Create(t.Context(), made, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.shop.CoreV1().Pods(team).Bind(t.Context(), s.binding(pod), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if pod, err = s.shop.CoreV1().Pods(team).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	return pod
}

// binding is that of a pod to east, as the splitter writes it.
func (s *showing) binding(pod *corev1.Pod) *corev1.Binding {
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, UID: pod.UID, Labels: map[string]string{workloadv1alpha1.MirrorLabel: string(east)},
			Annotations: map[string]string{workloadv1alpha1.MirrorNamespaceAnnotation: inEast},
		},
		Target: corev1.ObjectReference{Kind: "Node", Name: "us-east-1"},
	}
}

// told is what the syncer of east tells first of a pod that it has made.
func (s *showing) told(t *testing.T, name, uid string) error {
	t.Helper()
	pod, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations[workloadv1alpha1.PodUIDAnnotation] = uid
	pod.Status.Phase = corev1.PodRunning
	_, err = s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	return err
}

// TestBoundPods follows a pod that somebody makes in a workspace, and a physical cluster runs.
func TestBoundPods(t *testing.T) {
	s := startShowing(t)
	ofEast, ofOwner := s.east.CoreV1().Pods(inEast), s.owner(t).CoreV1().Pods(team)
	before := s.revision(t)
	pod := s.bound(t, "db")
	if writes := s.revision(t) - before; writes != 2 {
		t.Errorf("%d writes, want one of its owner and one that binds it", writes)
	}
	if pod.Spec.NodeName != "us-east-1" || pod.Status.Conditions[len(pod.Status.Conditions)-1].Type != corev1.PodScheduled {
		t.Errorf("it is on %q with %+v", pod.Spec.NodeName, pod.Status.Conditions)
	}
	if err := s.shop.CoreV1().Pods(team).Bind(t.Context(), s.binding(pod), metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("%v, want nothing to be bound twice", err)
	}

	shown, err := ofEast.Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(shown.Annotations, "kcp.io/cluster")
	type leaf struct {
		Labels, Annotations map[string]string
		Finalizers          []string
		Node                string
		Volumes             int
		Tolerations         int
	}
	want := leaf{
		map[string]string{"app": "db", workloadv1alpha1.WorkspaceLabel: string(shop), workloadv1alpha1.RootUIDLabel: string(pod.UID)},
		map[string]string{"note": "mine", workloadv1alpha1.RootAnnotation: team + "/db"}, []string{workloadv1alpha1.SyncerFinalizer}, "", 0, 0,
	}
	if diff := cmp.Diff(want, leaf{shown.Labels, shown.Annotations, shown.Finalizers, shown.Spec.NodeName, len(shown.Spec.Volumes), len(shown.Spec.Tolerations)}); diff != "" {
		t.Errorf("what the mirror shows east to run (-want +got):\n%s", diff)
	}

	// Before it runs, nobody below can end it.
	if err := ofEast.Delete(t.Context(), "db", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want a syncer of an earlier version not to end what it never ran", err)
	}
	if err := s.told(t, "db", "uid-below"); err != nil {
		t.Fatal(err)
	}
	if now, err := ofOwner.Get(t.Context(), "db", metav1.GetOptions{}); err != nil || now.Annotations[workloadv1alpha1.PodUIDAnnotation] != "uid-below" || now.Status.Phase != corev1.PodRunning {
		t.Errorf("%v: %+v, want its status and which it is below", err, now)
	}
	if err := s.told(t, "db", "another"); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want which it is below to be told once", err)
	}

	// Its owner changes what is his, and nothing else.
	patch := func(kind types.PatchType, text string, subresource ...string) error {
		_, err := ofOwner.Patch(t.Context(), "db", kind, []byte(text), metav1.PatchOptions{}, subresource...)
		return err
	}
	if err := patch(types.MergePatchType, `{"metadata":{"labels":{"app":"web"},"annotations":{"note":"changed"}}}`); err != nil {
		t.Errorf("its labels: %v", err)
	}
	for name, err := range map[string]error{
		"finalizer": patch(types.MergePatchType, `{"metadata":{"finalizers":null}}`),
		"mirror":    patch(types.MergePatchType, `{"metadata":{"labels":{"`+workloadv1alpha1.MirrorLabel+`":"`+string(west)+`"}}}`),
		"namespace": patch(types.MergePatchType, `{"metadata":{"annotations":{"`+workloadv1alpha1.MirrorNamespaceAnnotation+`":"other"}}}`),
		"uid":       patch(types.MergePatchType, `{"metadata":{"annotations":{"`+workloadv1alpha1.PodUIDAnnotation+`":"other"}}}`),
		"status":    patch(types.MergePatchType, `{"status":{"podIP":"10.9.9.9"}}`, "status"),
		"image":     patch(types.StrategicMergePatchType, `{"spec":{"containers":[{"name":"c","image":"j"}]}}`),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it forbidden", name, err)
		}
	}
	if _, err := ofOwner.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "forged", Finalizers: []string{workloadv1alpha1.SyncerFinalizer}}, Spec: corev1.PodSpec{Containers: shown.Spec.Containers}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want nobody to make what looks bound", err)
	}
	if shown, err := ofEast.Get(t.Context(), "db", metav1.GetOptions{}); err != nil || shown.Labels["app"] != "web" || shown.Annotations["note"] != "changed" {
		t.Errorf("%v: %+v, want what its owner changed to go down", err, shown)
	}

	// Another cluster's syncer knows nothing of it.
	if _, err := s.west.CoreV1().Pods(inEast).Get(t.Context(), "db", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want it not to be found in west's mirror", err)
	}
	if _, err := s.west.CoreV1().Pods(inEast).UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want west to tell nothing of it", err)
	}
	if err := s.west.CoreV1().Pods(inEast).Delete(t.Context(), "db", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want west to end nothing of it", err)
	}
}

// TestBoundPodsAreAdmittedBelow: what the API server of the workspace has made of a pod, that of a physical cluster takes.
func TestBoundPodsAreAdmittedBelow(t *testing.T) {
	s := startShowing(t)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	term := []corev1.PodAffinityTerm{{TopologyKey: "zone", LabelSelector: selector, MatchLabelKeys: []string{"member"}}}
	pod := s.bound(t, "db", func(p *corev1.Pod) {
		p.Labels["member"] = "one"
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector, MatchLabelKeys: []string{"member"},
		}}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
	})
	shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// A workspace's API server is a physical cluster's here: it is upstream's, too.
	below, err := s.shop.CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "below", Labels: pod.Labels}, Spec: shown.Spec}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatalf("the pod is refused where it is to run: %v", err)
	}
	want := []metav1.LabelSelectorRequirement{{Key: "member", Operator: metav1.LabelSelectorOpIn, Values: []string{"one"}}}
	for what, got := range map[string]*metav1.LabelSelector{
		"its constraint": below.Spec.TopologySpreadConstraints[0].LabelSelector,
		"its affinity":   below.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector,
	} {
		if diff := cmp.Diff(want, got.MatchExpressions); diff != "" {
			t.Errorf("%s selects others than in one cluster (-want +got):\n%s", what, diff)
		}
	}
}

// TestAddedToShown: ephemeral containers are added to a pod that a physical cluster shows, within bounds, and its syncer sees them; nothing else
// is changed that way.
func TestAddedToShown(t *testing.T) {
	s := startShowing(t)
	ofEast, ofOwner := s.east.CoreV1().Pods(inEast), s.owner(t).CoreV1().Pods(team)
	served := func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" } // as each pod is that runs
	if _, err := ofEast.Create(t.Context(), s.below("web-1", served), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	add := func(from, to int, metadata string) error {
		var all []string
		for i := from; i < to; i++ {
			all = append(all, fmt.Sprintf(`{"name":"d-%d","image":"i"}`, i))
		}
		text := `{"metadata":{` + metadata + `},"spec":{"ephemeralContainers":[` + strings.Join(all, ",") + `]}}`
		_, err := ofOwner.Patch(t.Context(), "web-1", types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, "ephemeralcontainers")
		return err
	}
	marks := fmt.Sprintf(`"labels":{%q:%q,"mine":"now"},"annotations":{%q:"other"}`, workloadv1alpha1.MirrorLabel, west, workloadv1alpha1.PodUIDAnnotation)
	if err := add(0, 2, marks); err != nil {
		t.Fatal(err)
	}
	shown, err := ofEast.Get(t.Context(), "web-1", metav1.GetOptions{})
	if err != nil || len(shown.Spec.EphemeralContainers) != 2 || shown.Spec.EphemeralContainers[1].Name != "d-1" || shown.Labels["mine"] != "" {
		t.Errorf("%v: its syncer sees %+v, want two containers, and no label", err, shown)
	}
	if row, err := ofOwner.Get(t.Context(), "web-1", metav1.GetOptions{}); err != nil || row.Labels[workloadv1alpha1.MirrorLabel] != string(east) || row.Annotations[workloadv1alpha1.PodUIDAnnotation] != "uid-of-web-1" {
		t.Errorf("%v: %+v, want its marks as they were", err, row)
	}
	if err := add(2, 16, ""); err != nil {
		t.Errorf("sixteen: %v", err)
	}
	if err := add(16, 17, ""); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "at most 16") {
		t.Errorf("seventeen: %v, want it forbidden", err)
	}

	if _, err := ofEast.Create(t.Context(), s.below("web-2", served), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	long := `{"spec":{"ephemeralContainers":[{"name":"d","image":"i","args":["` + strings.Repeat("a", 40<<10) + `"]}]}}`
	if _, err := ofOwner.Patch(t.Context(), "web-2", types.StrategicMergePatchType, []byte(long), metav1.PatchOptions{}, "ephemeralcontainers"); !apierrors.IsForbidden(err) {
		t.Errorf("40 KiB: %v, want it forbidden", err)
	}
	for what, takes := range map[string]string{
		"a variable": `"env":[{"name":"T","valueFrom":{"secretKeyRef":{"name":"atoll-token-admin","key":"token"}}}]`,
		"all of it":  `"envFrom":[{"secretRef":{"name":"atoll-token-admin"}}]`,
	} {
		_, err := ofOwner.Patch(t.Context(), "web-2", types.StrategicMergePatchType, []byte(`{"spec":{"ephemeralContainers":[{"name":"d","image":"i",`+takes+`}]}}`), metav1.PatchOptions{}, "ephemeralcontainers")
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "its own ServiceAccount's") {
			t.Errorf("%s of another account's tokens: %v, want it forbidden", what, err)
		}
	}
}

// TestEndOfBoundPods: whoever deletes a pod that a physical cluster runs, and how, its row stays until it is gone there.
func TestEndOfBoundPods(t *testing.T) {
	s := startShowing(t)
	ofEast, ofOwner, ofServer := s.east.CoreV1().Pods(inEast), s.owner(t).CoreV1().Pods(team), s.shop.CoreV1().Pods(team)
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}
	for name, tc := range map[string]struct {
		delete func(name string) error
		grace  int64
	}{
		"owner":       {func(name string) error { return ofOwner.Delete(t.Context(), name, metav1.DeleteOptions{}) }, 7},
		"owner-force": {func(name string) error { return ofOwner.Delete(t.Context(), name, now) }, 0},
		"twice": {func(name string) error {
			if err := ofOwner.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			return ofOwner.Delete(t.Context(), name, now)
		}, 0},
		"collection": {func(name string) error {
			return ofOwner.DeleteCollection(t.Context(), now, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		}, 0},
		"server": {func(name string) error { return ofServer.Delete(t.Context(), name, metav1.DeleteOptions{}) }, 7},
		"namespace": {func(name string) error {
			for range 2 { // its deletion asks until nothing is there
				if err := ofServer.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=" + name}); err != nil {
					return err
				}
			}
			return nil
		}, 7},
	} {
		pod := s.bound(t, name)
		if err := s.told(t, name, "uid-of-"+name); err != nil {
			t.Fatal(err)
		}
		if err := tc.delete(name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ending, err := ofEast.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || ending.DeletionTimestamp == nil || ptr.Deref(ending.DeletionGracePeriodSeconds, -1) != tc.grace {
			t.Errorf("%s: %v: %v and %v; want it to be on its way out, in %d s", name, err, ending.DeletionTimestamp, ending.DeletionGracePeriodSeconds, tc.grace)
			continue
		}
		if err := ofEast.Delete(t.Context(), name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ofServer.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, want it gone when it is gone below", name, err)
		}
	}

	// One that never ran goes as soon as its syncer knows; one that somebody else keeps, stays.
	s.bound(t, "never")
	if err := ofOwner.Delete(t.Context(), "never", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ofEast.Delete(t.Context(), "never", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	s.bound(t, "kept")
	if _, err := ofOwner.Patch(t.Context(), "kept", types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/keeps"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.told(t, "kept", "uid-of-kept"); err != nil {
		t.Fatal(err)
	}
	if err := ofEast.Delete(t.Context(), "kept", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if kept, err := ofServer.Get(t.Context(), "kept", metav1.GetOptions{}); err != nil || !cmp.Equal(kept.Finalizers, []string{"example.com/keeps"}) {
		t.Errorf("%v: %+v, want somebody else's finalizer to keep it", err, kept)
	}
	if all, err := ofServer.List(t.Context(), metav1.ListOptions{}); err != nil || len(all.Items) != 1 {
		t.Errorf("%v: %d pods are left, want 1", err, len(all.Items))
	}

	// A physical cluster that goes takes what it ran along, as a Node does.
	s.bound(t, "lost")
	if err := s.in(t, east).CoreV1().Pods(inEast).Delete(t.Context(), "lost", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ofServer.Get(t.Context(), "lost", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want it gone with its cluster", err)
	}

	// Who kept it lets go of it, and does nothing else.
	for _, patch := range []string{`{"metadata":{"finalizers":["example.com/another"]}}`, `{"metadata":{"finalizers":null,"labels":{"app":"something"}}}`} {
		if _, err := ofOwner.Patch(t.Context(), "kept", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err == nil {
			t.Errorf("%s is let through", patch)
		}
	}
	if _, err := ofOwner.Patch(t.Context(), "kept", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := ofServer.Get(t.Context(), "kept", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want it gone when nobody keeps it", err)
	}

	// Nobody runs one that names its node itself: it goes at once.
	own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := ofOwner.Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ofOwner.Delete(t.Context(), "own", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := ofServer.Get(t.Context(), "own", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want it gone at once", err)
	}
}

// TestBoundPodsAreToldTheirNamespace: a pod that was bound to a cluster whose DNS knows workspaces asks below for what its namespace is called here, and is shown
// here as it was written; another one asks for what it always did.
func TestBoundPodsAreToldTheirNamespace(t *testing.T) {
	s := startShowing(t)
	at := func(field string) []corev1.EnvVar {
		return []corev1.EnvVar{{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: field}}}}
	}
	asks := func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = at(kinds.NamespaceField)
		p.Annotations[workloadv1alpha1.NamespaceAnnotation] = "kube-system" // which is nobody's to say
	}
	for name, told := range map[string]bool{"told": true, "untold": false} {
		made := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		asks(made)
		pod, err := s.owner(t).CoreV1().Pods(team).Create(t.Context(), made, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		binding := s.binding(pod)
		kinds.SetAPIAccess(binding, kinds.ProjectedAPIAccess)
		kinds.SetToldNamespace(binding, told)
		if err := s.shop.CoreV1().Pods(team).Bind(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := s.told(t, name, "uid-of-"+name); err != nil {
			t.Fatal(err)
		}
		_, err = s.owner(t).CoreV1().Pods(team).Patch(t.Context(), name, types.StrategicMergePatchType,
			[]byte(`{"spec":{"ephemeralContainers":[{"name":"d","image":"i","env":[{"name":"N","valueFrom":{"fieldRef":{"fieldPath":"metadata.namespace"}}}]}]}}`), metav1.PatchOptions{}, "ephemeralcontainers")
		if err != nil {
			t.Fatal(err)
		}
		field, annotation := kinds.NamespaceField, ""
		if told {
			field, annotation = kinds.ToldNamespaceField, team
		}
		below, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		env := below.Spec.Containers[0].Env
		if diff := cmp.Diff(at(field), env[len(env)-1:]); diff != "" || below.Annotations[workloadv1alpha1.NamespaceAnnotation] != annotation {
			t.Errorf("%s: it has annotations %v, and reads (-want +got):\n%s", name, below.Annotations, diff)
		}
		if got := below.Spec.EphemeralContainers[0].Env[0].ValueFrom.FieldRef.FieldPath; got != field {
			t.Errorf("%s: what is added to it reads %s, want %s", name, got, field)
		}
		here, err := s.owner(t).CoreV1().Pods(team).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(at(kinds.NamespaceField), here.Spec.Containers[0].Env); diff != "" {
			t.Errorf("%s: here it reads (-want +got):\n%s", name, diff)
		}
		// That it is told is no news of how it reaches the API, nor anybody's to change.
		if got := kinds.APIAccessOf(below); got != kinds.ProjectedAPIAccess {
			t.Errorf("%s: it has access %q", name, got)
		}
		_, err = s.owner(t).CoreV1().Pods(team).Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+workloadv1alpha1.APIAccessAnnotation+`":"Mounted,Namespace"}}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it to be the server's alone", name, err)
		}
	}
}
