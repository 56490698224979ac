package crash

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"atoll.dev/atoll/test/framework"
)

// soak adds the scenarios that take longer.
var soak = os.Getenv("ATOLL_SOAK") != ""

// sideBySide is how many worlds there are at a time, however few cores: much of the time they wait, for pods, and 5 s for
// each namespace that a physical cluster deletes. More of them starve each other's etcd on two cores that others use, too.
const sideBySide = 5

// collectAt is how much garbage there may be, in percent of what is in use, before it is collected. All worlds are in this process, which
// spent more than a third of its time on that.
const collectAt = 300

func TestMain(m *testing.M) {
	debug.SetGCPercent(collectAt)
	flag.Parse()
	if err := flag.Set("test.parallel", fmt.Sprint(sideBySide)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// TestControllersSurvive puts each controller under each fault.
func TestControllersSurvive(t *testing.T) {
	quiet(t)
	seed := framework.Seed(t)
	fleet := startFleet(t)
	for _, s := range subjects {
		if s.soak && !soak {
			t.Logf("left to make soak: %s", s.name)
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.reached, s.seed = &reached{}, seed
			t.Cleanup(func() { // when all of its scenarios are played
				if missed := s.reached.missed(); len(missed) > 0 {
					t.Errorf("no run of any scenario crashed after %s", strings.Join(missed, ", "))
				}
			})
			for _, fault := range []struct {
				name      string
				scenarios []string
				more      []string // those that soak adds
				put       func(*world, *testing.T, subject, scenario, reference)
			}{
				{"crash after each write", s.crash, s.more, crashes},
				{"older view after a restart", s.older, s.more, olderViews},
				{"dropped events", s.dropped, nil, droppedEvents},
			} {
				names := fault.scenarios
				if soak && len(names) > 0 {
					names = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(names), fault.more...))))
				}
				for _, name := range names {
					t.Run(fault.name+"/"+name, func(t *testing.T) {
						t.Parallel()
						began := time.Now()
						sc, w := scenarioOf(name), newWorld(t, fleet)
						fault.put(w, t, s, sc, undisturbed(w, t, sc))
						t.Logf("%s", time.Since(began).Round(time.Second))
					})
				}
			}
		})
	}
}

// quiet sends what the controllers log, which is mostly about faults, to a file, and shows its end after a failure.
func quiet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	must(t, err)
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	must(t, flags.Parse([]string{"-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL", "-v=2"}))
	klog.SetOutput(f)
	t.Cleanup(func() {
		klog.Flush()
		must(t, f.Close())
		if keep := os.Getenv("ATOLL_CRASH_LOG"); keep != "" && t.Failed() {
			data, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(keep, data, 0o600))
		}
	})
}

// undisturbed plays a scenario with nothing wrong.
func undisturbed(w *world, t *testing.T, sc scenario) reference {
	t.Helper()
	r := w.begin(t, sc)
	var ref reference
	for range sc.steps {
		r.step()
		ref = append(ref, r.settle(nil))
	}
	r.finish()
	return ref
}

// tries is how many runs more there are for a kind of write that no run has crashed after: it may come in some runs only.
const tries = 3

// drawn are the writes, of n that are counted from 1, after which a test that everybody runs lets the controller crash: a third, and five at
// least, others with each seed. `make soak` takes them all.
func drawn(n int, seed uint64) []int {
	writes := rand.New(rand.NewPCG(seed, 0)).Perm(n)
	if !soak {
		writes = writes[:min(n, max(5, (n+2)/3))]
	}
	for i := range writes {
		writes[i]++
	}
	slices.Sort(writes)
	return writes
}

// crashes plays a scenario once for each write of the controller that is drawn, and the controller crashes after it. Of writes that come
// twice in one run and once in another the last may be missed; where all are drawn, every kind of them has to be the last one of a life, in
// this scenario or in another one of the controller, where it came by chance here.
func crashes(w *world, t *testing.T, s subject, sc scenario, ref reference) {
	began := time.Now()
	r := w.begin(t, sc)
	first := w.start(s, nil)
	for range sc.steps {
		r.step()
		r.settle(ref)
	}
	writes, n := first.sent()
	r.finish()
	t.Logf("N = %d writes of %s in scenario %s, in %s:%s", n, s.name, sc.name, time.Since(began).Round(time.Millisecond), counted(first.line, writes))
	if n == 0 {
		t.Fatal("there is nothing to crash after")
	}
	w.start(s, nil)
	reached := &reached{of: s.reached}
	lanes := 1
	if soak {
		reached.want(first.line, writes)
		lanes = max(s.lanes, 1)
	}
	after := drawn(n, s.seed)
	left := make(chan int, len(after))
	for _, write := range after {
		left <- write
	}
	close(left)
	t.Run("runs", func(t *testing.T) {
		for lane := range lanes {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				w := w
				if lane > 0 {
					w = newWorld(t, w.fleet)
				}
				for i := range left {
					reached.add(crashAfter(w, t, s, sc, ref, i))
					if t.Failed() {
						t.Fatalf("with a crash after write %d", i)
					}
				}
			})
		}
	})
	t.Logf("figure writes that a run crashed after, of %d: %d", n, reached.crashes)
	if reached.crashes == 0 {
		t.Errorf("no run crashed after any of the writes %v", after)
	}
	if skipped := len(after) - reached.crashes; skipped > 0 {
		t.Logf("figure skipped, since their runs came to fewer writes: %d", skipped)
	}
	for _, kind := range reached.missed() {
		one := s
		one.counts = func(w write) bool { return first.line.counts(w) && w.kind() == kind }
		for i := 0; i < tries && !t.Failed() && !reached.has(kind); i++ {
			reached.add(crashAfter(w, t, one, sc, ref, 1))
		}
	}
	if missed := reached.missed(); len(missed) > 0 {
		t.Logf("no run crashed after %s", strings.Join(missed, ", "))
	}
}

// reached is what runs crashed after, of those of a scenario or of all scenarios of a controller.
type reached struct {
	of *reached // what these runs are a part of; nil is nothing

	mu      sync.Mutex // guards all below
	crashes int
	kinds   map[string]bool // of the writes that count: whether a run crashed after one
}

// want adds the kinds of the writes that count.
func (r *reached) want(l *line, writes []write) {
	for _, w := range writes {
		if l.counts(w) {
			r.set(w.kind(), false)
		}
	}
}

// set says of a kind whether a run crashed after one of it, unless one has.
func (r *reached) set(kind string, crashed bool) {
	if r == nil {
		return
	}
	r.of.set(kind, crashed)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds == nil {
		r.kinds = map[string]bool{}
	}
	r.kinds[kind] = r.kinds[kind] || crashed
}

// add takes the last write of a life, nil if that did not crash.
func (r *reached) add(last *write) {
	if last == nil {
		return
	}
	r.set(last.kind(), true)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.crashes++
}

func (r *reached) has(kind string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kinds[kind]
}

// missed returns the kinds that nothing crashed after, sorted.
func (r *reached) missed() (missed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(r.kinds)) {
		if !r.kinds[kind] {
			missed = append(missed, kind)
		}
	}
	return missed
}

func counted(l *line, writes []write) string {
	var b strings.Builder
	for _, w := range writes {
		if l.counts(w) {
			fmt.Fprintf(&b, "\n  %s", w)
		}
	}
	return b.String()
}

// crashAfter plays a scenario in which the controller crashes after its n-th write, and returns that; nil if it did not come so far.
func crashAfter(w *world, t *testing.T, s subject, sc scenario, ref reference, n int) *write {
	t.Helper()
	r := w.begin(t, sc)
	doomed := w.start(s, func(l *line) { l.crashAfter = n })
	over, replaced := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(replaced)
		select {
		case <-doomed.crashed:
			w.start(s, nil)
		case <-over:
		}
	}()
	join := func() { close(over); <-replaced }
	func() {
		defer join()
		for range sc.steps {
			r.step()
			r.settle(ref)
		}
		r.finish() // in which it may come to its n-th write, if it made fewer before than another time
	}()
	if !doomed.isCrashed() {
		w.start(s, nil) // or it would crash in the next run
		// Of writes that happen in another order or twice there may be one less.
		t.Logf("run %d of %s made fewer than %d writes", r.number, sc.name, n)
		return nil
	}
	w.wasLast(t, doomed.line)
	writes, _ := doomed.sent()
	for _, w := range slices.Backward(writes) {
		if doomed.counts(w) {
			return &w
		}
	}
	return nil
}

// wasLast proves from the audit logs that the write before the crash was the last one that any server saw.
func (w *world) wasLast(t *testing.T, l *line) {
	t.Helper()
	writes, counts := l.sent()
	if counts != l.crashAfter {
		t.Errorf("%s crashed after %d writes, want %d", l.name, counts, l.crashAfter)
	}
	// The line of a write may come to its log after the answer.
	eventually(t, l.name+"'s writes are in the audit logs", func() (missing string) {
		found := map[int]bool{}
		for _, log := range w.logs {
			maps.Copy(found, numbers(t, l, log.read(t)))
		}
		for n := range found {
			if n > len(writes) {
				t.Fatalf("%s crashed after write %d, and made another, %d", l.name, len(writes), n)
			}
		}
		for n, write := range writes {
			if write.taken && !found[n+1] {
				missing += fmt.Sprintf("no server saw write %d of %d, %s\n", n+1, len(writes), write)
			}
		}
		return missing
	})
}

// olderViews plays a scenario in which the controller is restarted after each step and sees the world as it was before it:
// all of it, and then one resource at a time while the others are shown as they are. Each has a cache of its own in a server.
func olderViews(w *world, t *testing.T, s subject, sc scenario, ref reference) {
	r := w.begin(t, sc)
	stale := 0
	for i := range sc.steps {
		before := w.present()
		r.step()
		r.settle(ref)
		restart := func(only string) (differ []string, lists int) {
			r.showsPast(true)
			now := w.start(s, func(l *line) { l.older, l.only, l.ours = before, only, r.isOurs })
			eventually(t, "there is a list, "+only, func() string {
				if !now.hasListed(only) {
					return "none"
				}
				return ""
			})
			acted(now.quietFor)
			writes, _ := now.sent()
			now.release()
			acted(now.quietFor)
			r.settle(ref)
			r.showsPast(false)
			differ, lists, err := now.staleLists()
			must(t, err)
			if only != "" && !slices.Equal(differ, []string{only}) {
				t.Fatalf("the past was shown by %v, want %s", differ, only)
			}
			t.Logf("after %s: %d of %d lists showed the past%s, and %d writes rest on it", sc.steps[i].name, len(differ), lists, " "+only, len(writes))
			return differ, lists
		}
		differ, _ := restart("")
		stale += len(differ)
		if s.atOnce && !soak {
			differ = nil
		}
		for _, only := range differ {
			restart(only)
		}
		w.start(s, nil)
	}
	r.finish()
	t.Logf("figure lists that showed the past: %d", stale)
	if stale == 0 {
		t.Error("no list showed the past, so nothing was tested")
	}
}

// acted waits until a controller has had its time: it is at rest, or keeps trying.
func acted(quietFor func() time.Duration) {
	for began := time.Now(); time.Since(began) < 5*time.Second && quietFor() < 400*time.Millisecond; {
		time.Sleep(20 * time.Millisecond)
	}
}

// droppedEvents plays a scenario in which the controller sees of each step only what is left of it when all others are done. Which of
// their changes come so close together depends on the machine; those that the scenario names have to be among what nobody saw.
func droppedEvents(w *world, t *testing.T, s subject, sc scenario, ref reference) {
	r := w.begin(t, sc)
	f := newFilter()
	w.start(s, func(l *line) { l.filter = f })
	acted(w.lives[role(s)].quietFor)
	missed := 0
	for _, step := range sc.steps {
		eventually(t, "before step "+step.name+" every watch has begun again", f.behind)
		f.close()
		r.step()
		for _, object := range sc.twice[step.name] {
			eventually(t, "in step "+step.name+" a state of "+object+" was dropped", func() string { return f.drops(object) })
			missed++
		}
		acted(f.quietFor)
		f.open()
		r.settle(ref)
		if t.Failed() {
			t.FailNow()
		}
	}
	w.start(s, nil)
	r.finish()
	d := f.dropped()
	t.Logf("withheld %d deletions, %d of which with a successor", d.deleted, d.recreated)
	t.Logf("figure events withheld: %d", d.events)
	t.Logf("figure of them for good: %d", d.intermediate)
	if missed == 0 {
		t.Error("nobody had to miss anything, so nothing was tested")
	}
}
