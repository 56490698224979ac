package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/test/framework"
)

const (
	// idleWarm workspaces are made before anything is measured.
	idleWarm = 32
	// idleGoroutines is how many goroutines more there may be with idle workspaces than without.
	idleGoroutines = 10
)

// TestIdleWorkspacesAreRows: idle workspaces are rows in etcd and nothing else. With 200 of them, 10,000 where ATOLL_SOAK=1, the server has
// no metric series more than with a few, but those of eventsOfCaches, and no goroutines but those of what happens to be under way. It is
// the built binary, with all its controllers.
func TestIdleWorkspacesAreRows(t *testing.T) {
	t.Parallel()
	n := 200
	if os.Getenv("ATOLL_SOAK") != "" {
		n = 10_000
	}
	port := strconv.Itoa(framework.FreePort(t))
	a := framework.StartAtoll(t, "--embedded-etcd-client-port="+port)
	pki := func(name string) string { return filepath.Join(a.Dir, "pki", name) }
	etcd, err := embeddedetcd.Connect(t.Context(), embeddedetcd.ExternalOptions{
		Endpoints: []string{"https://127.0.0.1:" + port}, CAFile: pki("ca.crt"), CertFile: pki("etcd.crt"), KeyFile: pki("etcd.key"),
	})
	must(t, err)
	t.Cleanup(func() { must(t, etcd.Stop()) })
	clients, err := client.New(a.Config())
	must(t, err)
	admin, err := rest.HTTPClientFor(a.Config())
	must(t, err)
	w := &leaking{Atoll: a, clients: clients, admin: admin}

	warm := w.idle(t, 0, idleWarm)
	// Who meets what another made meanwhile reads it from etcd.
	for _, o := range []struct {
		version, resource, namespace, name string
	}{
		{"v1", "namespaces", "", "default"}, {"v1", "serviceaccounts", "default", "default"}, {"v1", "configmaps", "default", "kube-root-ca.crt"},
		{"core.kcp.io/v1alpha1", "logicalclusters", "", "cluster"},
	} {
		in := client.In(t.Context(), logicalcluster.Name(warm[0]))
		_, err := clients.Dynamic.Resource(resourceAt(o.version, o.resource)).Namespace(o.namespace).Get(in, o.name, metav1.GetOptions{})
		must(t, err)
	}
	w.listEach(t)
	before := w.settled(t)
	rowsBefore, bytesBefore := rowsIn(t, etcd.Client)
	began := time.Now()
	names := append(w.idle(t, idleWarm, idleWarm+n), "idle-")
	took := time.Since(began)
	framework.Eventually(t, 2*time.Minute, fmt.Sprintf("%d idle workspaces have no goroutines", n), func() string {
		byStart, now := w.goroutines(t)
		if now > before.goroutines+idleGoroutines {
			return fmt.Sprintf("%.0f goroutines, before them %.0f; more are:\n%s", now, before.goroutines, more(before.byStart, byStart))
		}
		return ""
	})
	after := w.settled(t)
	if after.goroutines > before.goroutines+idleGoroutines {
		t.Errorf("%.0f goroutines, before them %.0f; more are:\n%s", after.goroutines, before.goroutines, more(before.byStart, after.byStart))
	}
	rows, bytes := rowsIn(t, etcd.Client)
	var ofEvents []string
	for name := range after.series {
		if before.series[name] {
			continue
		}
		if slices.ContainsFunc(names, func(of string) bool { return strings.Contains(name, of) }) {
			t.Errorf("%s is of a workspace", name)
		}
		if !isOfEvents(name) {
			t.Errorf("a series that was not there before: %s", name)
			continue
		}
		ofEvents = append(ofEvents, name)
	}
	slices.Sort(ofEvents)
	t.Logf("of what had not happened before: %s", ofEvents)
	t.Logf("figure idle workspaces: %d", n)
	t.Logf("figure made in: %s", took.Round(time.Second))
	t.Logf("figure goroutines before: %.0f", before.goroutines)
	t.Logf("figure goroutines with them: %.0f", after.goroutines)
	t.Logf("figure series before: %d", len(before.series))
	t.Logf("figure series with them, without those of what had not happened before: %d", len(after.series)-len(ofEvents))
	t.Logf("figure series of what had not happened before: %d", len(ofEvents))
	t.Logf("figure rows for each: %.2f", float64(rows-rowsBefore)/float64(n))
	t.Logf("figure bytes for each: %.0f", float64(bytes-bytesBefore)/float64(n))
	if rows-rowsBefore < n {
		t.Errorf("%d rows more, of %d workspaces", rows-rowsBefore, n)
	}
}

// eventsOfCaches count what befalls the watch cache of a resource, each with a series for each resource that it has befallen, and no other
// label. That is by how many events there are in a minute, or how long the server runs, and not to be had from a few workspaces:
//   - a cache makes room for more events, or for fewer;
//   - a watcher that does not keep up is ended, and one that comes back is sent what it missed;
//   - etcd says how far it is, and every few minutes the cache is compared with it.
var eventsOfCaches = []string{
	"watch_cache_capacity_increase_total", "watch_cache_capacity_decrease_total", "apiserver_terminated_watchers_total", "apiserver_init_events_total",
	"etcd_bookmark_total", "apiserver_storage_consistency_checks_total",
}

// labelsOfCaches are all that these may have: of the last, the outcome.
var labelsOfCaches = regexp.MustCompile(`^\{group="[a-z0-9.]*",resource="[a-z]+"(,status="(success|failure|error)")?\}$`)

// isOfEvents says whether a series is one of eventsOfCaches.
func isOfEvents(series string) bool {
	name, _, _ := strings.Cut(series, "{")
	return slices.Contains(eventsOfCaches, name) && labelsOfCaches.MatchString(strings.TrimPrefix(series, name))
}

func TestIsOfEvents(t *testing.T) {
	for series, want := range map[string]bool{
		`watch_cache_capacity_increase_total{group="",resource="configmaps"}`:                                                    true,
		`apiserver_storage_consistency_checks_total{group="rbac.authorization.k8s.io",resource="clusterroles",status="success"}`: true,
		`watch_cache_capacity_increase_total{cluster="a",group="",resource="configmaps"}`:                                        false,
		`watch_cache_capacity_increase_total{group="",resource="1rdxmk2m3n4o5p6q"}`:                                              false,
		`workqueue_depth{name="configmaps"}`:                                                                                     false,
	} {
		if got := isOfEvents(series); got != want {
			t.Errorf("%s: %v, want %v", series, got, want)
		}
	}
}

// idle makes workspaces, from that number up to another, waits until they are Ready, and returns the names of their logical clusters.
func (w *leaking) idle(t *testing.T, from, to int) (clusters []string) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	numbers := make(chan int)
	var wg sync.WaitGroup
	for range leakWorkers {
		wg.Go(func() {
			for i := range numbers {
				if _, err := w.create(ctx, "root", "", "tenancy.kcp.io/v1alpha1", "workspaces", fmt.Sprintf(`{"kind":"Workspace","metadata":{"name":"idle-%d"}}`, i)); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := from; i < to; i++ {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	for i := from; i < to; i++ {
		name := fmt.Sprintf("idle-%d", i)
		framework.Eventually(t, 2*time.Minute, name+" is Ready", func() string {
			got, err := w.clients.Dynamic.Resource(resourceAt("tenancy.kcp.io/v1alpha1", "workspaces")).Get(client.In(ctx, "root"), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			phase, _, _ := unstructured.NestedString(got.Object, "status", "phase")
			if phase != "Ready" {
				return fmt.Sprint(got.Object["status"])
			}
			cluster, _, _ := unstructured.NestedString(got.Object, "spec", "cluster")
			clusters = append(clusters, cluster)
			return ""
		})
	}
	return clusters
}

// listEach lists each resource, and waits until every watch cache has had an event. One that nothing happens in has its first from etcd,
// which says how far it is, within a minute, or as soon as somebody lists: what a busy server has later is a series more.
func (w *leaking) listEach(t *testing.T) {
	t.Helper()
	for _, of := range w.listed(t) {
		_, err := w.clients.Metadata.Resource(of).List(client.In(t.Context(), "root"), metav1.ListOptions{})
		must(t, err)
	}
	const room, events = "watch_cache_capacity", "apiserver_watch_cache_events_dispatched_total"
	framework.Eventually(t, 3*time.Minute, "every watch cache has had an event", func() string {
		series, caches := w.series(t), 0
		var none []string
		for name := range series {
			labels, ok := strings.CutPrefix(name, room)
			if !ok || !strings.HasPrefix(labels, "{") {
				continue
			}
			if caches++; !series[events+labels] {
				none = append(none, labels)
			}
		}
		if caches < 50 {
			return fmt.Sprintf("there are only %d", caches)
		}
		slices.Sort(none)
		return strings.Join(none, "\n")
	})
}

// settledServer is what a server has when nothing is under way.
type settledServer struct {
	goroutines float64
	byStart    map[string]float64
	series     map[string]bool
}

// settled waits until the number of goroutines has been the same for some seconds.
func (w *leaking) settled(t *testing.T) settledServer {
	t.Helper()
	var s settledServer
	since := time.Now()
	framework.Eventually(t, 2*time.Minute, "the goroutines settle", func() string {
		byStart, now := w.goroutines(t)
		if now != s.goroutines {
			s.goroutines, s.byStart, since = now, byStart, time.Now()
		}
		if time.Since(since) < 3*time.Second {
			return fmt.Sprintf("%.0f goroutines", now)
		}
		return ""
	})
	s.series = w.series(t)
	return s
}

// series are all that the server's metrics have, by name and labels.
func (w *leaking) series(t *testing.T) map[string]bool {
	t.Helper()
	series := map[string]bool{}
	for line := range strings.Lines(w.raw(t, "/metrics")) {
		if at := strings.LastIndexByte(line, ' '); at > 0 && !strings.HasPrefix(line, "#") {
			series[line[:at]] = true
		}
	}
	if len(series) < 1000 {
		t.Fatalf("the server has %d series", len(series))
	}
	return series
}

// more says of what there is more than before.
func more(before, now map[string]float64) string {
	var said []string
	for of, n := range now {
		if n > before[of] {
			said = append(said, fmt.Sprintf("%s: %.0f, before %.0f", of, n, before[of]))
		}
	}
	slices.Sort(said)
	return strings.Join(said, "\n")
}

// rowsIn counts the rows of etcd, and the bytes of their keys and values.
func rowsIn(t *testing.T, etcd *clientv3.Client) (rows, bytes int) {
	t.Helper()
	const page = 2000
	for key := "\x00"; ; {
		got, err := etcd.Get(t.Context(), key, clientv3.WithFromKey(), clientv3.WithLimit(page))
		must(t, err)
		for _, kv := range got.Kvs {
			rows++
			bytes += len(kv.Key) + len(kv.Value)
			key = string(kv.Key) + "\x00"
		}
		if !got.More {
			return rows, bytes
		}
	}
}
