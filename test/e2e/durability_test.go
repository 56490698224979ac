package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	durableWorkspaces = 4
	durableWriters    = 8
	durableReaders    = 4
	durableWatches    = 20
	durableObjects    = 24 // of each workspace
	// durableWrites are acknowledged at least when the server dies.
	durableWrites = 500
	// durableCycles is how often the server is killed, and how often in a long run.
	durableCycles, durableCyclesLong = 10, 200

	// lastWord is the object that ends a cycle in each workspace.
	lastWord = "last-word"
)

// TestI7_AcknowledgedWritesSurvive kills the server with -9 again and again, while clients read and write the same objects
// and others watch them: what was acknowledged is there after the restart, what clients saw of each object is possible if
// every request took effect once and at one moment, watches miss nothing and see nothing twice, and resourceVersions only
// grow.
func TestI7_AcknowledgedWritesSurvive(t *testing.T) {
	t.Parallel()
	cycles := durableCycles
	if soaking() {
		cycles = durableCyclesLong
	}
	w := newDurableWorld(t)
	for cycle := range cycles {
		w.underLoad(t, cycle, func() { w.Kill() })
		w.restart()
		if cycle == 0 {
			w.refuseSecond(t)
		}
		w.check(t)
		if t.Failed() {
			t.Fatalf("cycle %d of %d, seed %d", cycle+1, cycles, w.seed)
		}
	}
	w.report(t, cycles)
}

// TestI7_CleanStopLosesNothing is the same with SIGTERM.
func TestI7_CleanStopLosesNothing(t *testing.T) {
	t.Parallel()
	w := newDurableWorld(t)
	w.underLoad(t, 0, func() { w.Stop() })
	w.restart()
	w.check(t)
	w.report(t, 1)
}

// durableWorld knows what clients asked and were answered.
type durableWorld struct {
	*framework.Atoll
	clients  *client.Clients
	clusters []logicalcluster.Name
	watches  []*durableWatch
	seed     uint64
	began    time.Time
	// states is each object, by key, as the last cycle left it.
	states map[string]objectState

	mu sync.Mutex // guards what follows, of the running cycle
	// histories are by key.
	histories map[string][]operation
	// acknowledged are creates and updates, by logical cluster and resourceVersion.
	acknowledged map[logicalcluster.Name]map[uint64]watched
	highest      uint64

	writes, reads, unanswered int
	longest                   time.Duration // of a restart
}

func newDurableWorld(t *testing.T) *durableWorld {
	t.Helper()
	w := &durableWorld{Atoll: framework.StartAtoll(t), states: map[string]objectState{}, seed: rand.Uint64(), began: time.Now()}
	w.clients = w.Clients()
	for i := range durableWorkspaces {
		w.clusters = append(w.clusters, framework.MakeWorkspace(t, w.clients, "root", fmt.Sprintf("durable-%d", i)))
	}
	for i := range durableWatches {
		ctx, scope := client.Everywhere(t.Context()), logicalcluster.Name("")
		if i%4 > 0 {
			scope = w.clusters[i%len(w.clusters)]
			ctx = client.In(t.Context(), scope)
		}
		w.watches = append(w.watches, startDurableWatch(t, ctx, scope, w.clients))
	}
	w.forget()
	return w
}

// forget begins a cycle.
func (w *durableWorld) forget() {
	w.histories, w.acknowledged = map[string][]operation{}, map[logicalcluster.Name]map[uint64]watched{}
	for _, cluster := range w.clusters {
		w.acknowledged[cluster] = map[uint64]watched{}
	}
	for _, d := range w.watches {
		d.mu.Lock()
		d.seen, d.holes = map[logicalcluster.Name]map[uint64]watched{}, nil
		d.mu.Unlock()
	}
}

func durableKey(cluster logicalcluster.Name, name string) string {
	return cluster.String() + "|" + name
}

func durableName(i int) string { return fmt.Sprintf("object-%d", i) }

func (w *durableWorld) restart() {
	before := time.Now()
	w.Restart()
	w.longest = max(w.longest, time.Since(before))
}

// underLoad lets writers and readers work, and calls end once enough is acknowledged, in the middle of their work.
func (w *durableWorld) underLoad(t *testing.T, cycle int, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var (
		wait  sync.WaitGroup
		acks  atomic.Int64
		slow  atomic.Int64
		ended atomic.Bool
	)
	enough := make(chan struct{})
	for c := range durableWriters + durableReaders {
		cluster := w.clusters[c%len(w.clusters)]
		random := rand.New(rand.NewPCG(w.seed, uint64(cycle*100+c)))
		wait.Go(func() {
			for i := 0; ; i++ {
				wrote, err := false, error(nil)
				if c < durableWriters {
					wrote, err = w.write(ctx, c, cluster, random, fmt.Sprintf("cycle %d, writer %d, %d", cycle, c, i))
				} else {
					err = w.read(ctx, c, cluster, random)
				}
				if err != nil && strings.Contains(err.Error(), "etcdserver: request timed out") {
					slow.Add(1)
					continue // the disk did not keep up; whether it was written is in the history as not known
				}
				if err != nil {
					if !ended.Load() {
						t.Errorf("client %d: %v", c, err)
					}
					return
				}
				if wrote && acks.Add(1) == durableWrites {
					close(enough)
				}
			}
		})
	}
	select {
	case <-enough:
	case <-time.After(2 * time.Minute):
		t.Fatalf("only %d writes were acknowledged", acks.Load())
	}
	ended.Store(true)
	end()
	cancel()
	wait.Wait()
	w.writes += int(acks.Load())
	if slow.Load() > durableWrites/10 {
		t.Errorf("%d requests were not answered in time by etcd, beside %d writes that were acknowledged: too much is not known to judge the rest", slow.Load(), acks.Load())
	}
	// What was not answered happened by now, or it will not: who was to do it is gone.
	now := time.Since(w.began)
	for _, history := range w.histories {
		for i := range history {
			if history[i].reply.outcome == unknown {
				history[i].returned = now
				w.unanswered++
			}
		}
	}
}

// write does one of the ways to change an object, and says whether the server did it. An error ends the client.
func (w *durableWorld) write(ctx context.Context, by int, cluster logicalcluster.Name, random *rand.Rand, value string) (bool, error) {
	name := durableName(random.IntN(durableObjects))
	switch n := random.IntN(10); {
	case n < 3:
		return w.ask(ctx, by, cluster, name, question{kind: createRequest, value: value})
	case n < 6:
		return w.ask(ctx, by, cluster, name, question{kind: updateRequest, value: value})
	case n < 8:
		return w.ask(ctx, by, cluster, name, question{kind: deleteRequest})
	}
	// What somebody changed meanwhile is not overwritten.
	w.mu.Lock()
	before := len(w.histories[durableKey(cluster, name)])
	w.mu.Unlock()
	if _, err := w.ask(ctx, by, cluster, name, question{kind: getRequest}); err != nil {
		return false, err
	}
	var version uint64
	w.mu.Lock()
	for _, o := range w.histories[durableKey(cluster, name)][before:] {
		if o.client == by {
			version = o.reply.version
		}
	}
	w.mu.Unlock()
	if version == 0 {
		return false, nil
	}
	return w.ask(ctx, by, cluster, name, question{kind: updateRequest, value: value, expect: version})
}

// read gets one object or, sometimes, lists all.
func (w *durableWorld) read(ctx context.Context, by int, cluster logicalcluster.Name, random *rand.Rand) error {
	if random.IntN(8) > 0 {
		_, err := w.ask(ctx, by, cluster, durableName(random.IntN(durableObjects)), question{kind: getRequest})
		return err
	}
	_, err := w.list(ctx, by, cluster)
	return err
}

// ask sends one request and adds it, with what came of it, to the history of its object. An error is an answer that says
// nothing, or none.
func (w *durableWorld) ask(ctx context.Context, by int, cluster logicalcluster.Name, name string, r question) (wrote bool, err error) {
	configMaps, in := w.clients.Kube.CoreV1().ConfigMaps("default"), client.In(ctx, cluster)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": r.value}}
	if r.expect != 0 {
		object.ResourceVersion = strconv.FormatUint(r.expect, 10)
	}
	var got *corev1.ConfigMap
	o := operation{client: by, request: r, call: time.Since(w.began)}
	switch r.kind {
	case createRequest:
		got, err = configMaps.Create(in, object, metav1.CreateOptions{})
	case updateRequest:
		got, err = configMaps.Update(in, object, metav1.UpdateOptions{})
	case deleteRequest:
		err = configMaps.Delete(in, name, metav1.DeleteOptions{})
	case getRequest:
		got, err = configMaps.Get(in, name, metav1.GetOptions{})
	}
	o.returned = time.Since(w.began)
	switch {
	case err == nil:
		o.reply.outcome = done
		if r.kind != deleteRequest {
			if o.reply, err = replyOf(got); err != nil {
				return false, err
			}
		}
		wrote = r.kind != getRequest
	case apierrors.IsNotFound(err):
		o.reply.outcome, err = notFound, nil
	case apierrors.IsAlreadyExists(err):
		o.reply.outcome, err = exists, nil
	case apierrors.IsConflict(err):
		o.reply.outcome, err = conflict, nil
	case r.kind == getRequest:
		return false, fmt.Errorf("get %s of %s: %w", name, cluster, err)
	default:
		o.reply.outcome, err = unknown, fmt.Errorf("%s %s of %s: %w", r.kind, name, cluster, err)
	}
	w.record(cluster, name, o)
	return wrote, err
}

func replyOf(cm *corev1.ConfigMap) (reply, error) {
	version, err := strconv.ParseUint(cm.ResourceVersion, 10, 64)
	if err != nil {
		return reply{}, fmt.Errorf("ConfigMap %s: resourceVersion %q: %w", cm.Name, cm.ResourceVersion, err)
	}
	return reply{outcome: done, value: cm.Data["value"], version: version}, nil
}

// list reads all objects of a logical cluster at one moment, which is a read of each of them. It returns those that are
// there and the list's resourceVersion.
func (w *durableWorld) list(ctx context.Context, by int, cluster logicalcluster.Name) (map[string]reply, error) {
	o := operation{client: by, request: question{kind: getRequest}, call: time.Since(w.began)}
	list, err := w.clients.Kube.CoreV1().ConfigMaps("default").List(client.In(ctx, cluster), metav1.ListOptions{})
	o.returned = time.Since(w.began)
	if err != nil {
		return nil, fmt.Errorf("list in %s: %w", cluster, err)
	}
	at, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("list in %s: resourceVersion %q: %w", cluster, list.ResourceVersion, err)
	}
	there := map[string]reply{}
	for i := range list.Items {
		if there[list.Items[i].Name], err = replyOf(&list.Items[i]); err != nil {
			return nil, err
		}
		if version := there[list.Items[i].Name].version; version > at {
			return nil, fmt.Errorf("list in %s: %s has resourceVersion %d, the list %d", cluster, list.Items[i].Name, version, at)
		}
	}
	for i := range durableObjects {
		name := durableName(i)
		if o.reply = there[name]; o.reply.outcome == "" {
			o.reply.outcome = notFound
		}
		w.record(cluster, name, o)
	}
	return there, nil
}

func (w *durableWorld) record(cluster logicalcluster.Name, name string, o operation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := durableKey(cluster, name)
	w.histories[key] = append(w.histories[key], o)
	w.highest = max(w.highest, o.reply.version)
	event := watched{key: key, value: o.request.value}
	switch {
	case o.request.kind == getRequest:
		w.reads++
		return
	case o.reply.outcome != done || o.request.kind == deleteRequest:
		return
	case o.request.kind == createRequest:
		event.kind = watch.Added
	default:
		event.kind = watch.Modified
	}
	w.acknowledged[cluster][o.reply.version] = event
}

// check ends a cycle after the server is back: it judges the history of each object together with what is there now, and
// then what the watches saw of it.
func (w *durableWorld) check(t *testing.T) {
	t.Helper()
	there := map[string]string{}
	before := w.highest
	for _, cluster := range w.clusters {
		left, err := w.list(t.Context(), 0, cluster)
		if err != nil {
			t.Fatal(err)
		}
		for i := range durableObjects {
			key := durableKey(cluster, durableName(i))
			if problem := impossible(w.states[key], w.histories[key]); problem != "" {
				t.Errorf("what clients saw of %s cannot be: %s", key, problem)
			}
			last := left[durableName(i)]
			w.states[key] = objectState{there: last.outcome == done, value: last.value, version: last.version, above: w.highest}
		}
		mark := w.mark(t, cluster)
		if mark <= before {
			t.Errorf("a write in %s after the restart has resourceVersion %d; before, %d was seen", cluster, mark, before)
		}
		w.highest = max(w.highest, mark)
		list, err := w.clients.Kube.CoreV1().ConfigMaps("default").List(client.In(t.Context(), cluster), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, cm := range list.Items {
			there[durableKey(cluster, cm.Name)] = cm.ResourceVersion
		}
	}
	for i, d := range w.watches {
		w.caughtUp(t, i, d, there)
	}
	for _, cluster := range w.clusters {
		for _, problem := range gaps(cluster, w.watches, w.acknowledged[cluster]) {
			t.Error(problem)
		}
	}
	w.forget()
}

// mark writes the last object of a cycle in a logical cluster.
func (w *durableWorld) mark(t *testing.T, cluster logicalcluster.Name) uint64 {
	t.Helper()
	configMaps, in := w.clients.Kube.CoreV1().ConfigMaps("default"), client.In(t.Context(), cluster)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: lastWord}, Data: map[string]string{"value": time.Now().String()}}
	got, err := configMaps.Create(in, cm, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		got, err = configMaps.Update(in, cm, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatalf("mark the end of a cycle in %s: %v", cluster, err)
	}
	r, err := replyOf(got)
	if err != nil {
		t.Fatal(err)
	}
	return r.version
}

// caughtUp waits until a watch knows what is there, and reports what it complains of.
func (w *durableWorld) caughtUp(t *testing.T, i int, d *durableWatch, there map[string]string) {
	t.Helper()
	want := map[string]string{}
	for key, version := range there {
		if d.scope == "" || strings.HasPrefix(key, d.scope.String()+"|") {
			want[key] = version
		}
	}
	framework.Eventually(t, time.Minute, fmt.Sprintf("watch %d knows all", i), func() string {
		d.mu.Lock()
		defer d.mu.Unlock()
		for key, version := range want {
			if d.known[key] != version {
				return fmt.Sprintf("it knows %s at %q, want %q (%d known, %d there)", key, d.known[key], version, len(d.known), len(want))
			}
		}
		for key := range d.known {
			if _, ok := want[key]; !ok {
				return "it missed that " + key + " was deleted"
			}
		}
		return ""
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, problem := range d.problems {
		t.Errorf("watch %d: %s", i, problem)
	}
	d.problems = nil
}

// report says what was done. `make soak` takes its figures to docs/soak.md.
func (w *durableWorld) report(t *testing.T, cycles int) {
	resumed, relisted := 0, 0
	for _, d := range w.watches {
		d.mu.Lock()
		resumed, relisted = resumed+d.resumed, relisted+d.relisted
		d.mu.Unlock()
	}
	t.Logf("figure stops of the server: %d", cycles)
	t.Logf("figure acknowledged writes: %d", w.writes)
	t.Logf("figure reads: %d", w.reads)
	t.Logf("figure writes without an answer: %d", w.unanswered)
	t.Logf("figure watches that came back from their last resourceVersion: %d", resumed)
	t.Logf("figure by a list, as the server said: %d", relisted)
	t.Logf("figure longest restart: %s", w.longest.Round(10*time.Millisecond))
}

// refuseSecond starts another server on the same data: beside a running one it ends with an error that says why.
func (w *durableWorld) refuseSecond(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, framework.Binary(t), "start", "--root-directory="+w.Dir, "--secure-port=0").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
		t.Errorf("a second server on %s ended with %v, want an exit code:\n%s", w.Dir, err, out)
	}
	clearError(t, string(out), "a second server", w.Dir, "in use by process", "--root-directory")
}
