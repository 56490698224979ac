package e2e

import (
	"context"
	"errors"
	"fmt"
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
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/test/framework"
)

const (
	durableWorkspaces = 4
	durableWriters    = 8
	durableWatches    = 20
	// durableWrites are acknowledged at least when the server dies.
	durableWrites = 500

	// lastWord is the object that ends the test in each workspace.
	lastWord = "last-word"
)

// TestI7_AcknowledgedWritesSurvive kills the server with -9 under load, several times: what was acknowledged is there
// after the restart, resourceVersions only grow, and watchers that come back miss nothing.
func TestI7_AcknowledgedWritesSurvive(t *testing.T) {
	w := newDurableWorld(t)
	for round := range 3 {
		w.underLoad(t, round, func() { w.Kill() })
		w.Restart()
		w.refuseSecond(t)
		w.check(t)
	}
	w.endWatches(t)
}

// TestI7_CleanStopLosesNothing is the same with SIGTERM.
func TestI7_CleanStopLosesNothing(t *testing.T) {
	w := newDurableWorld(t)
	w.underLoad(t, 0, func() { w.Stop() })
	w.Restart()
	w.check(t)
	w.endWatches(t)
}

// durableWorld counts on what the server acknowledged.
type durableWorld struct {
	*framework.Atoll
	clients  *client.Clients
	clusters []logicalcluster.Name

	mu sync.Mutex
	// acked is the last acknowledged version of each object, by cluster and name; gone is what was deleted.
	acked map[string]ackedWrite
	gone  map[string]bool
	// pending has objects whose last write got no answer: either state is right.
	pending map[string]bool
	highest uint64

	watches []*durableWatch
}

type ackedWrite struct {
	version uint64
	value   string
}

func newDurableWorld(t *testing.T) *durableWorld {
	t.Helper()
	w := &durableWorld{Atoll: framework.StartAtoll(t), acked: map[string]ackedWrite{}, gone: map[string]bool{}, pending: map[string]bool{}}
	w.clients = w.Clients()
	for i := range durableWorkspaces {
		w.clusters = append(w.clusters, makeWorkspace(t, w.clients, "root", fmt.Sprintf("durable-%d", i)))
	}
	for i := range durableWatches {
		ctx, scope := client.Everywhere(t.Context()), logicalcluster.Name("")
		if i%4 > 0 {
			scope = w.clusters[i%len(w.clusters)]
			ctx = client.In(t.Context(), scope)
		}
		w.watches = append(w.watches, startDurableWatch(t, ctx, scope, w.clients))
	}
	return w
}

func durableKey(cluster logicalcluster.Name, name string) string {
	return cluster.String() + "|" + name
}

// underLoad lets writers work, and calls end once enough is acknowledged, in the middle of their work.
func (w *durableWorld) underLoad(t *testing.T, round int, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var (
		wait  sync.WaitGroup
		acks  atomic.Int64
		ended atomic.Bool
	)
	enough := make(chan struct{})
	for writer := range durableWriters {
		cluster := w.clusters[writer%len(w.clusters)]
		wait.Go(func() {
			for i := 0; ; i++ {
				// Each object has one writer, so that the last acknowledged state is known.
				name := fmt.Sprintf("r%d-w%d-%d", round, writer, i/3)
				if err := w.write(ctx, cluster, name, i); err != nil {
					if !ended.Load() {
						t.Errorf("write %s: %v", name, err)
					}
					return
				}
				if acks.Add(1) == durableWrites {
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
	t.Logf("round %d: the server ended after %d acknowledged writes", round, acks.Load())
}

// write creates, updates or deletes a ConfigMap: every third object ends deleted.
func (w *durableWorld) write(ctx context.Context, cluster logicalcluster.Name, name string, i int) error {
	maps := w.clients.Kube.CoreV1().ConfigMaps("default")
	key, in := durableKey(cluster, name), client.In(ctx, cluster)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"i": strconv.Itoa(i)}}
	w.set(func() { w.pending[key] = true })
	var (
		got *corev1.ConfigMap
		err error
	)
	switch {
	case i%3 == 0:
		got, err = maps.Create(in, object, metav1.CreateOptions{})
	case i%3 == 2 && (i/3)%3 == 0:
		if err = maps.Delete(in, name, metav1.DeleteOptions{}); err == nil {
			w.set(func() { w.gone[key] = true; delete(w.acked, key); delete(w.pending, key) })
		}
		return err
	default:
		got, err = maps.Update(in, object, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	version, err := strconv.ParseUint(got.ResourceVersion, 10, 64)
	if err != nil {
		return err
	}
	w.set(func() {
		w.acked[key] = ackedWrite{version, object.Data["i"]}
		w.highest = max(w.highest, version)
		delete(w.pending, key)
	})
	return nil
}

func (w *durableWorld) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// check compares what the server has with what it acknowledged.
func (w *durableWorld) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	there := map[string]ackedWrite{}
	for _, cluster := range w.clusters {
		list, err := w.clients.Kube.CoreV1().ConfigMaps("default").List(client.In(t.Context(), cluster), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("list in %s: %v", cluster, err)
		}
		version, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
		if err != nil || version < w.highest {
			t.Errorf("a list after the restart is at resourceVersion %s, before it was %d: %v", list.ResourceVersion, w.highest, err)
		}
		for _, cm := range list.Items {
			version, err := strconv.ParseUint(cm.ResourceVersion, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			there[durableKey(cluster, cm.Name)] = ackedWrite{version, cm.Data["i"]}
		}
	}
	for key, want := range w.acked {
		got, ok := there[key]
		switch {
		case w.pending[key] && !ok: // the delete without an answer happened
			delete(w.acked, key)
		case !ok:
			t.Errorf("%s was acknowledged and is gone", key)
		case got.version < want.version:
			t.Errorf("%s went back from resourceVersion %d to %d", key, want.version, got.version)
		case got.version == want.version && got.value != want.value || got.version > want.version && !w.pending[key]:
			t.Errorf("%s is %+v, acknowledged was %+v", key, got, want)
		}
	}
	for key := range w.gone {
		if _, ok := there[key]; ok {
			t.Errorf("%s was deleted, acknowledged, and is back", key)
		}
	}
	t.Logf("%d objects there, %d deletes kept, up to resourceVersion %d", len(w.acked), len(w.gone), w.highest)
	// From here on, what is there is what the store says, whether its answer came or not.
	for key := range w.pending {
		if got, ok := there[key]; ok {
			w.acked[key] = got
		}
	}
	w.pending = map[string]bool{}
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

// endWatches writes a last object in each workspace, waits until every watch saw it, and compares what each watch
// knows with what is there.
func (w *durableWorld) endWatches(t *testing.T) {
	t.Helper()
	there := map[string]string{}
	for _, cluster := range w.clusters {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: lastWord}}
		if _, err := w.clients.Kube.CoreV1().ConfigMaps("default").Create(client.In(t.Context(), cluster), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := w.clients.Kube.CoreV1().ConfigMaps("default").List(client.In(t.Context(), cluster), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, cm := range list.Items {
			there[durableKey(cluster, cm.Name)] = cm.ResourceVersion
		}
	}
	resumed, relisted := 0, 0
	for i, each := range w.watches {
		want := map[string]string{}
		for key, version := range there {
			if each.scope == "" || strings.HasPrefix(key, each.scope.String()+"|") {
				want[key] = version
			}
		}
		framework.Eventually(t, time.Minute, fmt.Sprintf("watch %d knows all", i), func() string {
			each.mu.Lock()
			defer each.mu.Unlock()
			for key, version := range want {
				if each.known[key] != version {
					return fmt.Sprintf("it knows %s at %q, want %q (%d known, %d there)", key, each.known[key], version, len(each.known), len(want))
				}
			}
			for key := range each.known {
				if _, ok := want[key]; !ok {
					return "it missed that " + key + " was deleted"
				}
			}
			return ""
		})
		each.mu.Lock()
		resumed, relisted = resumed+each.resumed, relisted+each.relisted
		for _, problem := range each.problems {
			t.Errorf("watch %d: %s", i, problem)
		}
		each.mu.Unlock()
	}
	t.Logf("%d watches came back %d times from their last resourceVersion and %d times by a list, as the server said", len(w.watches), resumed, relisted)
}

// durableWatch does as every client does: list, watch from there, and on a break again from the last resourceVersion
// seen, or by a list where the server says that this one is too old.
type durableWatch struct {
	scope logicalcluster.Name // "": all

	mu                sync.Mutex
	known             map[string]string // resourceVersion
	last              uint64
	resumed, relisted int
	problems          []string
}

func startDurableWatch(t *testing.T, ctx context.Context, scope logicalcluster.Name, clients *client.Clients) *durableWatch {
	t.Helper()
	d := &durableWatch{scope: scope, known: map[string]string{}}
	if err := d.list(ctx, clients); err != nil {
		t.Fatalf("start a watch: %v", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	first := make(chan struct{})
	go func() {
		defer close(done)
		for once := false; ctx.Err() == nil; {
			watching, err := clients.Kube.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: d.from(), AllowWatchBookmarks: true})
			if err == nil {
				if !once {
					once = true
					close(first)
				} else {
					d.mu.Lock()
					d.resumed++
					d.mu.Unlock()
				}
				err = d.read(ctx, watching)
			}
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				if err := d.list(ctx, clients); err == nil {
					d.mu.Lock()
					d.relisted++
					d.mu.Unlock()
				}
			}
			select { // the server is away
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	select {
	case <-first:
	case <-time.After(time.Minute):
		t.Fatal("a watch did not start in a minute")
	}
	return d
}

func (d *durableWatch) from() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strconv.FormatUint(d.last, 10)
}

func (d *durableWatch) list(ctx context.Context, clients *client.Clients) error {
	list, err := clients.Kube.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := map[string]string{}
	for _, cm := range list.Items {
		if inDurable(d.scope, &cm) {
			known[durableKey(lcctx.NameFrom(&cm), cm.Name)] = cm.ResourceVersion
		}
	}
	d.known = known
	d.advance(list.ResourceVersion)
	return nil
}

// inDurable leaves out of the wildcard what no test wrote.
func inDurable(scope logicalcluster.Name, cm *corev1.ConfigMap) bool {
	cluster := lcctx.NameFrom(cm)
	return scope == cluster || scope == "" && cluster != "root" && !strings.HasPrefix(cluster.String(), "system:")
}

// advance is called with mu held.
func (d *durableWatch) advance(version string) {
	next, err := strconv.ParseUint(version, 10, 64)
	switch {
	case err != nil:
		d.problems = append(d.problems, fmt.Sprintf("resourceVersion %q: %v", version, err))
	case next < d.last:
		d.problems = append(d.problems, fmt.Sprintf("resourceVersion went back from %d to %d", d.last, next))
	}
	d.last = max(d.last, next)
}

// read returns the error that the watch ended with, or nil.
func (d *durableWatch) read(ctx context.Context, watching watch.Interface) error {
	defer watching.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-watching.ResultChan():
			if !ok {
				return nil
			}
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			cm, isMap := event.Object.(*corev1.ConfigMap)
			if !isMap {
				return fmt.Errorf("a %T in a watch of ConfigMaps", event.Object)
			}
			d.mu.Lock()
			d.advance(cm.ResourceVersion)
			key := durableKey(lcctx.NameFrom(cm), cm.Name)
			switch {
			case event.Type == watch.Bookmark || !inDurable(d.scope, cm):
			case event.Type == watch.Deleted:
				delete(d.known, key)
			default:
				d.known[key] = cm.ResourceVersion
			}
			d.mu.Unlock()
		}
	}
}
