package splitter

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestBoundsAreWrittenFirst: before what makes pods come the LimitRanges and NetworkPolicies of its namespace, which no informer here shows yet: a syncer has
// those down first that are in the mirror. One that is being deleted, that the syncer does not carry, that the hub refuses or that cannot be read keeps nothing
// from running.
func TestBoundsAreWrittenFirst(t *testing.T) {
	t.Parallel()
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "front", Name: name, UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}
	}
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
	limits := &corev1.LimitRange{ObjectMeta: meta("limits"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}}}}
	policy := &networkingv1.NetworkPolicy{ObjectMeta: meta("policy")}
	going := limits.DeepCopy()
	going.Finalizers = []string{"example.dev/wait"}
	now := metav1.Now()
	going.DeletionTimestamp = &now
	deployment := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{}, Template: template}}
	job := &batchv1.Job{ObjectMeta: meta("web"), Spec: batchv1.JobSpec{Selector: &metav1.LabelSelector{}, Template: template}}
	set := &appsv1.StatefulSet{ObjectMeta: meta("web"), Spec: appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{}, Template: template}}
	agent := &appsv1.DaemonSet{ObjectMeta: meta("web"), Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{}, Template: template}}
	for name, tc := range map[string]struct {
		kind    string
		root    ctrlclient.Object
		limits  *corev1.LimitRange
		carries []string
		create  error // of a LimitRange, by the hub
		list    error // of LimitRanges
		want    []string
	}{
		"Deployment":            {"Deployment", deployment, limits, everyKind(), nil, nil, []string{"LimitRange", "NetworkPolicy", "Deployment"}},
		"ReplicaSet":            {"ReplicaSet", crewOf(1, "web"), limits, everyKind(), nil, nil, []string{"LimitRange", "NetworkPolicy", "ReplicaSet"}},
		"ReplicationController": {"ReplicationController", asController(crewOf(1, "web")), limits, everyKind(), nil, nil, []string{"LimitRange", "NetworkPolicy", "ReplicationController"}},
		"Job":                   {"Job", job, limits, everyKind(), nil, nil, []string{"LimitRange", "NetworkPolicy", "Job"}},
		"StatefulSet":           {"StatefulSet", set, limits, everyKind(), nil, nil, []string{"LimitRange", "NetworkPolicy", "StatefulSet"}},
		"DaemonSet":             {"DaemonSet", agent, limits, everyKind(), nil, nil, []string{"LimitRange", "NetworkPolicy", "DaemonSet"}},
		"Going":                 {"Deployment", deployment, going, everyKind(), nil, nil, []string{"NetworkPolicy", "Deployment"}},
		"NotCarried":            {"Deployment", deployment, limits, slices.DeleteFunc(everyKind(), func(r string) bool { return r == "limitranges" }), nil, nil, []string{"NetworkPolicy", "Deployment"}},
		"Refused": {"Deployment", deployment, limits, everyKind(), apierrors.NewForbidden(corev1.Resource("limitranges"), "limits", errors.New("exceeded quota")), nil,
			[]string{"NetworkPolicy", "Deployment"}},
		"Unreadable": {"Deployment", deployment, limits, everyKind(), nil, apierrors.NewInternalError(errors.New("cannot decode")), []string{"NetworkPolicy", "Deployment"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := tc.root.DeepCopyObject().(ctrlclient.Object)
			m := newMirrored(t, root, targetOf("east", mirrorEast, tc.carries...), spaceIn(mirrorEast), placementOf("", "Placed", mirrorEast))
			var made []string
			m.clients.Objects = interceptor.NewClient(m.objects, interceptor.Funcs{
				Create: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
					if o.GetNamespace() != "front-"+mirrorEast {
						return c.Create(ctx, o, opts...)
					}
					kind := o.GetObjectKind().GroupVersionKind().Kind
					if kind == "LimitRange" && tc.create != nil {
						return tc.create
					}
					made = append(made, kind)
					return c.Create(ctx, o, opts...)
				},
				// What was written just now, and no informer shows.
				List: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
					if asked := (&ctrlclient.ListOptions{}).ApplyOptions(opts); asked.Namespace == "front" {
						switch list := list.(type) {
						case *corev1.LimitRangeList:
							list.Items = []corev1.LimitRange{*tc.limits.DeepCopy()}
							return tc.list
						case *networkingv1.NetworkPolicyList:
							list.Items = []networkingv1.NetworkPolicy{*policy.DeepCopy()}
							return nil
						}
					}
					return c.List(ctx, list, opts...)
				},
			})
			m.look(t, key{tc.kind, client.KeyOf(root)})
			if diff := cmp.Diff(tc.want, made); diff != "" {
				t.Errorf("what is made in the mirror: -want, +got:\n%s", diff)
			}
		})
	}
}

// TestChangedBoundsAreWrittenFirst: before another template of pods comes what has changed of the NetworkPolicy that is there.
func TestChangedBoundsAreWrittenFirst(t *testing.T) {
	t.Parallel()
	root := crewOf(1, "web:2")
	root.Generation = 2
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "policy", UID: "policy", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	k, _ := kinds.ByKind("NetworkPolicy")
	leaf, _, err := render(k, policy, k.Content(policy), "front-"+mirrorEast, false)
	if err != nil {
		t.Fatal(err)
	}
	leaf.SetUID("leaf-policy")
	leaf.GetAnnotations()[lcctx.Annotation] = mirrorEast
	m := newMirrored(t, root, crewLeaf(t, crewOf(1, "web:1"), mirrorEast, 1, 1), leaf, spaceIn(mirrorEast), placementOf("", "Placed", mirrorEast))
	policy.Generation, policy.Spec.PolicyTypes = 2, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	var wrote []string
	m.clients.Objects = interceptor.NewClient(m.objects, interceptor.Funcs{
		Update: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.UpdateOption) error {
			if template := podsOf(o); o.GetNamespace() == "front-"+mirrorEast && (template == nil || template.Spec.Containers[0].Image == "web:2") {
				wrote = append(wrote, o.GetObjectKind().GroupVersionKind().Kind)
			}
			if o.GetNamespace() == "front-"+mirrorEast {
				kinds.SetAnnotation(o, lcctx.Annotation, mirrorEast) // as the server does, and the fake does not
			}
			return c.Update(ctx, o, opts...)
		},
		List: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
			if all, ok := list.(*networkingv1.NetworkPolicyList); ok && (&ctrlclient.ListOptions{}).ApplyOptions(opts).Namespace == "front" {
				all.Items = []networkingv1.NetworkPolicy{*policy.DeepCopy()}
				return nil
			}
			return c.List(ctx, list, opts...)
		},
	})
	m.lookUntil(t, key{"ReplicaSet", client.KeyOf(root)}, "the ReplicaSet is written", func() bool { return slices.Contains(wrote, "ReplicaSet") })
	if wrote[0] != "NetworkPolicy" {
		t.Errorf("what is written is %v", wrote)
	}
}
