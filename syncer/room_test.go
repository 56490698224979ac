package syncer

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

// TestLongAnswers: what one request brings is bounded, however it is packed; an object of the largest size passes.
func TestLongAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		length int
		want   string // of the error; "" for none
	}{
		"Largest":  {3 << 20, ""},
		"TooLong":  {mostOfAnswer, "longer than 8Mi"},
		"VeryLong": {64 << 20, "longer than 8Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			var passed atomic.Int64
			s := newIdle(t, nil, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", "gzip")
				zip := gzip.NewWriter(w)
				_, _ = io.WriteString(zip, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","namespace":"shop-1"},"data":{"k":"`)
				for block := strings.Repeat("x", 1<<16); passed.Load() < int64(tc.length); passed.Add(int64(len(block))) {
					if _, err := io.WriteString(zip, block); err != nil {
						return
					}
				}
				_, _ = io.WriteString(zip, `"}}`)
				_ = zip.Close()
			})
			_, err := s.physical.dynamic.Resource(configMapsGVR).Namespace("shop-1").Get(t.Context(), "settings", metav1.GetOptions{})
			if tc.want == "" {
				if err != nil {
					t.Errorf("%d bytes: %v", tc.length, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("%d bytes are taken", tc.length)
			}
			if r := refusalOf(err); r == nil || r.reason != refusedUnreachable || !strings.Contains(r.message, tc.want) {
				t.Errorf("%d bytes: the error is %v, taken for %+v, want %s: ... %s", tc.length, err, r, refusedUnreachable, tc.want)
			}
		})
	}
}

// crowd is a physical cluster that shows ConfigMaps, of whatever selector.
type crowd struct {
	// shown is how many there are, each of length bytes.
	shown, length atomic.Int64
	// told is how many more a watch tells of that did not begin with a list; long is the length of its first event.
	told, long atomic.Int64
	// old says that watches do not begin with lists.
	old bool
}

func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	if !query.Has("watch") {
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"5"},"items":[`)
		for n := range c.shown.Load() {
			if n > 0 {
				_, _ = io.WriteString(w, ",")
			}
			c.object(w, "shown", n, c.length.Load())
		}
		_, _ = io.WriteString(w, "]}")
		return
	}
	listing := query.Get("sendInitialEvents") == "true"
	if listing && c.old {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		return
	}
	added := func(name string, n, length int64) {
		_, _ = io.WriteString(w, `{"type":"ADDED","object":`)
		c.object(w, name, n, length)
		_, _ = io.WriteString(w, "}\n")
	}
	if listing {
		for n := range c.shown.Load() {
			added("shown", n, c.length.Load())
		}
		_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n")
	}
	if long := c.long.Load(); long > 0 {
		added("long", 0, long)
	}
	for n := range c.told.Load() {
		added("told", n, c.length.Load())
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func (c *crowd) object(w io.Writer, name string, n, length int64) {
	_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"shop-1","name":"%s-%d","resourceVersion":"5"},"data":{"k":"`, name, n)
	for block := strings.Repeat("x", 1<<12); length > 0; length -= int64(len(block)) {
		_, _ = io.WriteString(w, block[:min(length, int64(len(block)))])
	}
	_, _ = io.WriteString(w, `"}}`)
}

// TestRoom: whatever a physical cluster shows, in lists, before or after them, no more of it is held than there is room for; the
// syncer says what is too much, and goes on where it is not any more.
func TestRoom(t *testing.T) {
	const most = 8 << 20
	full := "Cannot list and watch configmaps: physical cluster \"east\" shows more, of all resources together, than the 8Mi"
	for name, tc := range map[string]struct {
		shown, length, told, long int64
		want                      string // the beginning of what is said; "" for nothing
	}{
		"Fits":       {shown: 80, length: 10_000},
		"Many":       {shown: 1_500, length: 10_000, want: full},
		"ManySmall":  {shown: 10_000, length: 1, want: full},
		"ManyLater":  {shown: 80, length: 10_000, told: 1_500, want: full},
		"SmallLater": {told: 10_000, length: 1, want: full},
		"Long":       {shown: 1, length: 20 << 20, want: "Cannot list and watch configmaps: an answer, or an object of a list or event of a watch, is longer than 8Mi"},
		"LongLater":  {long: 20 << 20, want: "Cannot list and watch configmaps: an answer, or an object of a list or event of a watch, is longer than 8Mi"},
	} {
		for how, old := range map[string]bool{"WatchList": false, "List": true} {
			t.Run(name+"/"+how, func(t *testing.T) {
				c := &crowd{old: old}
				c.shown.Store(tc.shown)
				c.length.Store(tc.length)
				c.told.Store(tc.told)
				c.long.Store(tc.long)
				s := newIdle(t, nil, c.ServeHTTP)
				clock := testingclock.NewFakeClock(time.Now())
				s.room.most, s.room.clock = most, clock
				ctx, cancel := context.WithCancel(t.Context())
				i := s.physical.informers[configMapsGVR]
				done := make(chan struct{})
				go func() {
					defer close(done)
					i.run(ctx)
				}()
				defer func() { cancel(); <-done }()
				wait := func(objects int, want string) {
					t.Helper()
					for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
						said := cannotWatch(s.blind(), false, time.Now())
						var held int64
						for _, o := range i.List() {
							held += size(o.(*unstructured.Unstructured).Object)
						}
						if held > most {
							t.Fatalf("holds %d objects of %d bytes, there is room for %d; what is said is %q", len(i.ListKeys()), held, most, said)
						}
						if (objects < 0 || len(i.ListKeys()) == objects) && strings.HasPrefix(said, want) && (want == "") == (said == "") {
							return
						}
						if clock.HasWaiters() {
							clock.Step(fullRest)
						}
						if time.Now().After(deadline) {
							t.Fatalf("holds %d objects, want %d; what is said is %q, want %q", len(i.ListKeys()), objects, said, want)
						}
					}
				}
				if tc.want != "" {
					wait(-1, tc.want)
					c.shown.Store(min(tc.shown, 80))
					c.length.Store(min(tc.length, 10_000))
					c.told.Store(0)
					c.long.Store(0)
				}
				wait(int(min(tc.shown, 80)), "")
				s.room.mu.Lock()
				defer s.room.mu.Unlock()
				if s.room.taken <= 0 && tc.shown > 0 || s.room.taken > most {
					t.Errorf("%d bytes are taken", s.room.taken)
				}
			})
		}
	}
}

// TestNodesAfterLackOfRoom: Nodes that had no room are not missed any more when there is room again, or when nobody may see them.
func TestNodesAfterLackOfRoom(t *testing.T) {
	refuse := func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
	}
	for name, later := range map[string]func(c *crowd, w http.ResponseWriter, r *http.Request){
		"Room": func(c *crowd, w http.ResponseWriter, r *http.Request) {
			c.shown.Store(10)
			c.ServeHTTP(w, r)
		},
		"Forbidden": func(_ *crowd, w http.ResponseWriter, _ *http.Request) { refuse(w) },
		"WatchForbidden": func(c *crowd, w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("watch") {
				refuse(w)
				return
			}
			c.shown.Store(10)
			c.ServeHTTP(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &crowd{}
			c.shown.Store(10_000)
			c.length.Store(1)
			var changed atomic.Bool
			s := newIdle(t, nil, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if changed.Load() {
					later(c, w, r)
					return
				}
				c.ServeHTTP(w, r)
			})
			clock := testingclock.NewFakeClock(time.Now())
			s.config.Clock, s.room.most, s.room.clock = clock, 1<<20, clock
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				s.nodes.run(ctx)
			}()
			defer func() { cancel(); <-done }()
			wait := func(want string) {
				t.Helper()
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
					said := cannotWatch(s.blind(), false, time.Now())
					if strings.HasPrefix(said, want) && (want == "") == (said == "") {
						return
					}
					clock.Step(fullRest) // in which a refusal is said again
					if time.Now().After(deadline) {
						t.Fatalf("what is said is %q, want %q", said, want)
					}
				}
			}
			wait(`Cannot list and watch nodes: physical cluster "east" shows more`)
			changed.Store(true)
			wait("")
		})
	}
}

// TestRestAfterLackOfRoom: what was too much is not asked for again before a minute has passed, and is then, by a list or a watch,
// also by the Syncer that begins anew; other resources are.
func TestRestAfterLackOfRoom(t *testing.T) {
	c := &crowd{old: true}
	c.shown.Store(1_500)
	c.length.Store(10_000)
	var asked atomic.Int64
	clock := testingclock.NewFakeClock(time.Now())
	s := newIdle(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/configmaps") {
			asked.Add(1)
		}
		c.ServeHTTP(w, r)
	})
	s.config.Clock, s.config.MaxBytes = clock, 8<<20
	fail := func(s *Syncer, try func(s *Syncer) error) {
		t.Helper()
		if err := try(s); err == nil {
			t.Fatal("it has room")
		}
	}
	byList := func(s *Syncer) error {
		_, err := list(t.Context(), s.physical.informers[configMapsGVR])
		return err
	}
	byWatch := func(s *Syncer) error {
		o := metav1.ListOptions{SendInitialEvents: ptr.To(true)}
		_, err := cache.ToListerWatcherWithContext(s.physical.informers[configMapsGVR].from).WatchWithContext(t.Context(), o)
		return err
	}
	s, err := s.anew()
	if err != nil {
		t.Fatal(err)
	}
	fail(s, byList)
	for name, try := range map[string]func(s *Syncer) error{"list": byList, "watch": byWatch} {
		if s, err = s.anew(); err != nil {
			t.Fatal(err)
		}
		before := asked.Load()
		c.shown.Store(0)
		if _, err := list(t.Context(), s.physical.informers[networkPoliciesGVR]); err != nil {
			t.Fatalf("%s: another resource: %v", name, err)
		}
		c.shown.Store(1_500)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = try(s)
		}()
		for !clock.HasWaiters() {
			select {
			case <-done:
				t.Fatalf("%s: asked again at once, %d times", name, asked.Load()-before)
			case <-time.After(time.Millisecond):
			}
		}
		clock.Step(fullRest - time.Nanosecond)
		if !clock.HasWaiters() || asked.Load() != before {
			t.Fatalf("%s: asked again before a minute has passed", name)
		}
		clock.Step(time.Nanosecond)
		<-done
		if asked.Load() != before+1 {
			t.Fatalf("%s: asked %d times after a minute, want once", name, asked.Load()-before)
		}
		clock.Step(fullRest)
		fail(s, byList)
	}
}

// TestHolding: what goes makes room, by an event or since a list does not bring it; a list that comes in takes no room besides
// what it replaces, and one that fails changes nothing.
func TestHolding(t *testing.T) {
	r := &room{most: 1 << 16}
	h := newHolding(r, nil)
	var all []*unstructured.Unstructured
	for n := range 100 {
		o := configMap("1", strings.Repeat("x", 10_000))
		o.SetName(fmt.Sprint("settings-", n))
		if err := h.take(o); err != nil {
			t.Fatalf("object %d: %v", n, err)
		}
		if n < 4 {
			all = append(all, o)
		} else {
			h.give(o)
		}
	}
	taken := r.taken
	list := func(objects ...*unstructured.Unstructured) (err error) {
		coming := h.begin(false)
		for _, o := range objects {
			if err == nil {
				err = h.add(o)
			}
		}
		h.end(coming, err == nil)
		return err
	}
	if err := list(all...); err != nil || r.taken != taken {
		t.Errorf("the same is listed again: %d bytes are taken, want %d: %v", r.taken, taken, err)
	}
	if err := list(slices.Repeat(all[:1], 8)...); err == nil || r.taken != taken {
		t.Errorf("a list that is too long, of the same: %d bytes are taken, want %d: %v", r.taken, taken, err)
	}
	if err := list(all[0]); err != nil || r.taken != taken/4 {
		t.Errorf("a fourth is left: %d bytes are taken, want %d: %v", r.taken, taken/4, err)
	}
	if h.give(all[0]); r.taken != 0 {
		t.Errorf("%d bytes are taken by nothing", r.taken)
	}
}

// slowWatch does not end when it is stopped.
type slowWatch chan watch.Event

func (w slowWatch) Stop()                          {}
func (w slowWatch) ResultChan() <-chan watch.Event { return w }

// TestListAfterWatch: a watch that begins with a list, and has failed or was left, takes nothing from the list that follows it.
func TestListAfterWatch(t *testing.T) {
	for _, fails := range []bool{true, false} {
		t.Run(fmt.Sprint("Fails=", fails), func(t *testing.T) {
			r := &room{most: 1 << 20}
			h := newHolding(r, func(o *unstructured.Unstructured) *unstructured.Unstructured { return o })
			if err := h.take(configMap("1", strings.Repeat("x", 10_000))); err != nil {
				t.Fatal(err)
			}
			events := make(slowWatch, 1)
			w, err := h.watch(t.Context(), metav1.ListOptions{SendInitialEvents: ptr.To(true)},
				func(context.Context, metav1.ListOptions) (watch.Interface, error) { return events, nil }, func(error) {})
			if err != nil {
				t.Fatal(err)
			}
			if fails {
				events <- watch.Event{Type: watch.Error, Object: &metav1.Status{}}
				<-w.ResultChan()
			}
			w.Stop()
			_, err = h.list(t.Context(), metav1.ListOptions{}, func(context.Context, metav1.ListOptions) (io.ReadCloser, error) {
				close(events)
				for range w.ResultChan() {
				}
				return io.NopCloser(strings.NewReader(`{"items":[{"metadata":{"name":"other"}}]}`)), nil
			})
			if err != nil || r.taken == 0 || r.taken > 10_000 || h.coming != nil {
				t.Errorf("%d bytes are taken by one small object: %v", r.taken, err)
			}
		})
	}
}
