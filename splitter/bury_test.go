package splitter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// mirrorEast has the form of the names of mirrors.
const mirrorEast = "mirroreast000000"

// mirrored is a workspace, shop, whose namespace front has roots with leaves in the mirror of east.
type mirrored struct {
	*Controller
	objects ctrlclient.WithWatch
	clock   *testclock.FakeClock
	later   atomic.Bool // the namespaces of mirrors hold a thing that a later version put there
}

// RoundTrip answers what the splitter asks by resource, of mirrors: which resources there are, and what a namespace holds.
func (m *mirrored) RoundTrip(req *http.Request) (*http.Response, error) {
	path, _ := strings.CutPrefix(req.URL.Path, "/clusters/"+mirrorEast)
	things := schema.GroupVersionResource{Group: "later.example", Version: "v1", Resource: "things"}
	resources, listed := []schema.GroupVersionResource{things, corev1.SchemeGroupVersion.WithResource("pods")}, []schema.GroupVersionKind{{}, corev1.SchemeGroupVersion.WithKind("PodList")}
	for _, k := range kinds.All {
		resources, listed = append(resources, k.GVR), append(listed, k.GVK.GroupVersion().WithKind(k.GVK.Kind+"List"))
	}
	if path == "/api" || path == "/apis" {
		list := apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList"}}
		for _, r := range resources {
			if (r.Group == "") == (path == "/api") {
				list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: r.Group}, Versions: []apidiscoveryv2.APIVersionDiscovery{{
					Version: r.Version, Resources: []apidiscoveryv2.APIResourceDiscovery{{Resource: r.Resource, Scope: apidiscoveryv2.ScopeNamespace, Verbs: []string{"list", "delete"}}},
				}}})
			}
		}
		return answer(list, nil)
	}
	parts := strings.Split(path, "/") // .../namespaces/<namespace>/<resource>
	resource, namespace := parts[len(parts)-1], parts[len(parts)-2]
	list := &metav1.PartialObjectMetadataList{}
	i := slices.IndexFunc(resources, func(r schema.GroupVersionResource) bool { return r.Resource == resource })
	switch {
	case i > 0:
		list.SetGroupVersionKind(listed[i])
		return answer(list, m.objects.List(req.Context(), list, ctrlclient.InNamespace(namespace)))
	case i == 0 && m.later.Load():
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	}
	return answer(list, nil)
}

func answer(what any, err error) (*http.Response, error) {
	if list, ok := what.(*metav1.PartialObjectMetadataList); ok {
		list.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"))
		for i := range list.Items {
			list.Items[i].SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
		}
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	err = errors.Join(err, json.NewEncoder(w).Encode(what))
	return w.Result(), err
}

// targetOf returns a SyncTarget that is heard of, whose syncer carries what all do, and some more.
func targetOf(name, mirror string, carries ...string) *workloadv1alpha1.SyncTarget {
	t := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: map[string]string{lcctx.Annotation: "root"}}}
	t.Status.Mirror, t.Status.CarriedResources = mirror, carries
	meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: "Heard"})
	return t
}

// byName is for the fake, which knows no field by itself.
func byName(o ctrlclient.Object) []string { return []string{o.GetName()} }

// newMirrored starts a Controller whose informers show objects, and SyncTarget east, unless it is among them, with its mirror.
func newMirrored(t *testing.T, objects ...ctrlclient.Object) *mirrored {
	t.Helper()
	var carries []string
	for _, k := range kinds.All {
		carries = append(carries, k.GVR.GroupResource().String())
	}
	east := targetOf("east", mirrorEast, carries...)
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{lcctx.Annotation: mirrorEast}}}
	lc.Spec.Use = corev1alpha1.LogicalClusterUseMirror
	if !slices.ContainsFunc(objects, func(o ctrlclient.Object) bool { return o.GetName() == east.Name }) {
		objects = append(objects, east)
	}
	objects = append(objects, lc)
	shop, root, west := lc.DeepCopy(), lc.DeepCopy(), lc.DeepCopy()
	west.Annotations[lcctx.Annotation] = mirrorWest
	shop.Annotations[lcctx.Annotation], root.Annotations[lcctx.Annotation] = "shop", "root"
	shop.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	shop.Spec = corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{Resource: "workspaces", Cluster: "root"}}
	root.Spec = corev1alpha1.LogicalClusterSpec{}
	m := &mirrored{clock: testclock.NewFakeClock(time.Unix(0, 0))}
	m.objects = fake.NewClientBuilder().WithScheme(client.Scheme).WithObjects(objects...).
		WithStatusSubresource(east, &placementv1alpha1.Placement{}, &appsv1.Deployment{}, &appsv1.DaemonSet{}, &appsv1.StatefulSet{}, &batchv1.Job{}, &appsv1.ReplicaSet{}, &corev1.ReplicationController{}, &corev1.PersistentVolumeClaim{}, &corev1.Service{}, &networkingv1.Ingress{}).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
			asked := (&ctrlclient.ListOptions{}).ApplyOptions(opts)
			in, _ := lcctx.ClusterFrom(ctx)
			if in.Wildcard && asked.Namespace == kinds.DownstreamNamespace("shop", "front", false) { // has in each mirror another name, as all is in one store
				opts = append(opts, ctrlclient.InNamespace(""))
			}
			err := c.List(ctx, list, opts...)
			if all, ok := list.(*corev1alpha1.LogicalClusterList); ok { // of which the fake has one of a name
				all.Items = append(all.Items, *shop, *root, *west)
			}
			return err
		}, Get: func(ctx context.Context, c ctrlclient.WithWatch, key ctrlclient.ObjectKey, obj ctrlclient.Object, opts ...ctrlclient.GetOption) error {
			if key.Name == "" {
				return errors.New("resource name may not be empty") // as a client says without a request
			}
			return c.Get(ctx, key, obj, opts...)
		}}).
		WithIndex(&appsv1.StatefulSet{}, metav1.ObjectNameField, byName).WithIndex(&batchv1.Job{}, metav1.ObjectNameField, byName).
		WithIndex(&corev1.PersistentVolumeClaim{}, metav1.ObjectNameField, byName).Build()
	clients, err := client.New(&rest.Config{Host: "http://hub", Transport: m})
	if err != nil {
		t.Fatal(err)
	}
	clients.Objects = m.objects
	informers, err := client.NewInformers(clients)
	if err != nil {
		t.Fatal(err)
	}
	if m.Controller, err = New(clients, informers, m.clock); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	started := []interface {
		Run(context.Context)
		WaitSynced(context.Context) error
	}{informers.LogicalClusters, informers.SyncTargets, informers.Placements, informers.PlacementPolicies, informers.Namespaces, informers.Of("Deployment"), informers.Of("ReplicaSet"), informers.Of("ReplicationController"), informers.Of("DaemonSet"), informers.Of("StatefulSet"), informers.Of("Job"), informers.Of(kinds.ClaimKind), informers.Of("Service"), informers.Of("Ingress"), informers.Of("NetworkPolicy"), informers.ReplicaSets, informers.ControllerRevisions}
	for _, i := range started {
		running.Go(func() { i.Run(ctx) })
	}
	for _, i := range started {
		if err := i.WaitSynced(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// pair returns a root and its leaf in the mirror of east.
func pair(kind, name string) (root, leaf ctrlclient.Object) {
	root, leaf = &corev1.Service{}, &corev1.Service{}
	if kind == "Deployment" {
		spec := appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{}, Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}},
		}}
		root, leaf = &appsv1.Deployment{Spec: spec}, &appsv1.Deployment{Spec: spec}
	}
	for _, o := range []ctrlclient.Object{root, leaf} {
		o.SetName(name)
	}
	root.SetNamespace("front")
	root.SetUID(types.UID("root-" + name))
	root.SetAnnotations(map[string]string{lcctx.Annotation: "shop"})
	leaf.SetNamespace("front-hash")
	leaf.SetUID(types.UID("leaf-" + name))
	leaf.SetAnnotations(map[string]string{lcctx.Annotation: mirrorEast, workloadv1alpha1.RootAnnotation: "front/" + name})
	leaf.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: "shop", workloadv1alpha1.RootUIDLabel: "root-" + name})
	return root, leaf
}

// placementOf returns the Placement of namespace front, or of one Deployment there.
func placementOf(deployment, reason string, mirrors ...string) *placementv1alpha1.Placement {
	p := &placementv1alpha1.Placement{}
	p.Spec.Namespace = "front"
	if deployment != "" {
		p.Spec.Object = &placementv1alpha1.PlacedObject{Group: "apps", Resource: "deployments", Name: deployment}
	}
	p.Name = placementv1alpha1.NameFor("front", p.Spec.Object)
	p.UID = types.UID(p.Name)
	p.Annotations = map[string]string{lcctx.Annotation: "shop"}
	for _, m := range mirrors {
		p.Spec.Clusters = append(p.Spec.Clusters, placementv1alpha1.PlacedCluster{Name: m, UID: types.UID(m), Mirror: m, Weight: 1})
	}
	meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{Type: placementv1alpha1.PlacementPlaced, Status: metav1.ConditionFalse, Reason: reason})
	return p
}

// look reconciles a key as the queue does: what an informer does not show yet is tried again.
func (m *mirrored) look(t *testing.T, k key) (again time.Duration) {
	t.Helper()
	for began := time.Now(); ; runtime.Gosched() {
		again, err := m.reconcile(t.Context(), k)
		if err == nil {
			return again
		}
		if !apierrors.IsConflict(err) || time.Since(began) > time.Minute {
			t.Fatal(err)
		}
	}
}

// gone says whether a leaf was deleted.
func (m *mirrored) gone(t *testing.T, leaf ctrlclient.Object) bool {
	t.Helper()
	err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), leaf.DeepCopyObject().(ctrlclient.Object))
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err != nil
}

// TestLeavesWithoutAPlace: a Placement that has no cluster left takes leaves away at once only if somebody wished that.
func TestLeavesWithoutAPlace(t *testing.T) {
	t.Parallel()
	other := "mirror-west"
	tests := map[string]struct {
		placement *placementv1alpha1.Placement
		count     int
		first     bool // gone at first sight
		later     bool // gone a minute later
		frozen    bool
		reason    string
	}{
		"Wished":     {placementOf("", "Nowhere"), 22, true, true, false, "a person emptied the list of clusters"},
		"Few":        {placementOf("", "NotAllowed"), 3, false, true, false, "an administrator who narrows allow wants them to leave"},
		"Many":       {placementOf("", "NotAllowed"), 22, false, false, true, "a slip in a policy looks just like that"},
		"NoCluster":  {placementOf("", "UnknownCluster"), 3, false, false, false, "a mistake in an annotation moves nothing, few or many"},
		"Invalid":    {placementOf("", "InvalidPlacement"), 3, false, false, false, "nor does one that cannot be read"},
		"NoneFits":   {placementOf("", "NotPlaced"), 22, false, false, false, "nor labels that no cluster has, or clusters that are gone"},
		"NoMirror":   {placementOf("", "Placed", ""), 22, false, false, false, "a cluster without a mirror is being set up"},
		"NotSaidYet": {placementOf("", "Nowhere"), 22, false, false, false, "the condition is about an earlier decision"},
	}
	tests["NotSaidYet"].placement.Generation = 2
	for name, tc := range tests {
		for _, kind := range []string{"Deployment", "Service"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				objects := []ctrlclient.Object{tc.placement.DeepCopy()}
				var leaves []ctrlclient.Object
				for i := range tc.count {
					root, leaf := pair(kind, fmt.Sprintf("web-%d", i))
					objects, leaves = append(objects, root, leaf), append(leaves, leaf)
				}
				m := newMirrored(t, objects...)
				look := func(when string, want bool) {
					t.Helper()
					for _, leaf := range leaves {
						again := m.look(t, key{kind, client.Key{Cluster: "shop", Namespace: "front", Name: leaf.GetName()}})
						timed := tc.later || tc.frozen || name == "NotSaidYet" // others wait for their Placement to change
						if frozen, _ := m.brake.Frozen(mirrorEast); timed && !want && !frozen && again == 0 {
							t.Errorf("%s: leaf %s is held %s and not looked at again", tc.reason, leaf.GetName(), when)
						}
					}
					for _, leaf := range leaves {
						if got := m.gone(t, leaf); got != want {
							t.Errorf("%s: leaf %s is gone %s: %v", tc.reason, leaf.GetName(), when, got)
						}
					}
				}
				look("at first sight", tc.first)
				if tc.first {
					return
				}
				m.clock.SetTime(m.clock.Now().Add(brakeWindow))
				look("a minute later", tc.later)
				frozen, _ := m.brake.Frozen(mirrorEast)
				east := &workloadv1alpha1.SyncTarget{}
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKey{Name: "east"}, east); err != nil {
					t.Fatal(err)
				}
				if told := meta.IsStatusConditionTrue(east.Status.Conditions, workloadv1alpha1.SyncTargetFrozen); frozen != tc.frozen || told != tc.frozen {
					t.Errorf("%s: frozen is %v, and told %v", tc.reason, frozen, told)
				}
				if !frozen {
					return
				}
				m.brake.Confirm(mirrorEast)
				look("after an administrator's word", true)
			})
		}
	}
	t.Run("Back", func(t *testing.T) {
		root, leaf := pair("Service", "web")
		m := newMirrored(t, root, leaf)
		s, leaves := m.sources["Service"], []ctrlclient.Object{leaf}
		held := func(p *placementv1alpha1.Placement) bool {
			t.Helper()
			mirrors, _, err := m.hold(t.Context(), s, root, p, leaves)
			if err != nil {
				t.Fatal(err)
			}
			return len(mirrors) > 0
		}
		if !held(placementOf("", "NotAllowed")) {
			t.Error("a leaf without a place is not held")
		}
		m.clock.SetTime(m.clock.Now().Add(brakeWindow))
		if held(placementOf("", "Placed", other)) {
			t.Error("a leaf is held although another cluster takes its place")
		}
		if !held(placementOf("", "NotAllowed")) {
			t.Error("the minute of a leaf that lost its place once more began when it lost it first")
		}
	})
}

// TestHasLeft: what is asked is which Placement decides now, not which one the informer shows.
func TestHasLeft(t *testing.T) {
	seen := placementOf("", "Placed", "mirror-west")
	recreated := placementOf("", "Placed", "mirror-west")
	recreated.UID = "another"
	back := placementOf("", "Placed", mirrorEast)
	back.Generation++
	tests := map[string]struct {
		stored []*placementv1alpha1.Placement
		want   bool
		reason string
	}{
		"Left":       {[]*placementv1alpha1.Placement{seen}, true, "the namespace's names another mirror"},
		"Back":       {[]*placementv1alpha1.Placement{back}, false, "the namespace's names it again"},
		"OwnNames":   {[]*placementv1alpha1.Placement{seen, placementOf("web", "Placed", mirrorEast)}, false, "its own, which the informer does not show, names it"},
		"OwnElse":    {[]*placementv1alpha1.Placement{seen, placementOf("web", "Placed", "mirror-north")}, false, "the plan did not know of mirror-north"},
		"OfAnother":  {[]*placementv1alpha1.Placement{seen, placementOf("api", "Placed", mirrorEast)}, true, "another object's is nothing to it"},
		"Recreated":  {[]*placementv1alpha1.Placement{recreated}, false, "the informer will show it"},
		"Unreadable": {nil, false, "no decision is no decision to leave"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			objects := fake.NewClientBuilder().WithScheme(client.Scheme).WithObjects(&corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName}})
			for _, p := range tc.stored {
				objects.WithObjects(p.DeepCopy())
			}
			clients := &client.Clients{Objects: objects.Build()}
			informers, err := client.NewInformers(clients)
			if err != nil {
				t.Fatal(err)
			}
			c, err := New(clients, informers, testclock.NewFakeClock(time.Unix(0, 0)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.hasLeft(t.Context(), c.sources["Deployment"], client.Key{Cluster: "shop", Namespace: "front", Name: "web"}, seen, mirrorEast)
			if err != nil || got != tc.want {
				t.Errorf("%s: left = %v, %v", tc.reason, got, err)
			}
		})
	}
}

// TestEmptyNamespaceStays: a mirror's namespace outlasts its last leaf for a while, since what is applied again would wait
// for its end; not if nothing can come any more.
func TestEmptyNamespaceStays(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	for name, tc := range map[string]struct {
		up        *corev1.Namespace
		placement *placementv1alpha1.Placement
		stays     bool
		reason    string
	}{
		"InUse":       {&corev1.Namespace{}, nil, true, "somebody deletes and applies again"},
		"Placed":      {&corev1.Namespace{}, placementOf("", "Placed", mirrorEast), true, "the same"},
		"Moved":       {&corev1.Namespace{}, placementOf("", "Placed", "mirror-west"), false, "nothing will be placed there"},
		"Terminating": {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, nil, false, "its namespace goes as well"},
		"Gone":        {nil, nil, false, "its namespace is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			_, leaf := pair("Service", "web")
			down := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaf.GetNamespace(), UID: "down",
				Labels:      map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"},
				Annotations: map[string]string{lcctx.Annotation: mirrorEast, workloadv1alpha1.RootAnnotation: "/front"}}}
			objects := []ctrlclient.Object{leaf, down}
			if up := tc.up; up != nil {
				up.Name, up.Finalizers, up.Annotations = "front", []string{"kubernetes"}, map[string]string{lcctx.Annotation: "shop"}
				objects = append(objects, up)
			}
			if tc.placement != nil {
				objects = append(objects, tc.placement)
			}
			m := newMirrored(t, objects...)
			k := key{ofNamespace, client.Key{Cluster: mirrorEast, Name: down.Name}}
			if m.look(t, k); m.gone(t, down) {
				t.Fatal("the namespace is gone, and its leaf is there")
			}
			if err := m.objects.Delete(t.Context(), leaf); err != nil {
				t.Fatal(err)
			}
			for began := time.Now(); m.pace.Wait(k, "", keepEmpty) == 0; runtime.Gosched() { // the store drops it before the handlers hear of it
				if time.Since(began) > time.Minute {
					t.Fatal("no handler was told of the leaf's end")
				}
			}
			again := m.look(t, k)
			if got := !m.gone(t, down); got != tc.stays || got != (again > 0) {
				t.Errorf("%s: stays %v, to be looked at again after %s", tc.reason, got, again)
			}
			m.clock.Step(keepEmpty)
			if tc.stays {
				m.later.Store(true)
				if again := m.look(t, k); m.gone(t, down) || again != lookInside {
					t.Errorf("with something in it that a later version put there it is gone: %v, and to be looked at after %s", m.gone(t, down), again)
				}
				m.later.Store(false)
				shown := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: down.Name, Name: "web-1"}}
				if err := m.objects.Create(t.Context(), shown); err != nil {
					t.Fatal(err)
				}
				if again := m.look(t, k); m.gone(t, down) || again != lookAgain {
					t.Errorf("with a pod that is shown it is gone: %v, and to be looked at after %s", m.gone(t, down), again)
				}
				if err := m.objects.Delete(t.Context(), shown); err != nil {
					t.Fatal(err)
				}
			}
			if m.look(t, k); !m.gone(t, down) {
				t.Errorf("it is there after %s", keepEmpty)
			}
		})
	}
}

// TestEndOfAWorkspaceIsHeardOf: what of it is empty in mirrors waits for nothing any more.
func TestEndOfAWorkspaceIsHeardOf(t *testing.T) {
	up := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "front", Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	m := newMirrored(t, up, spaceIn(mirrorEast))
	c := &unran{m.Controller}
	runs := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	ends := runs.DeepCopy()
	ends.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	k := key{ofNamespace, client.KeyOf(spaceIn(mirrorEast))}
	for name, tc := range map[string]struct {
		event client.Event[*corev1alpha1.LogicalCluster]
		want  bool
	}{
		"Begins": {client.Event[*corev1alpha1.LogicalCluster]{New: runs}, false},
		"Ends":   {client.Event[*corev1alpha1.LogicalCluster]{Old: runs, New: ends}, true},
		"Shown":  {client.Event[*corev1alpha1.LogicalCluster]{New: ends}, true},
		"Gone":   {client.Event[*corev1alpha1.LogicalCluster]{Old: ends}, false},
	} {
		if got := slices.Contains(c.asks(t, func() { c.onLogicalCluster(tc.event) }), k); got != tc.want {
			t.Errorf("%s: its namespace is asked for: %v, want %v", name, got, tc.want)
		}
	}
}

// TestPlacementStatusReadsNoLeaves: one object's news costs no look at leaves, however many Placements its namespace has; and
// nothing is told of a Placement before all that it decides for are planned for by it.
func TestPlacementStatusReadsNoLeaves(t *testing.T) {
	const many = 50
	var objects []ctrlclient.Object
	for i := range many {
		name := fmt.Sprintf("own-%d", i)
		root, leaf := pair("Deployment", name)
		objects = append(objects, root, leaf, placementOf(name, "Placed", mirrorEast))
	}
	shared, leaf := pair("Deployment", "shared")
	m := newMirrored(t, append(objects, shared, leaf, placementOf("", "Placed", mirrorEast))...)
	s := m.sources["Deployment"]
	looks := 0
	all, one := s.leavesOf, s.leaves
	count := func(leaves []ctrlclient.Object) []ctrlclient.Object { looks += len(leaves); return leaves }
	s.leaves = func(k client.Key) []ctrlclient.Object { return count(one(k)) }
	s.leavesOf = func(cluster logicalcluster.Name, namespace string) []ctrlclient.Object {
		return count(all(cluster, namespace))
	}
	for _, deployment := range []string{"own-7", ""} {
		root, p := cmp.Or(deployment, "shared"), placementOf(deployment, "Placed", mirrorEast)
		told := func() []placementv1alpha1.PlacedClusterStatus {
			t.Helper()
			m.look(t, key{ofPlacement, client.KeyOf(p)})
			now := &placementv1alpha1.Placement{}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(p), now); err != nil {
				t.Fatal(err)
			}
			return now.Status.Clusters
		}
		if got := told(); len(got) > 0 {
			t.Errorf("of Placement %s is told %+v, before anything is planned", p.Name, got)
		}
		m.look(t, key{"Deployment", client.Key{Cluster: "shop", Namespace: "front", Name: root}})
		looks = 0
		if got := told(); len(got) != 1 || got[0].Replicas != 2 || looks > 0 {
			t.Errorf("of Placement %s is told %+v after %d leaves, want the 2 replicas of one and a look at none", p.Name, got, looks)
		}
	}
}
