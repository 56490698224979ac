package workspaces

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// deletes is a client of which deletions end as a function says.
type deletes func(ctx context.Context, name string) error

func (d deletes) Resource(schema.GroupVersionResource) metadata.Getter { return getter{deletes: d} }

type getter struct {
	metadata.ResourceInterface
	deletes deletes
}

func (g getter) Namespace(string) metadata.ResourceInterface { return g }

func (g getter) Delete(ctx context.Context, name string, _ metav1.DeleteOptions, _ ...string) error {
	return g.deletes(ctx, name)
}

// asker is a controller that can do no more than ask.
func asker(d deletes) *Controller {
	return &Controller{clients: &client.Clients{Metadata: d}, asks: make(chan struct{}, asking), waits: map[client.Key]*wait{}}
}

// unasked are n widgets that a finalizer holds and nobody has asked to go.
func unasked(n int) (held lcctx.Held) {
	for i := range n {
		o := lcctx.HeldObject{Resource: schema.GroupVersionResource{Group: "shop.example", Version: "v1", Resource: "widgets"}, Name: fmt.Sprint("w", i)}
		held.Add(o, []string{"shop.example/a"}, false)
	}
	return held
}

func workspace(name string) *tenancyv1alpha1.Workspace {
	return &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: tenancyv1alpha1.WorkspaceSpec{Cluster: "c" + name}}
}

// The rest grows while nothing changes, also where something cannot be asked, and begins anew when something does.
func TestRest(t *testing.T) {
	more := unasked(1)
	more.Add(lcctx.HeldObject{Resource: schema.GroupVersionResource{Resource: "configmaps"}, Name: "cm"}, []string{"shop.example/a"}, true)
	asked, other := unasked(1), unasked(1)
	asked.Unasked, other.Unasked[0].Name = nil, "other"
	for _, tc := range []struct {
		reason string
		found  []lcctx.Held
		want   time.Duration
	}{
		{"the first look", []lcctx.Held{unasked(1)}, firstLook},
		{"what cannot be asked", []lcctx.Held{unasked(1), unasked(1), unasked(1)}, 4 * firstLook},
		{"it has been asked", []lcctx.Held{unasked(1), unasked(1), asked}, firstLook},
		{"asked, and nothing happens", []lcctx.Held{asked, asked, asked}, 4 * firstLook},
		{"another one is unasked", []lcctx.Held{unasked(1), unasked(1), other}, firstLook},
		{"one more is held", []lcctx.Held{unasked(1), unasked(1), more}, firstLook},
	} {
		w, got := &wait{}, time.Duration(0)
		for _, found := range tc.found {
			got = w.next(found)
		}
		if got != tc.want {
			t.Errorf("%s: rest %v, want %v", tc.reason, got, tc.want)
		}
	}
}

// A workspace whose webhooks do not answer has a worker for a few seconds at a time.
func TestAskEnds(t *testing.T) {
	c := asker(func(ctx context.Context, name string) error {
		if until, ok := ctx.Deadline(); !ok || time.Until(until) > askTime {
			t.Errorf("%s is asked until %v, %v", name, until, ok)
		}
		return context.DeadlineExceeded
	})
	if left, again := c.ask(t.Context(), workspace("shop"), nil, unasked(3*askParallel), 0); left.refused == "" || again == 0 || len(c.asks) != 0 {
		t.Errorf("left %+v, again in %v, and %d are asking; want a reason, a rest, and none", left, again, len(c.asks))
	}
}

// Workspaces that take their time leave workers for others.
func TestFewAsk(t *testing.T) {
	entered, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c := asker(func(context.Context, string) error {
		entered <- struct{}{}
		<-release
		return nil
	})
	for i := range asking {
		go func() {
			c.ask(t.Context(), workspace(fmt.Sprint("slow", i)), nil, unasked(1), 0)
			done <- struct{}{}
		}()
		<-entered
	}
	returned := make(chan time.Duration)
	go func() {
		_, again := c.ask(t.Context(), workspace("more"), nil, unasked(1), 0)
		returned <- again
	}()
	select {
	case again := <-returned:
		if again == 0 || again > askAgain {
			t.Errorf("again in %v, want soon", again)
		}
	case <-entered:
		t.Errorf("one more asks while %d do", asking)
		defer func() { <-returned }()
	}
	close(release)
	for range asking {
		<-done
	}
	if len(c.asks) != 0 {
		t.Errorf("%d are asking, want none", len(c.asks))
	}
}

// Where every look finds something new, most of the time is none's, also while others ask.
func TestLooksTakeAPartOfTheTime(t *testing.T) {
	for _, tc := range []struct {
		reason string
		took   time.Duration
		busy   bool // as many ask as may
		want   time.Duration
	}{
		{"a short look", time.Millisecond, false, firstLook},
		{"a look of a second", time.Second, false, 20 * time.Second},
		{"a short look while others ask", time.Millisecond, true, firstLook},
		{"a look of a second while others ask", time.Second, true, 20 * time.Second},
		{"a look that met a store that was away", time.Hour, false, longestRest},
	} {
		c := asker(func(context.Context, string) error { return nil })
		for tc.busy && len(c.asks) < cap(c.asks) {
			c.asks <- struct{}{}
		}
		for n := range 10 {
			if left, again := c.ask(t.Context(), workspace("shop"), nil, unasked(n+1), tc.took); left.nothing() || again != tc.want {
				t.Fatalf("%s: rest %v after look %d, want %v; left %+v", tc.reason, again, n+1, tc.want, left)
			}
		}
	}
}

// Who may see a Workspace, but not what is in it, reads no name and no text from inside.
func TestRefusalTellsNothingFromInside(t *testing.T) {
	unserved := unasked(1)
	unserved.Unasked[0].Resource.Version = ""
	for _, tc := range []struct {
		held lcctx.Held
		err  error
		want string
	}{
		{unasked(1), apierrors.NewInternalError(errors.New("conversion webhook: secret")), "InternalError"},
		{unasked(1), fmt.Errorf("secret: %w", context.DeadlineExceeded), "no answer in time"},
		{unasked(1), errors.New("secret"), "no answer, or one that is none"},
		{unserved, nil, "the resource is defined but not served"},
	} {
		left, _ := asker(func(context.Context, string) error { return tc.err }).ask(t.Context(), workspace("shop"), nil, tc.held, 0)
		want := "Waiting for finalizers of widgets.shop.example (1): shop.example/a (1). Some widgets.shop.example cannot be deleted: " + tc.want
		if got := left.condition(1).Message; got != want {
			t.Errorf("%v: the condition says\n%s, want\n%s", tc.err, got, want)
		}
	}
}
