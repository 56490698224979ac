package splitter

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/lru"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestEventsRepeat: what is told again after something else is the newest event again; what is told again because a
// restart forgot it is not.
func TestEventsRepeat(t *testing.T) {
	const restart, over = "(restart)", "(over)"
	type told struct {
		Message string
		Count   int32
		At      int // the step that told it last
	}
	cases := map[string]struct {
		steps  []string // messages, restart or over
		want   []told
		reason string
	}{
		"same again":            {[]string{"1 of 1", "1 of 1"}, []told{{"1 of 1", 1, 0}}, "nothing changed"},
		"back":                  {[]string{"1 of 1", "3 of 3", "1 of 1"}, []told{{"1 of 1", 2, 2}, {"3 of 3", 1, 1}}, "the newest says what is"},
		"back and forth":        {[]string{"a", "b", "a", "b", "a"}, []told{{"a", 3, 4}, {"b", 2, 3}}, "each time"},
		"restart":               {[]string{"a", restart, "a"}, []told{{"a", 1, 0}}, "a restart tells nothing twice"},
		"changed after restart": {[]string{"a", "b", restart, "b", "a"}, []told{{"a", 2, 4}, {"b", 1, 1}}, "what changes after it is news"},
		"over and again":        {[]string{"a", over, "a"}, []told{{"a", 2, 2}}, "it had ended meanwhile"},
		"over before it began":  {[]string{over, "a"}, []told{{"a", 1, 1}}, "nothing to take back"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			objects := fake.NewClientBuilder().WithScheme(client.Scheme).Build()
			began := time.Unix(1_000_000, 0)
			clk := clocktesting.NewFakePassiveClock(began)
			c := &Controller{clients: &client.Clients{Objects: objects}, clock: clk, told: lru.New(remembered)}
			k, _ := kinds.ByKind("Deployment")
			root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"}}
			for i, step := range tc.steps {
				clk.SetTime(began.Add(time.Duration(i) * time.Second))
				switch step {
				case restart:
					c.told = lru.New(remembered)
				case over:
					c.untell(root, "size")
				default:
					c.tellOnce(t.Context(), &source{Kind: k}, root, "size", corev1.EventTypeNormal, "Placed", step)
				}
			}
			list := &corev1.EventList{}
			if err := objects.List(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			got := map[told]bool{}
			for _, e := range list.Items {
				if !e.FirstTimestamp.Time.Before(e.LastTimestamp.Time) && e.Count > 1 {
					t.Errorf("event %q first told at %s, last at %s", e.Message, e.FirstTimestamp, e.LastTimestamp)
				}
				got[told{e.Message, e.Count, int(e.LastTimestamp.Sub(began) / time.Second)}] = true
			}
			want := map[told]bool{}
			for _, e := range tc.want {
				want[e] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestSharesAreOneEvent: where a Deployment goes is one event, and none that a restart repeats.
func TestSharesAreOneEvent(t *testing.T) {
	objects := fake.NewClientBuilder().WithScheme(client.Scheme).Build()
	c := &Controller{clients: &client.Clients{Objects: objects}, clock: clocktesting.NewFakePassiveClock(time.Unix(1_000_000, 0)), told: lru.New(remembered)}
	k, _ := kinds.ByKind("Deployment")
	root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"}}
	tell := func(east, west int32, wrote bool) {
		var sites []*site
		for name, target := range map[string]int32{"east": east, "west": west} {
			sites = append(sites, &site{id: name, name: name, assigned: true, target: target, leaf: root})
		}
		slices.SortFunc(sites, func(a, b *site) int { return strings.Compare(a.id, b.id) })
		replicas := east + west
		root.Spec.Replicas = &replicas
		c.tellPlaced(t.Context(), &source{Kind: k}, root, &placementv1alpha1.Placement{}, sites, wrote)
	}
	expect := func(reason string, want ...string) {
		t.Helper()
		list := &corev1.EventList{}
		if err := objects.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range list.Items {
			got = append(got, fmt.Sprintf("%d× %s", e.Count, e.Message))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
	tell(1, 1, true)
	tell(1, 1, false)
	first := `1× Placed on "east": 1 of 2 replicas, "west": 1 of 2 replicas`
	expect("new", first)
	tell(2, 1, true)
	second := `1× Placed on "east": 2 of 3 replicas, "west": 1 of 3 replicas`
	expect("another division", first, second)
	if err := objects.DeleteAllOf(t.Context(), &corev1.Event{}, ctrlclient.InNamespace("default")); err != nil { // they last for an hour
		t.Fatal(err)
	}
	c.told = lru.New(remembered)
	tell(2, 1, false)
	expect("a restart is no news")
	tell(3, 1, false)
	expect("a change after it is", `1× Placed on "east": 3 of 4 replicas, "west": 1 of 4 replicas`)
}

// TestUnshownPodsReachTheRoot: that pods of a cluster are not shown is told in the workspace, once for as long as it is so.
func TestUnshownPodsReachTheRoot(t *testing.T) {
	root, leaf := pair("Deployment", "web")
	m := newMirrored(t, root, leaf)
	k, _ := kinds.ByKind("Deployment")
	tell := func(annotation string) []string {
		t.Helper()
		now := leaf.DeepCopyObject().(ctrlclient.Object)
		now.SetAnnotations(map[string]string{lcctx.Annotation: mirrorEast, workloadv1alpha1.UnshownAnnotation: annotation})
		m.tellRefusals(t.Context(), &source{Kind: k}, root, []ctrlclient.Object{now})
		list := &corev1.EventList{}
		if err := m.objects.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, e := range list.Items {
			told = append(told, fmt.Sprint(e.InvolvedObject.Name, " ", e.Type, " ", e.Reason, " ", e.Count, ": ", e.Message))
		}
		return told
	}
	const why = `{"reason":"NameConflict","message":"pods \"web-0\" already exists"}`
	for i, step := range []struct {
		annotation string
		count      int
	}{{"", 0}, {why, 1}, {why, 1}, {"", 1}, {why, 2}} {
		var want []string
		if step.count > 0 {
			want = []string{fmt.Sprintf(`web Warning PodsNotShown %d: Cluster "east" has pods that are not shown: NameConflict: pods "web-0" already exists`, step.count)}
		}
		if diff := cmp.Diff(want, tell(step.annotation)); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestMistakesOfAServiceAreTold: a wish of its own that cannot be followed is told on a Service, too. What is wrong with the
// namespace of one without is told by the workloads there.
func TestMistakesOfAServiceAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		wish string
		want []string
	}{
		"its own":         {"nosuch", []string{`Warning UnknownCluster: no cluster is registered as "nosuch"`}},
		"the namespace's": {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "front", UID: "web", Annotations: map[string]string{lcctx.Annotation: "shop"}}}
			p := placementOf("", "UnknownCluster")
			if tc.wish != "" {
				root.Annotations[placementv1alpha1.ClustersAnnotation] = tc.wish
				p.Spec.Object = &placementv1alpha1.PlacedObject{Resource: "services", Name: "web"}
				p.Name = placementv1alpha1.NameFor("front", p.Spec.Object)
			}
			p.Status.Conditions[0].Message = `no cluster is registered as "nosuch"`
			m := newMirrored(t, root, p)
			for range 2 {
				m.look(t, key{"Service", client.KeyOf(root)})
			}
			list := &corev1.EventList{}
			if err := m.objects.List(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			var told []string
			for _, e := range list.Items {
				told = append(told, fmt.Sprint(e.Type, " ", e.Reason, ": ", e.Message))
			}
			if diff := cmp.Diff(tc.want, told); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
