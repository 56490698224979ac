package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server/disruption"
)

// serving has the syncer of east show pods that serve.
func (s *showing) serving(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		made, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below(name, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(0)) }), metav1.CreateOptions{})
		must(t, err)
		made.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		_, err = s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		must(t, err)
	}
}

// placed has the namespace of shop placed in clusters, by their mirrors.
func (s *showing) placed(t *testing.T, split placementv1alpha1.SplitPolicy, mirrors ...logicalcluster.Name) {
	t.Helper()
	objects := s.ground(t).objects
	p := &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: placementv1alpha1.NameFor(team, nil)}}
	_, err := controllerutil.CreateOrUpdate(client.In(t.Context(), shop), objects, p, func() error {
		p.Spec = placementv1alpha1.PlacementSpec{Namespace: team, Split: split}
		for _, mirror := range mirrors {
			p.Spec.Clusters = append(p.Spec.Clusters, placementv1alpha1.PlacedCluster{Name: string(mirror), Mirror: string(mirror), Weight: 1})
		}
		return nil
	})
	must(t, err)
}

// budgeted makes a budget in shop, and waits until it allows so many.
func (s *showing) budgeted(t *testing.T, name string, spec policyv1.PodDisruptionBudgetSpec) {
	t.Helper()
	spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	_, err := s.shop.PolicyV1().PodDisruptionBudgets(team).Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	must(t, err)
}

// says waits until a budget of shop says something of its generation, while time passes.
func (s *showing) says(t *testing.T, clk *clocktesting.FakeClock, name, what string, is func(policyv1.PodDisruptionBudgetStatus) bool) {
	t.Helper()
	waitRuns(t, clk, name+" says "+what, func() (string, bool) {
		budget, err := s.shop.PolicyV1().PodDisruptionBudgets(team).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("%+v", budget.Status), budget.Status.ObservedGeneration == budget.Generation && is(budget.Status)
	})
}

func allowing(n int32) func(policyv1.PodDisruptionBudgetStatus) bool {
	return func(st policyv1.PodDisruptionBudgetStatus) bool { return st.DisruptionsAllowed == n }
}

// failing is a budget whose pods cannot be counted, and why.
func failing(why string) func(policyv1.PodDisruptionBudgetStatus) bool {
	return func(st policyv1.PodDisruptionBudgetStatus) bool {
		return st.DisruptionsAllowed == 0 && len(st.Conditions) == 1 && st.Conditions[0].Reason == policyv1.SyncFailedReason && strings.Contains(st.Conditions[0].Message, why)
	}
}

func (s *showing) allows(t *testing.T, name string, want int32) {
	t.Helper()
	waitFor(t, time.Minute, fmt.Sprintf("%s allows %d", name, want), func() (string, bool) {
		budget, err := s.shop.PolicyV1().PodDisruptionBudgets(team).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		st := budget.Status
		return fmt.Sprintf("%+v", st), st.DisruptionsAllowed == want && st.ObservedGeneration == budget.Generation
	})
}

// TestEvictions: a pod of a workspace is evicted as its budget allows, and by nothing of another workspace's.
func TestEvictions(t *testing.T) {
	s := startShowing(t)
	runController(t, s.running, func(c *client.Clients, i *client.Informers) (*disruption.Controller, error) {
		return disruption.New(c, i, clock.RealClock{})
	})
	s.placed(t, placementv1alpha1.SplitEven, east)
	s.serving(t, "web-1", "web-2")
	// Another workspace's budget of that name, for pods of those labels, holds nothing here.
	s.makeNamespace(t, bank, team)
	_, err := s.in(t, bank).PolicyV1().PodDisruptionBudgets(team).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(9)), Selector: &metav1.LabelSelector{}},
	}, metav1.CreateOptions{})
	must(t, err)

	ofOwner, ofEast := s.owner(t).CoreV1().Pods(team), s.east.CoreV1().Pods(inEast)
	evict := func(name string, options *metav1.DeleteOptions) error {
		return ofOwner.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}, DeleteOptions: options})
	}
	s.budgeted(t, "web", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt(1))})
	s.allows(t, "web", 1)
	if err := evict("web-1", &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	s.allows(t, "web", 1)
	must(t, evict("web-1", nil))
	row, err := ofEast.Get(t.Context(), "web-1", metav1.GetOptions{})
	if err != nil || row.DeletionTimestamp == nil {
		t.Errorf("%v: its syncer sees %+v, want it to end there first", err, row)
	}
	err = evict("web-2", nil)
	if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
		t.Errorf("the second: %v, want that its budget holds it", err)
	}
	s.allows(t, "web", 0)

	// It is gone there, and another one serves in its place.
	must(t, ofEast.Delete(t.Context(), "web-1", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
	s.serving(t, "web-3")
	s.allows(t, "web", 1)
	must(t, evict("web-2", nil))

	// What has ended no budget holds, and it ends below, too.
	s.allows(t, "web", 0)
	s.serving(t, "web-4")
	ended, err := ofEast.Get(t.Context(), "web-4", metav1.GetOptions{})
	must(t, err)
	ended.Status.Phase = corev1.PodFailed
	_, err = ofEast.UpdateStatus(t.Context(), ended, metav1.UpdateOptions{})
	must(t, err)
	must(t, evict("web-4", nil))
	if row, err := ofEast.Get(t.Context(), "web-4", metav1.GetOptions{}); err != nil || row.DeletionTimestamp == nil {
		t.Errorf("%v: its syncer sees %+v, want it to end there first", err, row)
	}

	for name, tc := range map[string]struct {
		err error
		is  func(error) bool
	}{
		"a pod that is none": {evict("absent", nil), apierrors.IsNotFound},
		"in the mirror":      {s.in(t, east).CoreV1().Pods(inEast).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "web-3"}}), apierrors.IsMethodNotSupported},
		"by a syncer":        {ofEast.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "web-3"}}), apierrors.IsForbidden},
	} {
		if !tc.is(tc.err) {
			t.Errorf("%s: %v", name, tc.err)
		}
	}

	// Another one than was meant is not, though one may be.
	s.serving(t, "web-5", "web-6")
	s.allows(t, "web", 2) // which no count before says
	if err := evict("web-3", &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(s.root.UID)}}); !apierrors.IsConflict(err) {
		t.Errorf("one of another UID: %v, want a conflict", err)
	}
	if pod, err := ofOwner.Get(t.Context(), "web-3", metav1.GetOptions{}); err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("%v: it is deleted all the same: %+v", err, pod)
	}
}

// TestEvictedPodsEnd as those do that are deleted: where they run, if they do, whatever is asked for, and whatever becomes of them meanwhile.
func TestEvictedPodsEnd(t *testing.T) {
	s := startShowing(t)
	ofOwner, ofEast := s.owner(t).CoreV1().Pods(team), s.east.CoreV1().Pods(inEast)
	evict := func(name string, grace *int64) {
		t.Helper()
		if err := ofOwner.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: grace}}); err != nil {
			t.Errorf("evict %s: %v", name, err)
		}
	}
	own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for name, grace := range map[string]*int64{"as its spec says": nil, "with time": ptr.To(int64(30))} {
		_, err := ofOwner.Create(t.Context(), own.DeepCopy(), metav1.CreateOptions{})
		must(t, err)
		evict("own", grace)
		if pod, err := ofOwner.Get(t.Context(), "own", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v: %+v, want one that nobody runs gone at once", name, err, pod)
		}
	}

	ends := func(name string, seconds int64) {
		t.Helper()
		row, err := ofEast.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || row.DeletionTimestamp == nil || ptr.Deref(row.DeletionGracePeriodSeconds, 0) != seconds {
			t.Errorf("%s: %v: its syncer sees %+v, want it to end there first, within %d s", name, err, row, seconds)
		}
	}
	s.serving(t, "forced", "negative", "timed", "fails")
	evict("forced", ptr.To(int64(0)))
	ends("forced", 1)
	evict("negative", ptr.To(int64(-1)))
	ends("negative", 1)
	evict("timed", ptr.To(int64(7)))
	ends("timed", 7)

	s.serving(t, "ended")
	ended, err := ofEast.Get(t.Context(), "ended", metav1.GetOptions{})
	must(t, err)
	ended.Status.Phase = corev1.PodSucceeded
	_, err = ofEast.UpdateStatus(t.Context(), ended, metav1.UpdateOptions{})
	must(t, err)
	ended, err = ofOwner.Get(t.Context(), "ended", metav1.GetOptions{})
	must(t, err)
	asSeen := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &ended.UID, ResourceVersion: &ended.ResourceVersion}}
	if err := ofOwner.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "ended"}, DeleteOptions: asSeen}); err != nil {
		t.Errorf("evict one that has ended, as it is: %v", err)
	}
	ends("ended", 1)

	s.makeNamespace(t, shop, "default") // in which the webhook is tried
	// It fails below between the two looks at it: who admits evictions is asked in between.
	h := newHook(t, func(_ string, asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		fails, err := ofEast.Get(t.Context(), asked.Name, metav1.GetOptions{})
		if err == nil {
			fails.Status.Phase = corev1.PodFailed
			_, err = ofEast.UpdateStatus(t.Context(), fails, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Errorf("%s cannot fail: %v", asked.Name, err)
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	})
	s.place(t, shop).validate(t, h, "evictions", validatingBy("evictions", h.at("/"), rule("", "pods/eviction", admissionregistrationv1.Create)))
	evict("fails", nil)
	if asked := h.take(); len(asked) == 0 {
		t.Error("the pod has not failed meanwhile")
	}
	ends("fails", 1)
}

// TestEvictionsByRule: what Kubernetes does with pods that two budgets select, and with those that are not ready.
func TestEvictionsByRule(t *testing.T) {
	s := startShowing(t)
	runController(t, s.running, func(c *client.Clients, i *client.Informers) (*disruption.Controller, error) {
		return disruption.New(c, i, clock.RealClock{})
	})
	s.serving(t, "web-1")
	for _, name := range []string{"lame-1", "lame-2"} {
		made, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below(name, func(p *corev1.Pod) { p.Labels["app"] = name }), metav1.CreateOptions{})
		must(t, err)
		made.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}}
		_, err = s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		must(t, err)
	}
	budget := func(name, app string, policy *policyv1.UnhealthyPodEvictionPolicyType) {
		t.Helper()
		_, err := s.shop.PolicyV1().PodDisruptionBudgets(team).Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: ptr.To(intstr.FromInt(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, UnhealthyPodEvictionPolicy: policy,
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	budget("one", "web", nil)
	budget("two", "web", nil)
	budget("lame-1", "lame-1", ptr.To(policyv1.AlwaysAllow))
	budget("lame-2", "lame-2", nil)
	s.allows(t, "one", 1)
	s.allows(t, "two", 1)
	s.allows(t, "lame-1", 0)
	s.allows(t, "lame-2", 0)
	evict := func(name string) error {
		return s.owner(t).CoreV1().Pods(team).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	var status apierrors.APIStatus
	if err := evict("web-1"); !errors.As(err, &status) || status.Status().Code != http.StatusInternalServerError || !strings.Contains(err.Error(), "more than one PodDisruptionBudget") {
		t.Errorf("one of two budgets: %v, want 500 and why", err)
	}
	if err := evict("lame-1"); err != nil {
		t.Errorf("one that is not ready, which may always go: %v", err)
	}
	if err := evict("lame-2"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one that is not ready: %v, want that its budget holds it", err)
	}
}

// refusing is a client's transport that lists no pods by labels while it is to.
type refusing struct {
	http.RoundTripper
	refuses *atomic.Bool
}

func (r refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.refuses.Load() && strings.HasSuffix(req.URL.Path, "/pods") && req.URL.Query().Has("labelSelector") {
		return nil, errors.New("no pods today")
	}
	return r.RoundTripper.RoundTrip(req)
}

// TestBudgetsInTime: what changes without a word of it is found, and what is not known is not allowed until it is.
func TestBudgetsInTime(t *testing.T) {
	s := startShowing(t)
	clk := clocktesting.NewFakeClock(time.Now())
	lists := &atomic.Bool{}
	runController(t, s.running, func(_ *client.Clients, i *client.Informers) (*disruption.Controller, error) {
		config := rest.CopyConfig(s.LoopbackConfig())
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return refusing{next, lists} })
		c, err := client.New(config)
		must(t, err)
		return disruption.New(c, i, clk)
	})
	// In a mirror none is counted: its pods are those of workspaces, which have their own.
	inMirror := s.in(t, east).PolicyV1().PodDisruptionBudgets(inEast)
	_, err := inMirror.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(0)), Selector: &metav1.LabelSelector{}},
	}, metav1.CreateOptions{})
	must(t, err)
	s.placed(t, placementv1alpha1.SplitEven, east, west)
	s.serving(t, "web-1", "web-2")
	s.budgeted(t, "web", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt(1))})
	s.allows(t, "web", 1)

	// An eviction that was granted, and came to nothing, counts for two minutes.
	granted := clk.Now()
	err = s.owner(t).CoreV1().Pods(team).EvictV1(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1"}, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(s.root.UID)}},
	})
	if !apierrors.IsConflict(err) {
		t.Fatalf("evict another: %v", err)
	}
	s.allows(t, "web", 0)
	s.says(t, clk, "web", "1 again", allowing(1))
	if after := clk.Since(granted); after < 2*time.Minute-time.Second { // it is kept by the second
		t.Errorf("it does %s after an eviction that came to nothing, want two minutes", after)
	}

	// Pods that cannot be listed are not evicted, and are once they can.
	lists.Store(true)
	s.serving(t, "web-3")
	s.says(t, clk, "web", "that it cannot count", failing("list the pods that it selects"))
	lists.Store(false)
	s.says(t, clk, "web", "2 of 3, where 2 are to be", allowing(2))

	// Where each cluster runs all, so many are to be.
	s.placed(t, placementv1alpha1.SplitDuplicate, east, west)
	s.serving(t, "web-4")
	s.says(t, clk, "web", "1 of 4, which are to be", func(st policyv1.PodDisruptionBudgetStatus) bool {
		return st.ExpectedPods == 4 && st.DisruptionsAllowed == 1
	})
	away := func(n int) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"maxUnavailable":%d}}`, n)
		_, err := s.shop.PolicyV1().PodDisruptionBudgets(team).Patch(t.Context(), "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
	away(0)
	s.says(t, clk, "web", "0 of 4, of which none may be away", allowing(0))
	away(1)
	s.says(t, clk, "web", "1 again", allowing(1))

	// What still serves where it does not go any more is about to be taken away, by nobody who asks.
	s.placed(t, placementv1alpha1.SplitEven, west)
	away(2)
	s.says(t, clk, "web", "0, as all are in east", allowing(0))
	away(1)

	// Where nobody knows how many are to be, it is looked at again, though nothing is told.
	s.placed(t, placementv1alpha1.SplitEven)
	s.serving(t, "web-5")
	s.says(t, clk, "web", "that it is placed nowhere", failing("Deployment web is placed nowhere"))
	s.placed(t, placementv1alpha1.SplitDuplicate, east, west)
	s.says(t, clk, "web", "2 of 5", allowing(2))

	// A pod whose ReplicaSet is not kept is its Deployment's. One that is labelled otherwise is not selected any more.
	controlled := func(name string, owners ...metav1.OwnerReference) {
		t.Helper()
		_, err := s.owner(t).CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}, OwnerReferences: owners},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		must(t, err)
		_, err = s.shop.PolicyV1().PodDisruptionBudgets(team).Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
		}}, metav1.CreateOptions{})
		must(t, err)
	}
	set := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-gone", UID: "gone", Controller: ptr.To(true)}
	controlled("pruned", set, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: s.root.UID})
	controlled("orphaned", set)
	labels := map[string]string{"app": "crewed"}
	crew, err := s.shop.AppsV1().ReplicaSets(team).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "crew"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: s.root.Spec.Template.Spec},
	}}, metav1.CreateOptions{})
	must(t, err)
	controlled("crewed", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: crew.Name, UID: crew.UID, Controller: ptr.To(true)})
	hands, err := s.shop.CoreV1().ReplicationControllers(team).Create(t.Context(), &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "hands"}, Spec: corev1.ReplicationControllerSpec{
		Replicas: ptr.To[int32](4), Selector: map[string]string{"app": "handed"},
		Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "handed"}}, Spec: s.root.Spec.Template.Spec},
	}}, metav1.CreateOptions{})
	must(t, err)
	of := metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController", Name: hands.Name, UID: hands.UID, Controller: ptr.To(true)}
	controlled("handed", of)
	of.UID = "another"
	controlled("unhanded", of)
	expecting := func(n int32) func(policyv1.PodDisruptionBudgetStatus) bool {
		return func(st policyv1.PodDisruptionBudgetStatus) bool {
			return st.ExpectedPods == n && len(st.Conditions) == 1 && st.Conditions[0].Reason != policyv1.SyncFailedReason
		}
	}
	s.says(t, clk, "pruned", "4 of its Deployment", expecting(4))
	s.says(t, clk, "crewed", "3 in each of two clusters", expecting(6))
	s.says(t, clk, "handed", "4 in each of two clusters", expecting(8))
	s.says(t, clk, "unhanded", "that its ReplicationController is gone", failing("ReplicationController hands"))
	s.says(t, clk, "orphaned", "that its ReplicaSet is gone", failing("ReplicaSet web-gone"))
	_, err = s.owner(t).CoreV1().Pods(team).Patch(t.Context(), "pruned", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"other"}}}`), metav1.PatchOptions{})
	must(t, err)
	s.says(t, clk, "pruned", "none any more", expecting(0))

	if b, err := inMirror.Get(t.Context(), "web", metav1.GetOptions{}); err != nil || b.Status.ObservedGeneration != 0 {
		t.Errorf("%v: a budget in a mirror is counted: %+v", err, b.Status)
	}
}

// TestBudgets: what cannot be counted allows nothing and says why.
func TestBudgets(t *testing.T) {
	s := startShowing(t)
	runController(t, s.running, func(c *client.Clients, i *client.Informers) (*disruption.Controller, error) {
		return disruption.New(c, i, clock.RealClock{})
	})
	s.placed(t, placementv1alpha1.SplitEven, east)
	s.serving(t, "web-1", "web-2")
	daemons, err := s.owner(t).CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "of-something", Labels: map[string]string{"app": "something"}, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "example.com/v1", Kind: "Something", Name: "x", UID: "u", Controller: ptr.To(true)},
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	budgets := s.shop.PolicyV1().PodDisruptionBudgets(team)
	selecting := func(name, app string, spec policyv1.PodDisruptionBudgetSpec) {
		spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		_, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		must(t, err)
	}
	selecting("number", "web", policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(1))})
	selecting("part", "web", policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromString("50%"))})
	selecting("unscaled", "something", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt(1))})
	_, err = budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(0))}}, metav1.CreateOptions{})
	must(t, err)
	many := metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"web"}}
	for i := range 1000 {
		many.Values = append(many.Values, fmt.Sprint("web-", i))
	}
	_, err = budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "long"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt(0)), Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{many}},
	}}, metav1.CreateOptions{})
	must(t, err)
	s.allows(t, "number", 1)
	s.allows(t, "part", 1)
	s.allows(t, "unscaled", 0)
	s.allows(t, "long", 0)
	if long, err := budgets.Get(t.Context(), "long", metav1.GetOptions{}); err != nil || !failing("bytes of keys and values")(long.Status) {
		t.Errorf("%v: of a selector that is too long it says %+v", err, long)
	}
	s.allows(t, "none", 0)
	unscaled, err := budgets.Get(t.Context(), "unscaled", metav1.GetOptions{})
	must(t, err)
	if c := unscaled.Status.Conditions; len(c) != 1 || c[0].Reason != policyv1.SyncFailedReason || !strings.Contains(c[0].Message, "Something x") {
		t.Errorf("of %s it says %+v, want why nothing is allowed", daemons.Name, c)
	}

	// A count that says nothing new is not written: what was would be counted again, and others meanwhile.
	number, err := budgets.Get(t.Context(), "number", metav1.GetOptions{})
	must(t, err)
	for i := range 3 {
		name := fmt.Sprint("later-", i)
		selecting(name, "web", policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(1))})
		s.allows(t, name, 1)
	}
	if after, err := budgets.Get(t.Context(), "number", metav1.GetOptions{}); err != nil || after.ResourceVersion != number.ResourceVersion {
		t.Errorf("%v: it is written, though nothing is new: %+v after %+v", err, after, number)
	}

	// Who is not ready any more takes from what may go.
	pod, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "web-2", metav1.GetOptions{})
	must(t, err)
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	_, err = s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	s.allows(t, "number", 0)
	s.allows(t, "part", 0)
}
