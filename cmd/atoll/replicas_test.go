package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"atoll.dev/atoll/server"
)

// lease is what servers compete for, with the versions of a real one.
type lease struct {
	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int
	level   int
}

// sight is one server's way to the lease.
type sight struct {
	*lease
	identity string
	own      int // level
	seen     int
	away     bool
	dark     bool // the level cannot be read
}

var errAway = errors.New("etcd is away")

func (s *sight) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *sight) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, nil, errAway
	}
	if s.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, replicasLease)
	}
	s.seen = s.version
	record := *s.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (s *sight) Create(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	return s.write(record, 0)
}

func (s *sight) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	return s.write(record, s.seen)
}

func (s *sight) write(record resourcelock.LeaderElectionRecord, seen int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	if s.version != seen {
		return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, replicasLease, nil)
	}
	s.record, s.version, s.seen = &record, s.version+1, s.version+1
	return nil
}

func (s *sight) RecordEvent(string)      {}
func (s *sight) Identity() string        { return s.identity }
func (s *sight) Describe() string        { return "the lease" }
func (s *sight) leadership() *leadership { return newLeader(s, s.raise, readClocks) }

// raise is what RaiseLevel is.
func (s *sight) raise(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.away, s.dark:
		return errAway
	case s.level > s.own:
		return server.ErrLaterLevel
	}
	s.level = s.own
	return nil
}

func newLeader(lock resourcelock.Interface, level func(context.Context) error, now func() reading) *leadership {
	return &leadership{lock: lock, level: level, right: right{trust: replicasTrust, now: now}}
}

// working is a leadership that runs until the test ends, and tells whether its work goes on, how often it began, and how run
// ended.
type working struct {
	mu    sync.Mutex
	works bool
	terms int
	ended error
	over  bool
}

func begin(t *testing.T, l *leadership) *working {
	return beginWork(t, l, func(int) {})
}

// beginWork is begin with work that takes its time to end.
func beginWork(t *testing.T, l *leadership, ending func(term int)) *working {
	w := &working{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := l.run(ctx, func(ctx context.Context) error {
			var term int
			w.set(func() { w.works, w.terms, term = true, w.terms+1, w.terms+1 })
			<-ctx.Done()
			ending(term)
			w.set(func() { w.works = false })
			return nil
		})
		w.set(func() { w.ended, w.over = err, true })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *working) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *working) state() (works, over bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.works, w.over, w.ended
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestOneLeads: of two servers one works; when it cannot reach etcd for long the other does, and the first changes nothing
// from before that on. When it sees it, its work ends, and it waits for its next term.
func TestOneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &lease{}
		one, two := &sight{lease: shared, identity: "one"}, &sight{lease: shared, identity: "two"}
		first, second := one.leadership(), two.leadership()
		w1 := begin(t, first)
		pass(time.Second)
		w2 := begin(t, second)
		pass(time.Hour)
		if works, _, _ := w1.state(); !works || first.holds() != nil {
			t.Fatal("the first does not lead")
		}
		if works, _, _ := w2.state(); works || second.holds() == nil {
			t.Fatal("both lead")
		}
		one.set(true)
		taken := false
		for range 600 {
			pass(100 * time.Millisecond)
			taken = second.holds() == nil
			if taken && first.holds() == nil {
				t.Fatal("both may change something")
			}
			if taken {
				break
			}
		}
		if !taken {
			t.Fatal("the second does not lead a minute after the first is cut off")
		}
		if _, over, _ := w1.state(); over {
			t.Error("the first ended before it knew that another leads")
		}
		one.set(false)
		pass(10 * time.Second)
		if works, over, err := w1.state(); works || over || first.holds() == nil {
			t.Errorf("the first works: %v, is over: %v, with %v, may change something: %v", works, over, err, first.holds() == nil)
		}
		if works, _, _ := w2.state(); !works {
			t.Error("the second does not work")
		}
		two.set(true)
		pass(time.Minute)
		two.set(false)
		pass(10 * time.Second)
		if works, over, err := w1.state(); !works || over || first.holds() != nil || w1.terms != 2 {
			t.Errorf("after the second was cut off, the first works: %v, in term %d, is over: %v, with %v, may change something: %v", works, w1.terms, over, err, first.holds() == nil)
		}
		if works, over, err := w2.state(); works || over || second.holds() == nil {
			t.Errorf("the second works: %v, is over: %v, with %v, may change something: %v", works, over, err, second.holds() == nil)
		}
	})
}

// TestEarlierVersionLeadsNoMore: once a server of a later version has led, one of an earlier never does again, though nobody else is there to. It
// serves on, and does not stand in the way of others.
func TestEarlierVersionLeadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &lease{}
		one, two := &sight{lease: shared, identity: "one", own: 1}, &sight{lease: shared, identity: "two", own: 2}
		first, second := one.leadership(), two.leadership()
		w1 := begin(t, first)
		pass(time.Second)
		if works, _, _ := w1.state(); !works || shared.level != 1 {
			t.Fatalf("the first works: %v, at level %d", works, shared.level)
		}
		w2 := begin(t, second)
		pass(time.Minute)
		if shared.level != 1 {
			t.Errorf("the level is %d, raised by who does not lead", shared.level)
		}
		one.set(true)
		pass(time.Minute)
		if works, _, _ := w2.state(); !works || shared.level != 2 {
			t.Fatalf("the second works: %v, at level %d", works, shared.level)
		}
		one.set(false)
		pass(10 * time.Second)
		two.set(true)
		pass(time.Hour)
		if works, over, err := w1.state(); works || over || w1.terms != 1 || first.holds() == nil {
			t.Errorf("the first works: %v, in term %d, is over: %v, with %v, may change something: %v", works, w1.terms, over, err, first.holds() == nil)
		}
		if shared.level != 2 || shared.record.HolderIdentity != "" {
			t.Errorf("the level is %d, and %q holds the Lease", shared.level, shared.record.HolderIdentity)
		}
		two.set(false)
		pass(10 * time.Second)
		if works, _, _ := w2.state(); !works || second.holds() != nil {
			t.Error("the second does not lead when it is back")
		}
	})
}

// TestRaisedLevelEndsTheTerm: whoever raised it, and whatever the Lease says.
func TestRaisedLevelEndsTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := &sight{lease: &lease{}, identity: "one", own: 1}
		l := one.leadership()
		w := begin(t, l)
		pass(time.Minute)
		one.mu.Lock()
		one.level = 2
		one.mu.Unlock()
		pass(replicasRetryPeriod + time.Second)
		if works, over, err := w.state(); works || over || l.holds() == nil || one.record.HolderIdentity != "" {
			t.Errorf("it works: %v, is over: %v, with %v, may change something: %v, and %q holds the Lease", works, over, err, l.holds() == nil, one.record.HolderIdentity)
		}
	})
}

// TestNothingWorksWithoutLevel: while it cannot be read, nothing begins, and nothing that has begun changes anything.
func TestNothingWorksWithoutLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := &sight{lease: &lease{}, identity: "one", own: 1, dark: true}
		l := one.leadership()
		w := begin(t, l)
		dark := func(is bool) {
			one.mu.Lock()
			defer one.mu.Unlock()
			one.dark = is
		}
		for _, step := range []struct {
			dark bool
			want int // terms
		}{{true, 0}, {false, 1}, {true, 1}, {false, 1}} {
			dark(step.dark)
			pass(time.Minute)
			if _, over, err := w.state(); over || w.terms != step.want || (l.holds() == nil) == step.dark {
				t.Errorf("where the level can be read: %v, it is over: %v, with %v, in term %d, want %d, and may change something: %v", !step.dark, over, err, w.terms, step.want, l.holds() == nil)
			}
		}
	})
}

// TestAloneNeedsItsLevel: there is no Lease, and no other to lead.
func TestAloneNeedsItsLevel(t *testing.T) {
	for _, own := range []int{1, 2} {
		alone := aloneLeads((&sight{lease: &lease{level: 2}, own: own}).raise)
		worked := false
		err := alone.run(t.Context(), func(context.Context) error { worked = true; return nil })
		if worked != (own == 2) || errors.Is(err, server.ErrLaterLevel) == worked {
			t.Errorf("at level %d of 2 it worked: %v, %v", own, worked, err)
		}
	}
}

// TestOldTermEndsFirst: while the work of a term that was lost has not ended, this server does not lead again, and nothing of that
// work gets the right of the next term.
func TestOldTermEndsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &lease{}
		one, two := &sight{lease: shared, identity: "one"}, &sight{lease: shared, identity: "two"}
		first, second := one.leadership(), two.leadership()
		w1 := beginWork(t, first, func(term int) {
			for range 600 {
				if term > 1 {
					return
				}
				time.Sleep(100 * time.Millisecond)
				if first.holds() == nil {
					t.Error("work of the old term may change something")
					return
				}
			}
		})
		pass(time.Second)
		begin(t, second)
		one.set(true)
		pass(time.Minute)
		if second.holds() != nil {
			t.Fatal("the second does not lead a minute after the first is cut off")
		}
		one.set(false)
		pass(10 * time.Second)
		two.set(true) // nobody holds the Lease any more
		pass(45 * time.Second)
		if works, _, _ := w1.state(); !works || first.holds() == nil {
			t.Errorf("the first ends its work: %v, may change something: %v", works, first.holds() == nil)
		}
		pass(time.Minute)
		if works, over, err := w1.state(); !works || over || w1.terms != 2 || first.holds() != nil {
			t.Errorf("then it works: %v, in term %d, is over: %v, with %v, may change something: %v", works, w1.terms, over, err, first.holds() == nil)
		}
	})
}

// TestSleepEndsTheRight: a clock that stood still while the machine slept, or one that was set back, is not believed alone.
func TestSleepEndsTheRight(t *testing.T) {
	began := readClocks()
	for _, tc := range []struct {
		reason       string
		steady, wall time.Duration // since the Lease was renewed
		holds        bool
	}{
		{"just renewed", time.Second, time.Second, true},
		{"before others look again", replicasTrust - 1, replicasTrust - 1, true},
		{"others may take it in a moment", replicasTrust, replicasTrust, false},
		{"the machine slept, and one clock with it", time.Second, time.Minute, false},
		{"the wall clock was set back", replicasTrust, -time.Hour, false},
		{"the wall clock was set back a little", time.Second, -time.Second, true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			l := newLeader(nil, nil, func() reading { return reading{began.steady.Add(tc.steady), began.wall.Add(tc.wall)} })
			l.renewed.Store(&began)
			if err := l.holds(); (err == nil) != tc.holds {
				t.Errorf("it may change something: %v, want %v", err, tc.holds)
			}
		})
	}
}

// TestAwayStoreEndsNobody: where nobody else takes over, the leader goes on when etcd is back.
func TestAwayStoreEndsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := &sight{lease: &lease{}, identity: "one"}
		l := one.leadership()
		w := begin(t, l)
		pass(time.Minute)
		one.set(true)
		pass(time.Hour)
		if err := l.holds(); !errors.Is(err, errNotLeading) {
			t.Errorf("after an hour without etcd it may change something: %v", err)
		}
		f := fence{l, passes{}}
		if _, err := f.RoundTrip(request(t, http.MethodPatch)); !errors.Is(err, errNotLeading) {
			t.Errorf("a change is let through: %v", err)
		}
		if _, err := f.RoundTrip(request(t, http.MethodGet)); err != nil {
			t.Errorf("a read is not let through: %v", err)
		}
		one.set(false)
		pass(10 * time.Second)
		if works, over, err := w.state(); !works || over || l.holds() != nil {
			t.Errorf("it works: %v, is over: %v (%v), may change something: %v", works, over, err, l.holds())
		}
		if _, err := f.RoundTrip(request(t, http.MethodPatch)); err != nil {
			t.Errorf("a change is not let through: %v", err)
		}
	})
}

// passes answers everything.
type passes struct{}

func (passes) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func request(t *testing.T, method string) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), method, "http://atoll/api/v1/namespaces", nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}
