package endpoints

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/internal/turns"
)

// TestSelectedBy: a Service selects the pods that have all of its labels.
func TestSelectedBy(t *testing.T) {
	pod := map[string]string{"app": "web", "tier": "front"}
	for _, tt := range []struct {
		selector map[string]string
		want     bool
	}{
		{map[string]string{"app": "web"}, true},
		{map[string]string{"app": "web", "tier": "front"}, true},
		{map[string]string{"app": "db", "tier": "front"}, false},
		{map[string]string{"app": "cache"}, false},
		{map[string]string{"tier": ""}, false},
		{map[string]string{"of": ""}, false},
	} {
		if got := selectedBy(tt.selector, pod); got != tt.want {
			t.Errorf("%v is concerned: %v", tt.selector, got)
		}
	}
}

// TestPodsWithManyLabels: of a pod with labels without number none is kept, nor held against others, and all Services are looked at.
func TestPodsWithManyLabels(t *testing.T) {
	many := func(n, size int) map[string]string {
		labels := map[string]string{}
		for i := range n {
			labels[fmt.Sprintf("label-%05d", i)] = strings.Repeat("x", size)
		}
		return labels
	}
	for name, tc := range map[string]struct {
		labels map[string]string
		kept   int
	}{
		"a few":            {many(client.MostLabels, 10), client.MostLabels},
		"one more":         {many(client.MostLabels+1, 10), 1},
		"long ones":        {many(60, 63), 1},
		"without a number": {many(50_000, 0), 1},
	} {
		p := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", Labels: tc.labels}}
		withLabels(p)
		var touched client.Touched
		touched.Add(client.NewLabelled(p.Labels))
		concerned := touched.By(func(labels map[string]string) bool { return selectedBy(map[string]string{"of": "another"}, labels) })
		if all := tc.kept == 1; len(p.Labels) != tc.kept || concerned != all {
			t.Errorf("%s: %d labels are kept, and all Services are concerned: %v; want %d", name, len(p.Labels), concerned, tc.kept)
		}
	}
}

// bare is a controller that nobody runs: what is added to its queue can be asked.
func bare(clk clock.PassiveClock) *Controller {
	c := &Controller{clock: clk, own: newOwn(clk), selecting: map[client.Key]int{}, touched: map[client.Key]*client.Touched{}}
	c.queue = queue.NewWithClock("endpoints-test", clk, func(context.Context, client.Key) (time.Duration, error) { return 0, nil })
	return c
}

// TestPodsOfNoService: pods cost nothing where no Service selects any.
func TestPodsOfNoService(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	c := bare(clk)
	defer c.queue.Stop()
	in := func(o metav1.Object) { o.SetAnnotations(map[string]string{logicalcluster.AnnotationKey: "shop"}) }
	changed := client.Event[*metav1.PartialObjectMetadata]{New: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", Labels: map[string]string{"app": "web"}}}}
	in(changed.New)
	with, without := service(nil), selectorless()
	in(with)
	in(without)
	for _, step := range []struct {
		what     string
		old, new ctrlclient.Object
		touches  bool
	}{
		{"one without a selector", nil, without, false},
		{"it gets one", without, with, true},
		{"it is written", with, with, true},
		{"there is another", nil, with, true},
		{"that goes", with, nil, true},
		{"it loses its selector", with, without, false},
		{"it goes", without, nil, false},
	} {
		c.count(client.Event[ctrlclient.Object]{Old: step.old, New: step.new})
		c.onPod(changed)
		if touches := c.take(client.Key{Cluster: "shop", Namespace: "team"}) != nil; touches != step.touches {
			t.Errorf("%s: a pod is looked at: %v", step.what, touches)
		}
	}
	if len(c.selecting) > 0 {
		t.Errorf("of no Service %v is kept", c.selecting)
	}
}

// TestPause: a workspace pauses for all that a look of it took, as where its webhooks are slow, and not for minutes where the server failed.
func TestPause(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		pause time.Duration
	}{
		"its webhooks are slow": {nil, pause * longest},
		"they write, too":       {fmt.Errorf("write: %w", apierrors.NewConflict(discoveryv1.Resource(resource), "web", errors.New("changed"))), pause * longest},
		"etcd is away":          {errors.New("away"), pause * mostFailed},
	} {
		clk := clocktesting.NewFakeClock(noon)
		lanes := turns.NewLanes[logicalcluster.Name, client.Key](clk, lane)
		lanes.Turn("shop", web)
		clk.Step(longest)
		lanes.Done("shop", counted(longest, tc.err))
		if wait := lanes.Turn("shop", web); wait != tc.pause-apart {
			t.Errorf("%s: the next look is after %s, want %s", name, wait, tc.pause-apart)
		}
	}
}

// TestRelisted: where both feeds have to list all anew, as after etcd was away, all Services are looked at once.
func TestRelisted(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	c := bare(clk)
	c.slicesHeard, c.endpointsHeard = make(chan struct{}), make(chan struct{})
	var asked []client.Key
	ctx, end := context.WithCancel(t.Context())
	after := client.Key{Name: "after"}
	c.queue = queue.NewWithClock("endpoints-test", clk, func(_ context.Context, key client.Key) (time.Duration, error) {
		if asked = append(asked, key); len(asked) == 2 {
			end()
		}
		return 0, nil
	})
	c.heard(c.slicesHeard)
	c.heard(c.endpointsHeard)
	for range 2 {
		c.heard(c.slicesHeard)
		c.heard(c.endpointsHeard)
	}
	c.queue.AddAfter(after, relisted) // what waited before it is in the queue, too, when it is
	clk.Step(relisted)
	for c.queue.Len() < 2 {
		runtime.Gosched()
	}
	c.queue.Run(ctx, 1)
	if len(asked) != 2 || asked[0] == asked[1] || !slices.Contains(asked, everything) {
		t.Errorf("%v are looked at, want everything once", asked)
	}
}

// TestServicesOf: a change of a slice concerns the Service that it names, if it is made here, and the one that owns it, also if it names it no more.
func TestServicesOf(t *testing.T) {
	made := map[string]string{discoveryv1.LabelManagedBy: ControllerName}
	labelled := map[string]string{discoveryv1.LabelManagedBy: ControllerName, discoveryv1.LabelServiceName: "web"}
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "web"}}
	for name, tc := range map[string]struct {
		labels map[string]string
		owners []metav1.OwnerReference
		want   []string
	}{
		"ours":                         {labelled, owner, []string{"web"}},
		"its label was taken away":     {made, owner, []string{"web"}},
		"it is somebody else's now":    {nil, owner, []string{"web"}},
		"it was given to another":      {map[string]string{discoveryv1.LabelManagedBy: ControllerName, discoveryv1.LabelServiceName: "db"}, owner, []string{"db", "web"}},
		"its owner was taken away":     {labelled, nil, []string{"web"}},
		"a user's":                     {map[string]string{discoveryv1.LabelServiceName: "web"}, nil, nil},
		"what mirrors Endpoints":       {map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: MirroringControllerName}, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Endpoints", Name: "web"}}, []string{"web"}},
		"what mirrored them":           {nil, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Endpoints", Name: "web"}}, []string{"web"}},
		"of one that is not there":     {map[string]string{discoveryv1.LabelManagedBy: ControllerName, discoveryv1.LabelServiceName: "gone"}, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "gone"}}, nil},
		"of a Service of another kind": {nil, []metav1.OwnerReference{{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "web"}}, nil},
	} {
		isThere := func(name string) bool { return name != "gone" }
		if got := servicesOf(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels, OwnerReferences: tc.owners}}, isThere); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestOwnersWithoutNumber: of the owners that somebody makes up none is looked at, and it is looked for few of them.
func TestOwnersWithoutNumber(t *testing.T) {
	slice := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelManagedBy: ControllerName, discoveryv1.LabelServiceName: "web"}}}
	for i := range 25_000 {
		slice.OwnerReferences = append(slice.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Service", Name: fmt.Sprint("made-up-", i)})
	}
	slice.OwnerReferences = append(slice.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Service", Name: "db", Controller: ptr.To(true)})
	for name, isThere := range map[string]func(string) bool{
		"made up": func(name string) bool { return !strings.HasPrefix(name, "made-up") },
		"there":   func(string) bool { return true },
	} {
		asked := 0
		names := servicesOf(slice, func(name string) bool { asked++; return isThere(name) })
		if asked > mostOwners+2 || len(names) > mostOwners+2 || !slices.Contains(names, "web") || !slices.Contains(names, "db") || name == "made up" && len(names) != 2 {
			t.Errorf("%s: of 25,000 owners it is looked for %d, and %d Services are looked at: %.100s", name, asked, len(names), names)
		}
	}
}

// TestNews: what is told of a Service is told again after a while.
func TestNews(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	n := newNews(nil, clk)
	for _, tc := range []struct {
		after   time.Duration
		service string
		event   event
		want    bool
	}{
		{0, "web", event{"EndpointsLeftOut", "of 3"}, true},
		{0, "web", event{"EndpointsLeftOut", "of 3"}, false},
		{0, "web", event{"AddressRefused", "of 3"}, true},
		{0, "db", event{"EndpointsLeftOut", "of 3"}, true},
		{0, "web", event{"EndpointsLeftOut", "of 4"}, false},
		{toldOtherwise, "web", event{"EndpointsLeftOut", "of 3"}, false},
		{toldOtherwise, "web", event{"EndpointsLeftOut", "of 4"}, true},
		{toldOtherwise + toldAgain, "web", event{"EndpointsLeftOut", "of 4"}, true},
		{-time.Hour, "web", event{"EndpointsLeftOut", "of 4"}, true}, // the clock was turned back
	} {
		clk.SetTime(noon.Add(tc.after))
		if got := n.isNew(client.Key{Name: tc.service}, tc.event); got != tc.want {
			t.Errorf("after %s, of %s, %+v is told: %v", tc.after, tc.service, tc.event, got)
		}
	}
}
