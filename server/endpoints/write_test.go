package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	clocktesting "k8s.io/utils/clock/testing"
)

var forbidden = apierrors.NewForbidden(discoveryv1.Resource(resource), "web", errors.New("no room"))

// TestAddressesGoFirst: what is refused keeps no address that is to go, and nothing else from being written.
func TestAddressesGoFirst(t *testing.T) {
	pods := []*corev1.Pod{pod("a", "10.1.1.1", nil), pod("b", "10.1.1.2", nil)}
	next := []*corev1.Pod{pod("b", "10.1.1.2", notReady), pod("c", "10.1.1.3", nil)}
	grows := func(verb string, s *discoveryv1.EndpointSlice) error {
		if verb == "create" || slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.TargetRef.Name == "c" }) {
			return forbidden
		}
		return nil
	}
	w := newWorld()
	w.step(t, service(nil), pods)
	w.refuse = grows
	w.step(t, service(nil), next)
	if said := say(w.all()); len(said) != 1 || !strings.Contains(said[0], "uid-of-b") || !strings.Contains(said[0], "ready false") {
		t.Errorf("in a full workspace there is %v, want b alone, that is not ready", said)
	}
	w.refuse = nil
	w.step(t, service(nil), next)
	if diff := cmp.Diff([]string{"b [10.1.1.2]", "c [10.1.1.3]"}, endpointsOf(w.all())); diff != "" {
		t.Errorf("when there is room, -want +got:\n%s", diff)
	}

	// A slice more, and one less, where one is refused.
	w = newWorld()
	var many []*corev1.Pod
	for i := range 2*mostInSlice + 1 {
		many = append(many, pod(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.1.%d.1", i), nil))
	}
	w.step(t, service(nil), many)
	w.refuse = func(verb string, s *discoveryv1.EndpointSlice) error {
		if verb == "update" && len(w.asked) == 1 {
			return errors.New("etcd is away")
		}
		return nil
	}
	w.asked = nil
	w.step(t, service(nil), []*corev1.Pod{pod("new", "10.2.1.1", nil)})
	if left := len(endpointsOf(w.all())); left > mostInSlice {
		t.Errorf("%d endpoints are left where one write failed, want those of one slice: %v", left, w.asked)
	}
	w.refuse = nil
	w.step(t, service(nil), []*corev1.Pod{pod("new", "10.2.1.1", nil)})
	if diff := cmp.Diff([]string{"new [10.2.1.1]"}, endpointsOf(w.all())); diff != "" {
		t.Errorf("tried again, -want +got:\n%s", diff)
	}
}

// TestOrder: slices are changed, then deleted, then made.
func TestOrder(t *testing.T) {
	w := newWorld()
	w.step(t, service(nil), []*corev1.Pod{pod("a", "10.1.1.1", nil)})
	w.step(t, service(nil), []*corev1.Pod{pod("a", "10.1.1.1", nil), pod("b", "2001:db8::1", nil)})
	w.asked = nil
	p := &plan{create: w.all()[:1], remove: w.all()[1:], update: w.all()[:1], before: map[string]*discoveryv1.EndpointSlice{}}
	if err := p.carryOut(t.Context(), w); err != nil || !slices.Equal(w.asked, []string{"update", "remove", "create"}) {
		t.Errorf("%v, %v", w.asked, err)
	}
}

// TestNothingIsTaken: where webhooks of others hang, or one of the workspace cannot be called, the first write finds that out and no other waits for it. The operator has nothing to mend.
func TestNothingIsTaken(t *testing.T) {
	busy := apierrors.NewTooManyRequests("too many requests of the server itself wait for admission webhooks, of this workspace or of others: it tries again", 0)
	uncalled := apierrors.NewInternalError(errors.New(`failed calling webhook "slices.example.com": failed to call webhook: context deadline exceeded`))
	denied := webhookerrors.ToStatusErr("slices.example.com", &metav1.Status{Code: 429, Reason: metav1.StatusReasonTooManyRequests, Message: "no"})
	p := &plan{before: map[string]*discoveryv1.EndpointSlice{}}
	for i := range 400 {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i)}}
		p.before[s.Name] = s
		switch {
		case i < 200:
			p.update = append(p.update, s)
		case i < 300:
			p.remove = append(p.remove, s)
		default:
			p.create = append(p.create, s)
		}
	}
	for name, tc := range map[string]struct {
		err    error
		writes int
		again  time.Duration
	}{
		"webhooks of others hang":     {busy, 1, time.Second},
		"a webhook cannot be called":  {uncalled, 1, firstRefused},
		"a webhook denies everything": {denied, 400, firstRefused},
	} {
		w := newWorld()
		w.refuse = func(string, *discoveryv1.EndpointSlice) error { return fmt.Errorf("write: %w", tc.err) }
		d := done{outcome: sortOut(p.carryOut(t.Context(), w))}
		again, err := bare(clocktesting.NewFakeClock(noon)).next(web, d, false)
		if len(w.asked) != tc.writes || d.theirs == nil || again != tc.again || err != nil {
			t.Errorf("%s: there are %d writes, want %d; its people are told %.100v; again after %s, want %s; the operator is told %.100v", name, len(w.asked), tc.writes, d.theirs, again, tc.again, err)
		}
	}
}

// TestNoTime: where the time of a look is over when some is written, as where a webhook answers late, it goes on soon, and nobody is told. Where nothing is, the operator is, once.
func TestNoTime(t *testing.T) {
	p := &plan{before: map[string]*discoveryv1.EndpointSlice{}}
	for i := range 100 {
		p.create = append(p.create, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "team", GenerateName: fmt.Sprintf("web-%d-", i)}, AddressType: discoveryv1.AddressTypeIPv4})
	}
	for name, tc := range map[string]struct {
		written int
		err     error
		again   time.Duration
		ours    bool
	}{
		"some is written":                    {3, context.DeadlineExceeded, slicesTogether, false},
		"some is, and the server says so":    {3, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0), slicesTogether, false},
		"nothing is":                         {0, context.DeadlineExceeded, 0, true},
		"some is, and the last is refused":   {3, forbidden, firstRefused, false},
		"some is, and a webhook cannot tell": {3, apierrors.NewInternalError(errors.New(`failed calling webhook "slices.example.com": context deadline exceeded`)), firstRefused, false},
	} {
		late := &lateContext{Context: t.Context()}
		w := newWorld()
		w.refuse = func(string, *discoveryv1.EndpointSlice) error {
			if len(w.asked) <= tc.written {
				return nil
			}
			late.is = true
			return fmt.Errorf("create: %w", tc.err)
		}
		d := done{outcome: sortOut(p.carryOut(late, w))}
		again, err := bare(clocktesting.NewFakeClock(noon)).next(web, d, false)
		if len(w.asked) != tc.written+1 || again != tc.again || (err != nil) != tc.ours {
			t.Errorf("%s: there are %d writes, want %d; again after %s, want %s; the operator is told %v", name, len(w.asked), tc.written+1, again, tc.again, err)
		}
	}
}

// lateContext is one whose time is over when a test says so.
type lateContext struct {
	context.Context
	is bool
}

func (c *lateContext) Err() error {
	if c.is {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

// TestWithout: what is written in the place of what was refused has no more than there is.
func TestWithout(t *testing.T) {
	w := newWorld()
	w.step(t, service(nil), []*corev1.Pod{pod("a", "10.1.1.1", nil), pod("b", "10.1.1.2", nil)})
	is := w.all()[0]
	next := is.DeepCopy()
	next.Labels["more"] = "of them"
	next.Endpoints = append(next.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.1.1.3"}})
	if less := without(is, next); less != nil {
		t.Errorf("nothing goes, and %v is written", less)
	}
	next.Endpoints = next.Endpoints[1:]
	less := without(is, next)
	if less == nil || len(less.Endpoints) != 1 || len(less.Labels) != len(is.Labels) || less.Size() >= is.Size() {
		t.Errorf("%v, want one endpoint less", less)
	}
	next.Ports[0].Port = new(int32(81)) // where it leads now nobody may be sent any more
	if less := without(is, next); less == nil || len(less.Endpoints) != 0 {
		t.Errorf("%v, want none at the old port", less)
	}
}

// TestSortOut: what is for the people of a workspace to mend is theirs, and each of several errors is told to whom it is for.
func TestSortOut(t *testing.T) {
	busy := apierrors.NewTooManyRequests("a quota is counted", 3)
	terminating := apierrors.NewForbidden(discoveryv1.Resource(resource), "web", errors.New("it goes"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	conflict := apierrors.NewConflict(discoveryv1.Resource(resource), "web", errors.New("changed"))
	uncalled := apierrors.NewInternalError(errors.New(`failed calling webhook "slices.example.com": failed to call webhook: connection refused`))
	denied := webhookerrors.ToStatusErr("slices.example.com", &metav1.Status{Code: 409, Reason: metav1.StatusReasonConflict, Message: "no"})
	unknown := apierrors.NewUnauthorized("endpointslices.discovery.k8s.io \"web\" is forbidden: ValidatingAdmissionPolicy 'few' with binding 'all' denied request: too many")
	away, internal := errors.New("away"), apierrors.NewInternalError(errors.New("a row cannot be read"))
	late := fmt.Errorf("update: %w", context.DeadlineExceeded)
	for name, tc := range map[string]struct {
		err          error
		theirs, ours []error
		wait         time.Duration
	}{
		"nothing":                      {nil, nil, nil, 0},
		"nothing of several":           {errors.Join(nil, nil), nil, nil, 0},
		"refused":                      {fmt.Errorf("update: %w", forbidden), []error{forbidden}, nil, 0},
		"twice":                        {errors.Join(errors.Join(forbidden, busy), nil, forbidden), []error{forbidden, busy, forbidden}, nil, 3 * time.Second},
		"held":                         {busy, []error{busy}, nil, 3 * time.Second},
		"changed":                      {errors.Join(forbidden, conflict), []error{forbidden}, []error{conflict}, 0},
		"etcd is away":                 {away, nil, []error{away}, 0},
		"refused, and etcd is away":    {errors.Join(forbidden, away), []error{forbidden}, []error{away}, 0},
		"changed, and etcd is away":    {errors.Join(conflict, away), nil, []error{away}, 0},
		"a fault of the server's":      {internal, nil, []error{internal}, 0},
		"too large":                    {apierrors.NewRequestEntityTooLargeError("large"), []error{apierrors.NewRequestEntityTooLargeError("large")}, nil, 0},
		"its namespace is deleted":     {terminating, nil, nil, 0},
		"that, and etcd is away":       {errors.Join(terminating, away), nil, []error{away}, 0},
		"a webhook that is not there":  {fmt.Errorf("update: %w", uncalled), []error{uncalled}, nil, 0},
		"one that answers with a code": {fmt.Errorf("create: %w", denied), []error{denied}, nil, 0},
		"a policy that knows nobody":   {fmt.Errorf("create: %w", unknown), []error{unknown}, nil, 0},
		"the server knows nobody":      {apierrors.NewUnauthorized("a token has expired"), nil, []error{apierrors.NewUnauthorized("a token has expired")}, 0},
		"one that takes all the time":  {errors.Join(uncalled, late, late), []error{uncalled}, nil, 0},
		"no time, and nobody says why": {errors.Join(forbidden, late), []error{forbidden}, []error{late}, 0},
	} {
		got := sortOut(tc.err)
		is := func(got error, want []error) bool {
			return (got == nil) == (len(want) == 0) && (got == nil || len(strings.Split(got.Error(), "\n")) == len(want)) &&
				!slices.ContainsFunc(want, func(w error) bool { return !strings.Contains(got.Error(), w.Error()) })
		}
		if !is(got.theirs, tc.theirs) || !is(got.ours, tc.ours) || got.wait != tc.wait {
			t.Errorf("%s: theirs is %v, ours %v, after %s; want %v, %v, after %s", name, got.theirs, got.ours, got.wait, tc.theirs, tc.ours, tc.wait)
		}
		if conflict := slices.Equal(tc.ours, []error{conflict}); apierrors.IsConflict(got.ours) != conflict {
			t.Errorf("%s: it is tried again without a word: %v, want %v", name, !conflict, conflict)
		}
	}
	r := requests{own: newOwn(clocktesting.NewFakePassiveClock(noon)), of: web}
	gone := webhookerrors.ToStatusErr("slices.example.com", &metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound})
	if err := r.wrote("web", "1", gone, "create"); sortOut(err).theirs == nil {
		t.Errorf("what a webhook denies as not found is %v", err)
	}
	if err := r.wrote("web", "1", apierrors.NewNotFound(discoveryv1.Resource(resource), "web"), "update"); !apierrors.IsConflict(sortOut(err).ours) {
		t.Errorf("one that is gone is %v", err)
	}
}

// TestManyFail: of hundreds that fail the operator reads a line, and it is known what they are.
func TestManyFail(t *testing.T) {
	conflict := apierrors.NewConflict(discoveryv1.Resource(resource), "web", errors.New("changed"))
	for name, one := range map[string]error{"conflicts": conflict, "others": errors.New(strings.Repeat("away ", 20))} {
		var all []error
		for range 400 {
			all = append(all, fmt.Errorf("update: %w", one))
		}
		_, err := bare(clocktesting.NewFakeClock(noon)).next(web, done{outcome: sortOut(errors.Join(all...))}, false)
		if err == nil || len(err.Error()) > 2*mostSaid || apierrors.IsConflict(err) != (one == conflict) || !errors.Is(err, one) {
			t.Errorf("%s: the operator is told %d bytes: %.100v", name, len(fmt.Sprint(err)), err)
		}
	}
}

// TestChanges: what of a Service is a reason to look at it.
func TestChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Service)
		want   bool
	}{
		"nothing": {func(*corev1.Service) {}, false},
		"its status": {func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}, false},
		"an annotation": {func(s *corev1.Service) { s.Annotations = map[string]string{"a": "b"} }, false},
		"hints, by an annotation": {func(s *corev1.Service) {
			s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		}, true},
		"its labels":    {func(s *corev1.Service) { s.Labels["a"] = "b" }, true},
		"its ports":     {func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("a") }, true},
		"its selector":  {func(s *corev1.Service) { s.Spec.Selector = nil }, true},
		"it is another": {func(s *corev1.Service) { s.UID = "another" }, true},
	} {
		if got := changes(service(nil), service(tc.change)); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
