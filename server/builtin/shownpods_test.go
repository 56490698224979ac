package builtin

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/features"
	registrypod "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/utils/ptr"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// unanswered is the namespace of a mirror that nobody can read.
const unanswered = "unanswered"

// namespaces are all for team of shop.
type namespaces struct{ Objects }

func (namespaces) Get(_ context.Context, _ schema.GroupResource, _, name string, _ bool) (runtime.Object, error) {
	if name == unanswered {
		return nil, errors.New("etcdserver: no leader")
	}
	return &api.Namespace{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"}, Annotations: map[string]string{workloadv1alpha1.RootAnnotation: "/team"},
	}}, nil
}

// behind has a mirror's LogicalCluster in etcd, and not in the watch cache yet.
type behind struct{ Objects }

func (behind) Get(_ context.Context, resource schema.GroupResource, _, name string, cached bool) (runtime.Object, error) {
	if cached {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return &corev1alpha1.LogicalCluster{Spec: corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{Name: "us-east-1"}}}, nil
}

// TestMirrorsThatAreNewHaveAnOwner: a syncer may show its pods as soon as its mirror is there.
func TestMirrorsThatAreNewHaveAnOwner(t *testing.T) {
	owner, err := shownPods{objects: behind{}}.owner(&space{mirror: t.Context(), cluster: "east"})
	if err != nil || owner.Name != "us-east-1" {
		t.Errorf("%v, error %v; want the owner us-east-1, as etcd has it", owner, err)
	}
}

// TestWatchOfShownPodsHasNoGap: what a mirror's watch cannot tell ends it.
func TestWatchOfShownPodsHasNoGap(t *testing.T) {
	chosen := selection{
		mirror: "east", labels: labels.Everything(), fields: fields.Everything(),
		isFor: func(pod *api.Pod) (bool, bool, error) {
			return shownPods{objects: namespaces{}}.isFor(t.Context(), pod)
		},
		attrs: func(runtime.Object) (labels.Set, fields.Set, error) { return nil, nil, nil },
	}
	in := func(namespace string) *api.Pod {
		return &api.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-1", Annotations: map[string]string{
			logicalcluster.Annotation: "shop", workloadv1alpha1.MirrorNamespaceAnnotation: namespace,
		}}}
	}
	for name, missed := range map[string]runtime.Object{"etcd does not answer": in(unanswered), "no pod": &api.Node{}} {
		live := watch.NewFakeWithChanSize(3, false)
		live.Add(in("team-1a"))
		live.Modify(missed)
		live.Modify(in("team-1a")) // which nobody may take for the next
		live.Stop()
		var told []watch.EventType
		for e := range storage.Translated(t.Context(), live, chosen.event).ResultChan() {
			told = append(told, e.Type)
		}
		if diff := cmp.Diff([]watch.EventType{watch.Added, watch.Error}, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAdmittedBelow: a pod that runs is valid as the API server below has admitted it, also where this server's features are others, and is
// stored as that; one that somebody makes in a workspace is not.
func TestAdmittedBelow(t *testing.T) {
	const key = "pod-template-hash"
	selector := func() *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{"5d8c7b9f4"}}}}
	}
	merged := &api.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "team", Labels: map[string]string{"app": "web", key: "5d8c7b9f4"}},
		Spec: api.PodSpec{
			RestartPolicy: api.RestartPolicyAlways, DNSPolicy: api.DNSDefault, TerminationGracePeriodSeconds: ptr.To[int64](30),
			Containers: []api.Container{{Name: "c", Image: "i", ImagePullPolicy: api.PullAlways, TerminationMessagePolicy: api.TerminationMessageReadFile}},
			TopologySpreadConstraints: []api.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: api.DoNotSchedule, LabelSelector: selector(), MatchLabelKeys: []string{key}},
				{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: api.DoNotSchedule, MatchLabelKeys: nil},
			},
			Affinity: &api.Affinity{PodAntiAffinity: &api.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []api.PodAffinityTerm{
				{TopologyKey: "zone", LabelSelector: selector(), MatchLabelKeys: []string{key}},
			}}},
		},
	}
	for name, merges := range map[string]bool{"this server merges, too": true, "this server does not": false} {
		t.Run(name, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.MatchLabelKeysInPodTopologySpreadSelectorMerge, merges)
			shown := merged.DeepCopy()
			admitted := admittedBelow{registrypod.Strategy}
			admitted.PrepareForCreate(t.Context(), shown)
			if diff := cmp.Diff(merged.Spec, shown.Spec); diff != "" {
				t.Errorf("the spec is not what was admitted (-want +got):\n%s", diff)
			}
			if shown.Status.Phase != api.PodPending || shown.Generation != 1 {
				t.Errorf("phase %q, generation %d; want a new pod, as upstream makes it", shown.Status.Phase, shown.Generation)
			}
			if errs := admitted.Validate(t.Context(), shown); len(errs) > 0 {
				t.Errorf("a pod that runs is invalid: %v", errs)
			}
			made := merged.DeepCopy()
			registrypod.Strategy.PrepareForCreate(t.Context(), made)
			if errs := registrypod.Strategy.Validate(t.Context(), made); len(errs) == 0 {
				t.Error("somebody makes what is merged already, and it is valid")
			}
			shown.Spec.Containers[0].Name = "No Label"
			if errs := admitted.Validate(t.Context(), shown); len(errs) != 1 {
				t.Errorf("%v; want what no API server admits to be invalid", errs)
			}
		})
	}
}

// TestRelabel: a pod that is shown is spread over those of its revision by the hash that they are shown with, not by the physical cluster's.
func TestRelabel(t *testing.T) {
	const key = "pod-template-hash"
	selector := func(operator metav1.LabelSelectorOperator, of string, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: of, Operator: operator, Values: values}}}
	}
	pod := func(hash string) *api.Pod {
		return &api.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", key: hash}},
			Spec: api.PodSpec{
				TopologySpreadConstraints: []api.TopologySpreadConstraint{
					{LabelSelector: selector(metav1.LabelSelectorOpIn, key, hash)},
					{LabelSelector: nil},
					{LabelSelector: selector(metav1.LabelSelectorOpIn, key, "earlier", "below")}, // is the user's own
					{LabelSelector: selector(metav1.LabelSelectorOpExists, key)},
					{LabelSelector: selector(metav1.LabelSelectorOpIn, "app", "below")},
				},
				Affinity: &api.Affinity{PodAntiAffinity: &api.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []api.WeightedPodAffinityTerm{
					{PodAffinityTerm: api.PodAffinityTerm{LabelSelector: selector(metav1.LabelSelectorOpNotIn, key, hash)}},
				}}},
			},
		}
	}
	got := pod("below")
	relabel(got, map[string]string{key: "above"})
	if diff := cmp.Diff(pod("above"), got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	relabel(got, nil) // of a root that has no revisions
	if diff := cmp.Diff(pod("above"), got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}
