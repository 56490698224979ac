package splitter

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// staying returns a StatefulSet and its leaf in east, which has its data there.
func staying(t *testing.T) (root, leaf *appsv1.StatefulSet) {
	root = &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "db", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}},
		Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2), ServiceName: "web"},
	}
	withClaims(root)
	return root, statefulSetLeaf(t, root, mirrorEast, 2)
}

// spaceIn is the namespace that a mirror has for front: what is made in others is in one of another name.
func spaceIn(mirror string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "front-" + mirror, UID: "space",
		Labels:      map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"},
		Annotations: map[string]string{lcctx.Annotation: mirror, workloadv1alpha1.RootAnnotation: "/front"}}}
}

// agentWith returns a DaemonSet that refers to a ConfigMap.
func agentWith(settings string) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "agent", UID: "agent", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", EnvFrom: []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: settings}},
	}}}}
	return d
}

// own makes of a Placement one of a single object.
func own(p *placementv1alpha1.Placement, resource, name string) *placementv1alpha1.Placement {
	p.Spec.Object = &placementv1alpha1.PlacedObject{Resource: resource, Name: name}
	if resource == "daemonsets" {
		p.Spec.Object.Group = "apps"
	}
	p.Name = placementv1alpha1.NameFor(p.Spec.Namespace, p.Spec.Object)
	p.UID = types.UID(p.Name)
	return p
}

// allowOnly returns a policy of the workspace above.
func allowOnly(clusters ...string) *placementv1alpha1.PlacementPolicy {
	return &placementv1alpha1.PlacementPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "bounds", UID: "bounds", Annotations: map[string]string{lcctx.Annotation: "root"}},
		Spec:       placementv1alpha1.PlacementPolicySpec{Allow: &placementv1alpha1.ClusterSelection{Names: clusters}},
	}
}

// TestBesideWhatStays: what is made after a move goes also where the data of a StatefulSet keeps that: what is for its pods, and what runs
// beside them with all it needs. But not against its own Placement, nor into a cluster that the workspace may not use any more, where only
// what bounds those that stay is made.
func TestBesideWhatStays(t *testing.T) {
	service, _ := pair("Service", "web")
	dedicated := targetOf("east", mirrorEast, "networkpolicies.networking.k8s.io")
	dedicated.Spec.DedicatedTo = "root:other"
	for name, tc := range map[string]struct {
		without func(leaf *appsv1.StatefulSet) // makes it one that does not stay
		more    ctrlclient.Object
		want    []string // kinds
	}{
		"Data":      {want: []string{"DaemonSet", "NetworkPolicy", "Service"}},
		"Allowed":   {more: allowOnly("east"), want: []string{"DaemonSet", "NetworkPolicy", "Service"}},
		"Withdrawn": {more: allowOnly("west"), want: []string{"NetworkPolicy"}},
		"Dedicated": {more: dedicated, want: []string{"NetworkPolicy"}},
		"Elsewhere": {more: own(placementOf("", "Placed", "mirror-west"), "daemonsets", "agent"), want: []string{"NetworkPolicy", "Service"}},
		"Nowhere":   {more: own(placementOf("", "Nowhere"), "daemonsets", "agent"), want: []string{"NetworkPolicy", "Service"}},
		"NoData":    {without: func(leaf *appsv1.StatefulSet) { leaf.Spec.VolumeClaimTemplates = nil }},
		"Tombstone": {without: func(leaf *appsv1.StatefulSet) { leaf.DeletionTimestamp = ptr.To(metav1.Now()) }},
	} {
		t.Run(name, func(t *testing.T) {
			root, leaf := staying(t)
			if tc.without != nil {
				tc.without(leaf)
			}
			agent, policy := agentWith("settings"), policyOf("shop", "front")
			objects := []ctrlclient.Object{root, leaf, service.DeepCopyObject().(ctrlclient.Object), agent, policy, spaceIn(mirrorEast), placementOf("", "Placed", "mirror-west")}
			if tc.more != nil {
				objects = append(objects, tc.more)
			}
			m := newMirrored(t, objects...)
			for kind, o := range map[string]ctrlclient.Object{"Service": service, "NetworkPolicy": policy, "DaemonSet": agent} {
				m.look(t, key{kind, client.KeyOf(o)})
				made := m.sources[kind].New()
				err := m.objects.Get(t.Context(), types.NamespacedName{Namespace: spaceIn(mirrorEast).Name, Name: o.GetName()}, made)
				if err != nil && !apierrors.IsNotFound(err) {
					t.Fatal(err)
				}
				if got, want := err == nil, slices.Contains(tc.want, kind); got != want {
					t.Errorf("a %s is made in east: %v, want %v", kind, got, want)
				}
			}
			mirrors, err := m.referencing(t.Context(), m.sources["ConfigMap"], client.Key{Cluster: "shop", Namespace: "front", Name: "settings"})
			if got := slices.Contains(mirrors, logicalcluster.Name(mirrorEast)); err != nil || got != (name == "Data" || name == "Allowed") {
				t.Errorf("a ConfigMap of the DaemonSet goes to east: %v, %v", got, err)
			}
		})
	}
}

// TestKeptBesideWhatStays: what is there already is kept up to date beside a StatefulSet that stays, wherever it may be made now.
func TestKeptBesideWhatStays(t *testing.T) {
	root, leaf := staying(t)
	agent := agentWith("settings")
	copied := daemonSetLeaf(t, agent, mirrorEast, appsv1.DaemonSetStatus{ObservedGeneration: 1})
	agent.Generation, agent.Spec.MinReadySeconds = 2, 7
	m := newMirrored(t, root, leaf, agent, copied, spaceIn(mirrorEast), allowOnly("west"), placementOf("", "Placed", "mirror-west"), own(placementOf("", "Placed", "mirror-west"), "daemonsets", "agent"))
	m.look(t, key{"DaemonSet", client.KeyOf(agent)})
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(copied), copied); err != nil || copied.DeletionTimestamp != nil || copied.Spec.MinReadySeconds != 7 {
		t.Errorf("the DaemonSet in east is %+v since %v, %v", copied.Spec, copied.DeletionTimestamp, err)
	}
}

// TestMoveAwaitsOnlyWhereItGoes: a DaemonSet leaves a cluster although another, in which it is only beside what stays, is not heard of.
func TestMoveAwaitsOnlyWhereItGoes(t *testing.T) {
	root, leaf := staying(t)
	agent := agentWith("settings")
	agent.Spec.Template.Spec = corev1.PodSpec{}
	serves := appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberReady: 2, NumberAvailable: 2}
	const mirrorNorth = "mirrornorth00000"
	east, left := targetOf("east", mirrorEast), daemonSetLeaf(t, agent, mirrorNorth, serves)
	east.Status.Conditions = nil
	m := newMirrored(t, root, leaf, agent, east, targetOf("west", mirrorWest, "daemonsets.apps"), left,
		daemonSetLeaf(t, agent, mirrorWest, serves), daemonSetLeaf(t, agent, mirrorEast, serves), placementOf("", "Placed", mirrorWest))
	s, k := m.sources["DaemonSet"], client.KeyOf(agent)
	seen, _ := s.get(k)
	if _, err := m.copies(t.Context(), s, seen, m.placement(s, k), s.leaves(k), nil); err != nil {
		t.Fatal(err)
	}
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(left), left); err != nil || left.DeletionTimestamp == nil {
		t.Errorf("north is not left for west: %v", err)
	}
}

// TestNotCarriedBesideWhatStays: a cluster that does not carry DaemonSets is awaited, and told of, where one is placed, and not where it
// would be beside what stays.
func TestNotCarriedBesideWhatStays(t *testing.T) {
	root, leaf := staying(t)
	agent := agentWith("settings")
	m := newMirrored(t, root, leaf, agent, targetOf("east", mirrorEast), targetOf("west", mirrorWest), placementOf("", "Placed", mirrorWest))
	s, k := m.sources["DaemonSet"], client.KeyOf(agent)
	sites := m.copySites(s, agent, m.placement(s, k), []logicalcluster.Name{mirrorEast, mirrorWest}, nil, nil)
	var names []string
	for _, st := range sites {
		if st.assigned {
			names = append(names, st.name)
		}
	}
	if why := notCarriedTo(s, sites); !slices.Equal(names, []string{"west"}) || why == nil || strings.Contains(why.Message, "east") {
		t.Errorf("assigned are %v, and it is told %v", names, why)
	}
}

// TestAddressesBesideWhatStays: where a namespace has left, and a StatefulSet stays, a load balancer may lead to no pod. Its address is that of
// the Service only if the Service is placed there.
func TestAddressesBesideWhatStays(t *testing.T) {
	service, _ := pair("Service", "web")
	k, _ := kinds.ByKind("Service")
	below, _, err := render(k, service, k.Content(service), spaceIn(mirrorEast).Name, false)
	if err != nil {
		t.Fatal(err)
	}
	below.SetUID("leaf-web")
	below.GetAnnotations()[lcctx.Annotation] = mirrorEast
	below.(*corev1.Service).Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	for name, tc := range map[string]struct {
		placed string
		want   []corev1.LoadBalancerIngress
	}{
		"Left": {mirrorWest, nil},
		"Own":  {mirrorEast, []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			root, leaf := staying(t)
			told := service.DeepCopyObject().(*corev1.Service)
			m := newMirrored(t, root, leaf, told, below.DeepCopyObject().(ctrlclient.Object), placementOf("", "Placed", mirrorWest),
				own(placementOf("", "Placed", tc.placed), "services", "web"))
			m.look(t, key{"Service", client.KeyOf(told)})
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(told), told); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, told.Status.LoadBalancer.Ingress); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWhatStaysHasItsService: a StatefulSet that stays and is changed has the Service that gives its pods their names before they are updated.
func TestWhatStaysHasItsService(t *testing.T) {
	service, _ := pair("Service", "web")
	root, leaf := staying(t)
	root.Generation, root.Spec.Template.Spec.Hostname = 2, "another"
	m := newMirrored(t, root, leaf, service, spaceIn(mirrorEast), placementOf("", "Placed", "mirror-west"))
	m.look(t, key{"StatefulSet", client.KeyOf(root)})
	at := types.NamespacedName{Namespace: spaceIn(mirrorEast).Name, Name: "web"}
	if err := m.objects.Get(t.Context(), at, &corev1.Service{}); err != nil {
		t.Errorf("its Service: %v", err)
	}
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), leaf); err != nil || leaf.Spec.Template.Spec.Hostname != "another" {
		t.Errorf("the leaf is not updated: %v, %v", leaf.Spec.Template.Spec, err)
	}
}

// TestLeavesAfterWhatStays: what is beside a StatefulSet that stays is there as long as that, by the last of its rollouts, and not longer.
func TestLeavesAfterWhatStays(t *testing.T) {
	for name, stays := range map[string]bool{"Stays": true, "Gone": false} {
		t.Run(name, func(t *testing.T) {
			nowhere := func() ctrlclient.Object {
				p := placementOf("", "Nowhere")
				p.Status.Conditions[0].ObservedGeneration = p.Generation
				return p
			}
			objects := func(more ...ctrlclient.Object) []ctrlclient.Object {
				root, leaf := staying(t)
				if stays {
					more = append(more, leaf)
				}
				return append(more, root, nowhere())
			}
			agent := agentWith("settings")
			copied := daemonSetLeaf(t, agent, mirrorEast, appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2})
			m := newMirrored(t, objects(agent, copied)...)
			m.look(t, key{"DaemonSet", client.KeyOf(agent)})
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(copied), copied); err != nil || (copied.DeletionTimestamp == nil) != stays {
				t.Errorf("the DaemonSet is a tombstone since %v, %v; want none: %v", copied.DeletionTimestamp, err, stays)
			}
			told := &appsv1.DaemonSet{}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(agent), told); err != nil {
				t.Fatal(err)
			}
			if s := told.Status; stays && (s.UpdatedNumberScheduled != 2 || s.ObservedGeneration != 1) {
				t.Errorf("the DaemonSet does not end its rollout: %+v", s)
			}
			service, whole := pair("Service", "web")
			m = newMirrored(t, objects(service, whole)...)
			m.look(t, key{"Service", client.KeyOf(service)})
			if got := m.gone(t, whole); got == stays {
				t.Errorf("the Service is gone: %v", got)
			}
		})
	}
}

// TestStayingIsHeardOf: when a StatefulSet begins to stay where it is not placed, or does not any more, what goes with that is asked for.
func TestStayingIsHeardOf(t *testing.T) {
	service, _ := pair("Service", "web")
	c := unrun(t)
	for kind, o := range map[string]ctrlclient.Object{"Service": service, "NetworkPolicy": policyOf("shop", "front"), "DaemonSet": agentWith("settings")} {
		c.sources[kind].list = func(cluster logicalcluster.Name, _ string) []ctrlclient.Object {
			if cluster == "shop" {
				return []ctrlclient.Object{o}
			}
			return nil
		}
	}
	_, stays := staying(t)
	ends := stays.DeepCopy()
	ends.DeletionTimestamp = ptr.To(metav1.Now())
	never := stays.DeepCopy()
	delete(never.Annotations, workloadv1alpha1.AppliedAnnotation)
	never.Status = appsv1.StatefulSetStatus{}
	for name, tc := range map[string]struct {
		change change
		want   bool
	}{
		"Begins":  {change{old: never, new: stays}, true},
		"Shown":   {change{new: stays}, true},
		"Stays":   {change{old: stays, new: stays}, false},
		"Ends":    {change{old: stays, new: ends}, true},
		"Deleted": {change{old: stays, deleted: true}, true},
		"Gone":    {change{old: ends, deleted: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := c.asks(t, func() { c.onObject(c.sources["StatefulSet"].Kind, tc.change) })
			for kind, name := range map[string]string{"Service": "web", "NetworkPolicy": "guard", "DaemonSet": "agent"} {
				k := key{kind, client.Key{Cluster: "shop", Namespace: "front", Name: name}}
				if got := slices.Contains(asked, k); got != tc.want {
					t.Errorf("%s is asked for: %v, want %v", kind, got, tc.want)
				}
			}
		})
	}
}

// TestWhatMayGoBesideIsHeardOf: what goes where something stays is asked for when more is carried there, or the cluster may be used again.
func TestWhatMayGoBesideIsHeardOf(t *testing.T) {
	root, leaf := staying(t)
	m := newMirrored(t, root, leaf, agentWith("settings"), placementOf("", "Placed", "mirror-west"))
	c := &unran{m.Controller}
	target := func(change func(*workloadv1alpha1.SyncTarget)) func() {
		changed := targetOf("east", mirrorEast)
		change(changed)
		return func() {
			c.onSyncTarget(client.Event[*workloadv1alpha1.SyncTarget]{Old: targetOf("east", mirrorEast), New: changed})
		}
	}
	policy := func(before, now *placementv1alpha1.PlacementPolicy) func() {
		return func() { c.onPolicy(client.Event[*placementv1alpha1.PlacementPolicy]{Old: before, New: now}) }
	}
	for name, tc := range map[string]struct {
		event func()
		want  bool
	}{
		"Carries":   {target(func(t *workloadv1alpha1.SyncTarget) { t.Status.CarriedResources = []string{"daemonsets.apps"} }), true},
		"Labelled":  {target(func(t *workloadv1alpha1.SyncTarget) { t.Labels = map[string]string{"region": "eu"} }), true},
		"Dedicated": {target(func(t *workloadv1alpha1.SyncTarget) { t.Spec.DedicatedTo = "root:shop" }), true},
		"Heartbeat": {target(func(*workloadv1alpha1.SyncTarget) {}), false},
		"Unhidden": {func() {
			nearer := targetOf("east", mirrorWest)
			nearer.Annotations[lcctx.Annotation] = "shop"
			c.onSyncTarget(client.Event[*workloadv1alpha1.SyncTarget]{Old: nearer})
		}, true},
		"Policy":   {policy(allowOnly("west"), allowOnly("east")), true},
		"NoPolicy": {policy(allowOnly("west"), nil), true},
		"Same":     {policy(allowOnly("west"), allowOnly("west")), false},
	} {
		t.Run(name, func(t *testing.T) {
			agent := key{"DaemonSet", client.Key{Cluster: "shop", Namespace: "front", Name: "agent"}}
			if got := slices.Contains(c.asks(t, tc.event), agent); got != tc.want {
				t.Errorf("the DaemonSet is asked for: %v, want %v", got, tc.want)
			}
		})
	}
}
