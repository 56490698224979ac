package splitter

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// asks returns a workload of two pods of an image that ask for their namespace.
func asks(t *testing.T, kind, image string, generation int64) ctrlclient.Object {
	t.Helper()
	root := mustKind(t, kind).New()
	switch o := root.(type) {
	case *appsv1.Deployment:
		o.Spec.Replicas, o.Spec.Selector = ptr.To[int32](2), &metav1.LabelSelector{}
	case *appsv1.ReplicaSet:
		o.Spec.Replicas = ptr.To[int32](2)
	case *corev1.ReplicationController:
		o.Spec.Replicas = ptr.To[int32](2)
	case *appsv1.StatefulSet:
		o.Spec.Replicas = ptr.To[int32](2)
	}
	root.SetNamespace("front")
	root.SetName("db")
	root.SetUID("root")
	root.SetGeneration(generation)
	root.SetAnnotations(map[string]string{lcctx.Annotation: "shop"})
	mustKind(t, kind).Template(root).Spec.Containers = []corev1.Container{{Name: "db", Image: image, Env: []corev1.EnvVar{
		{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: kinds.NamespaceField}}},
	}}}
	return root
}

// leafOf is the rendering of such a workload in a mirror, as its cluster has taken it.
func leafOf(t *testing.T, root ctrlclient.Object, mirror string, told bool) ctrlclient.Object {
	t.Helper()
	k, _ := kinds.Of(root)
	template := k.Template(root)
	down := toldAs(given(k, root, gift{access: kinds.APIAccessFor(&template.Spec, &corev1.ServiceAccount{}), template: kinds.TemplateDigest(template)}), told)
	leaf, _, err := render(k, down, k.Content(down), spaceIn(mirror).Name, false)
	if k.Division != nil {
		st := &site{step: Step{Write: true, Replicas: 2}, roll: Roll{Verbatim: true}}
		leaf, err = st.render(k, down, spaceIn(mirror).Name)
	}
	if err != nil {
		t.Fatal(err)
	}
	leaf.SetUID(types.UID("leaf-" + mirror))
	leaf.SetGeneration(1)
	annotations := leaf.GetAnnotations()
	annotations[lcctx.Annotation], annotations[workloadv1alpha1.AppliedAnnotation] = mirror, annotations[workloadv1alpha1.RenderedAnnotation]
	leaf.SetAnnotations(annotations)
	return leaf
}

// knowing is a target whose DNS knows workspaces, or does not.
func knowing(name, mirror string, known bool) *workloadv1alpha1.SyncTarget {
	var carries []string
	for _, k := range kinds.All {
		carries = append(carries, k.Carried())
	}
	target := targetOf(name, mirror, carries...)
	target.Spec.DNSKnowsWorkspaces = known
	return target
}

// toldBy is where the pods of a leaf read their namespace, and what they have of it.
func toldBy(t *testing.T, leaf ctrlclient.Object) (field, annotation string) {
	t.Helper()
	k, _ := kinds.Of(leaf)
	template := k.Template(leaf)
	return template.Spec.Containers[0].Env[len(template.Spec.Containers[0].Env)-1].ValueFrom.FieldRef.FieldPath, template.Annotations[workloadv1alpha1.NamespaceAnnotation]
}

// TestIsTold: what pods are told holds for as long as their template does, in one cluster.
func TestIsTold(t *testing.T) {
	root := asks(t, "Deployment", "db:2", 2)
	k, template := mustKind(t, "Deployment"), kinds.TemplateDigest(&root.(*appsv1.Deployment).Spec.Template)
	as := func(image string, told bool, change func(leaf ctrlclient.Object)) ctrlclient.Object {
		leaf := leafOf(t, asks(t, "Deployment", image, 1), mirrorEast, told)
		if change != nil {
			change(leaf)
		}
		return leaf
	}
	annotate := func(name, value string) func(ctrlclient.Object) {
		return func(leaf ctrlclient.Object) { kinds.SetAnnotation(leaf, name, value) }
	}
	for name, tc := range map[string]struct {
		reason string
		leaf   ctrlclient.Object // nil: there is none
		anyhow bool              // whatever its DNS knows, it is
		want   bool
	}{
		"none":              {reason: "it goes there now"},
		"told":              {reason: "what runs is not replaced since its DNS knows nothing any more", leaf: as("db:2", true, nil), anyhow: true, want: true},
		"untold":            {reason: "nor since it does by now", leaf: as("db:2", false, nil), anyhow: true},
		"told of another":   {reason: "another template is rolled out in any case", leaf: as("db:1", true, nil)},
		"untold of another": {reason: "another template is rolled out in any case", leaf: as("db:1", false, nil)},
		"another root's": {reason: "nothing of it is this one's", leaf: as("db:2", true, func(leaf ctrlclient.Object) {
			leaf.SetLabels(map[string]string{workloadv1alpha1.RootUIDLabel: "earlier"})
		})},
		"of another version":   {reason: "defaults differ, and the generation does not", leaf: as("db:1", false, annotate(workloadv1alpha1.RootGenerationAnnotation, "2")), anyhow: true},
		"of before, as it is":  {reason: "a version that tells more rolls nothing out", leaf: as("db:2", false, annotate(workloadv1alpha1.TemplateAnnotation, "")), anyhow: true},
		"of before, and other": {reason: "the next template has it", leaf: as("db:1", false, annotate(workloadv1alpha1.TemplateAnnotation, ""))},
	} {
		for _, known := range []bool{true, false} {
			want := known
			if tc.anyhow {
				want = tc.want
			}
			if got := isTold(k, root, tc.leaf, template, known); got != want {
				t.Errorf("%s, where the DNS knows: %v: told: %v, want %v: %s", name, known, got, want, tc.reason)
			}
		}
	}
}

// TestToldWhereTheDNSKnows: of each kind, pods of a template that goes to a cluster are told as its DNS knows; and that this changes writes nothing.
func TestToldWhereTheDNSKnows(t *testing.T) {
	for _, kind := range []string{"Deployment", "ReplicaSet", "ReplicationController", "DaemonSet", "StatefulSet", "Job"} {
		for name, tc := range map[string]struct {
			leaf  ctrlclient.Object
			known bool
			told  bool
			wrote bool
		}{
			"new":                  {nil, true, true, true},
			"new, unknown":         {nil, false, false, true},
			"known since":          {leafOf(t, asks(t, kind, "db:2", 2), mirrorEast, false), true, false, false},
			"unknown since":        {leafOf(t, asks(t, kind, "db:2", 2), mirrorEast, true), false, true, false},
			"scaled":               {leafOf(t, asks(t, kind, "db:2", 1), mirrorEast, false), true, false, true},
			"next":                 {leafOf(t, asks(t, kind, "db:1", 1), mirrorEast, false), true, true, true},
			"next, unknown":        {leafOf(t, asks(t, kind, "db:1", 1), mirrorEast, true), false, false, true},
			"not told, as nowhere": {leafOf(t, asks(t, kind, "db:1", 1), mirrorEast, false), false, false, true},
		} {
			if kind == "Job" && strings.Contains(name, "next") {
				continue // its template never changes
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				root := asks(t, kind, "db:2", 2)
				p := placementOf("", "Placed", mirrorEast)
				p.Status.Conditions[0].Status = metav1.ConditionTrue
				objects := []ctrlclient.Object{root, spaceIn(mirrorEast), knowing("east", mirrorEast, tc.known), p}
				if tc.leaf != nil {
					objects = append(objects, tc.leaf)
				}
				m := newMirrored(t, objects...)
				before := mustKind(t, kind).New()
				at := ctrlclient.ObjectKey{Namespace: spaceIn(mirrorEast).Name, Name: "db"}
				if tc.leaf != nil {
					if err := m.objects.Get(t.Context(), at, before); err != nil {
						t.Fatal(err)
					}
				}
				m.look(t, key{kind, client.KeyOf(root)})
				leaf := mustKind(t, kind).New()
				if err := m.objects.Get(t.Context(), at, leaf); err != nil {
					t.Fatal(err)
				}
				want := [2]string{kinds.NamespaceField, ""}
				if tc.told {
					want = [2]string{kinds.ToldNamespaceField, "front"}
				}
				field, annotation := toldBy(t, leaf)
				if got := [2]string{field, annotation}; got != want || kinds.IsToldNamespace(leaf) != tc.told {
					t.Errorf("its pods read %q, told: %v; want %q, %v", got, kinds.IsToldNamespace(leaf), want, tc.told)
				}
				if wrote := before.GetResourceVersion() != leaf.GetResourceVersion(); wrote != tc.wrote {
					t.Errorf("the leaf was written: %v, want %v: %+v", wrote, tc.wrote, leaf.GetAnnotations())
				}
				up := mustKind(t, kind).New()
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), up); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(mustKind(t, kind).Template(root), mustKind(t, kind).Template(up)); diff != "" {
					t.Errorf("the root's template was changed:\n%s", diff)
				}
			})
		}
	}
}

// TestToldWhereItGoes: what moves is told as the cluster that it moves to knows, the leaf that it leaves behind stays as it is, and a cluster beside it
// counts as having the template that goes there.
func TestToldWhereItGoes(t *testing.T) {
	for _, kind := range []string{"Deployment", "DaemonSet"} {
		for _, known := range []bool{true, false} {
			root := asks(t, kind, "db:1", 1)
			left := leafOf(t, root, mirrorWest, !known)
			servesAll(left)
			p := placementOf("", "Placed", mirrorEast)
			p.Status.Conditions[0].Status = metav1.ConditionTrue
			m := newMirrored(t, root.DeepCopyObject().(ctrlclient.Object), left, spaceIn(mirrorEast), spaceIn(mirrorWest), knowing("east", mirrorEast, known), knowing("west", mirrorWest, !known), p)
			m.look(t, key{kind, client.KeyOf(root)})
			for mirror, want := range map[string]bool{mirrorEast: known, mirrorWest: !known} {
				leaf := mustKind(t, kind).New()
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKey{Namespace: spaceIn(mirror).Name, Name: "db"}, leaf); err != nil {
					t.Fatal(err)
				}
				field, _ := toldBy(t, leaf)
				if told := field == kinds.ToldNamespaceField; told != want || kinds.IsToldNamespace(leaf) != want {
					t.Errorf("%s, in %s: its pods are told: %v, and it says %v; want %v", kind, mirror, told, kinds.IsToldNamespace(leaf), want)
				}
			}
		}
	}
	// Of two clusters with what each is to have, nothing rolls.
	root := asks(t, "Deployment", "db:1", 1)
	east, west := leafOf(t, root, mirrorEast, true), leafOf(t, root, mirrorWest, false)
	servesAll(east)
	servesAll(west)
	sites := []*site{
		{id: "east", mirror: mirrorEast, assigned: true, weight: 1, leaf: east, told: true},
		{id: "west", mirror: mirrorWest, assigned: true, weight: 1, leaf: west},
	}
	down := given(mustKind(t, "Deployment"), root, gift{access: kinds.MountedAPIAccess})
	templates := templatesOf(down)
	for _, st := range sites {
		if r, ok := st.rolling(templates(st), 2); !ok || !r.SameTemplate {
			t.Errorf("%s is to get another template: %+v", st.id, r)
		}
	}
}

// servesAll has a leaf's cluster say that all of its pods serve.
func servesAll(leaf ctrlclient.Object) {
	switch o := leaf.(type) {
	case *appsv1.Deployment:
		o.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
	case *appsv1.DaemonSet:
		o.Status = appsv1.DaemonSetStatus{ObservedGeneration: 1, CurrentNumberScheduled: 2, DesiredNumberScheduled: 2, NumberReady: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2}
	case *batchv1.Job:
		o.Status = batchv1.JobStatus{Active: 1}
	}
}

// TestToldSinceTheUncachedRead: where a cluster is left for another, the leaves that are read then say what pods are told, and not those that were seen.
func TestToldSinceTheUncachedRead(t *testing.T) {
	root := asks(t, "Deployment", "db:1", 1)
	seen, live, left := leafOf(t, asks(t, "Deployment", "db:0", 0), mirrorEast, false), leafOf(t, root, mirrorEast, true), leafOf(t, root, mirrorWest, false)
	for _, leaf := range []ctrlclient.Object{seen, live, left} {
		servesAll(leaf)
	}
	p := placementOf("", "Placed", mirrorEast)
	p.Status.Conditions[0].Status = metav1.ConditionTrue
	m := newMirrored(t, root, live, left, spaceIn(mirrorEast), spaceIn(mirrorWest), knowing("east", mirrorEast, false), knowing("west", mirrorWest, false), p)
	s, k := m.sources["Deployment"], client.KeyOf(root)
	if _, err := m.workload(t.Context(), s, root, m.placement(s, k), []ctrlclient.Object{seen, left}, nil); err != nil {
		t.Fatal(err)
	}
	m.stillTold(t, live)

	agent := asks(t, "DaemonSet", "db:1", 1)
	seen, live, left = leafOf(t, agent, mirrorEast, false), leafOf(t, agent, mirrorEast, true), leafOf(t, agent, mirrorWest, false)
	for _, leaf := range []ctrlclient.Object{seen, live, left} {
		servesAll(leaf)
	}
	m = newMirrored(t, agent, live, left, spaceIn(mirrorEast), spaceIn(mirrorWest), knowing("east", mirrorEast, false), knowing("west", mirrorWest, false), p.DeepCopy())
	s, k = m.sources["DaemonSet"], client.KeyOf(agent)
	if _, err := m.copies(t.Context(), s, agent, m.placement(s, k), []ctrlclient.Object{seen, left}, nil); err != nil {
		t.Fatal(err)
	}
	m.stillTold(t, live)
	if !m.goes(t, left) {
		t.Error("west is not left for east, which has the DaemonSet as it is to be")
	}
}

// stillTold wants a leaf to be as it was.
func (m *mirrored) stillTold(t *testing.T, leaf ctrlclient.Object) {
	t.Helper()
	now := leaf.DeepCopyObject().(ctrlclient.Object)
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), now); err != nil {
		t.Fatal(err)
	}
	if field, annotation := toldBy(t, now); field != kinds.ToldNamespaceField || annotation != "front" || !kinds.IsToldNamespace(now) {
		t.Errorf("%T: its pods read %s, which is %q", leaf, field, annotation)
	}
}

// goes says whether a leaf is a tombstone, or gone.
func (m *mirrored) goes(t *testing.T, leaf ctrlclient.Object) bool {
	t.Helper()
	now := leaf.DeepCopyObject().(ctrlclient.Object)
	err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), now)
	if ctrlclient.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err != nil || now.GetDeletionTimestamp() != nil
}

// TestToldWhenBound: a pod that is bound says for good whether it is told; one in the network of its node is not, which the DNS takes for the node.
func TestToldWhenBound(t *testing.T) {
	for name, tc := range map[string]struct {
		known, hostNetwork bool
		want               string
	}{
		"known":           {known: true, want: "Projected,Namespace"},
		"unknown":         {want: "Projected"},
		"network of node": {known: true, hostNetwork: true, want: "Projected"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "solo", UID: "pod", Annotations: map[string]string{lcctx.Annotation: "shop"}}, Spec: corev1.PodSpec{HostNetwork: tc.hostNetwork}}
		m := newMirrored(t, spaceIn(mirrorEast), knowing("east", mirrorEast, tc.known))
		var binding *corev1.Binding
		m.clients.Objects = interceptor.NewClient(m.objects, interceptor.Funcs{SubResourceCreate: func(_ context.Context, _ ctrlclient.Client, _ string, _, subResource ctrlclient.Object, _ ...ctrlclient.SubResourceCreateOption) error {
			binding = subResource.(*corev1.Binding)
			return nil
		}})
		if ready, err := m.bindTo(t.Context(), pod, mirrorEast, "east"); err != nil || !ready {
			t.Fatalf("%s: ready: %v, %v", name, ready, err)
		}
		want := map[string]string{workloadv1alpha1.MirrorNamespaceAnnotation: spaceIn(mirrorEast).Name, workloadv1alpha1.APIAccessAnnotation: tc.want}
		if diff := cmp.Diff(want, binding.Annotations); diff != "" {
			t.Errorf("%s: the binding says (-want +got):\n%s", name, diff)
		}
	}
}

// TestNotToldInTheNetworkOfTheNode: nor is a template of such.
func TestNotToldInTheNetworkOfTheNode(t *testing.T) {
	m := newMirrored(t, knowing("east", mirrorEast, true))
	for hostNetwork, want := range map[bool]bool{true: false, false: true} {
		if got := m.dnsKnows(mirrorEast, &corev1.PodSpec{HostNetwork: hostNetwork}); got != want {
			t.Errorf("in the network of the node: %v: the DNS knows: %v, want %v", hostNetwork, got, want)
		}
	}
	if m.dnsKnows("mirrornobody0000", &corev1.PodSpec{}) {
		t.Error("of a cluster that is not known it is known")
	}
}
