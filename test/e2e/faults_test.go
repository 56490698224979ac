package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kcp-dev/logicalcluster/v3"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestFaults breaks what is between the hub and the physical clusters it syncs, and both ends. While each fault lasts
// things are changed upstream; after it everything comes to be as asked, and the audit logs of the physical clusters tell
// of no delete that nobody asked for. How long recovery took is printed.
func TestFaults(t *testing.T) {
	inModes(t, func(t *testing.T, pulled ...string) { newFaulty(t, pulled...).run(t, faults) })
}

// faults, the shorter first.
var faults = []faultPart{
	{"FaultWatchesCut", watchesCut},
	{"FaultWatchesGone410", watchesGone},
	{"FaultPhysicalSlow", physicalSlow},
	{"FaultPhysicalRefuses", physicalRefuses},
	{"FaultPhysicalSwallowsRequests", physicalSwallows},
	{"FaultServerPaused", serverPaused},
	{"FaultSyncerKilledAndStartedTwice", syncerKilled},
	{"FaultLossAndDelay", lossAndDelay},
	{"FaultHalfOpenConnections", halfOpen},
	{"FaultPhysicalGoneAndBackOlder", backOlder},
}

func inMirror(t *testing.T, f *fleet, cluster string) context.Context {
	return client.In(t.Context(), logicalcluster.Name(mirrorOf(t, f, cluster)))
}

// watchesCut: connections are reset again and again, and load balancers end every watch after an event.
func watchesCut(t *testing.T, f *faulty) {
	s := f.subject(t, "cut")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for name, front := range f.fronts {
		front.CutWatches(1)
		for _, p := range []*framework.Proxy{f.between(name), front.Proxy} {
			go func() {
				for ctx.Err() == nil {
					p.Cut()
					// Long enough, now and then, that a watch is there again and has an event, also on a machine that does much else.
					time.Sleep(100*time.Millisecond + rand.N(time.Second))
				}
			}()
		}
	}
	spared := func() string {
		for name, front := range f.fronts {
			if front.Ended.Load() == 0 || front.Proxy.Broken.Load() == 0 || f.between(name).Broken.Load() == 0 {
				return fmt.Sprintf("%s: %d watches were ended, %d connections of it cut, and %d of its syncer", name, front.Ended.Load(), front.Proxy.Broken.Load(), f.between(name).Broken.Load())
			}
		}
		return ""
	}
	for end := time.Now().Add(time.Minute); ; {
		s.changing(lasting(6*time.Second, 90*time.Second), 5)
		if spared() == "" || time.Now().After(end) {
			break
		}
	}
	stop()
	if what := spared(); what != "" {
		t.Error(what)
	}
	f.restore()
	s.change()
	s.recovered("from connections cut again and again")
}

// watchesGone: physical clusters answer 410 to every watch; then the hub forgets its history while the syncers are away,
// and is killed, so that what it kept in memory is gone, too.
func watchesGone(t *testing.T, f *faulty) {
	s := f.subject(t, "expired")
	before, err := f.Clients().Kube.CoreV1().Services("").List(inMirror(t, f.fleet, "east"), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, front := range f.fronts {
		front.Break(framework.WatchesExpire)
		front.Proxy.Cut()
	}
	s.changing(lasting(6*time.Second, time.Minute), 2)
	f.met(t)
	f.restore()
	s.recovered("from 410 on every watch of the physical clusters")

	for _, hub := range f.hubs {
		hub.Refuse()
	}
	s.grow()
	f.Kill()
	f.Restart()
	s.grow()
	f.compact(t)
	f.Kill()
	f.Restart()
	f.expired(t, "east", before.ResourceVersion)
	s.change()
	f.restore()
	s.recovered("from a hub that was killed and has forgotten its history")
}

// physicalSlow: every request takes long, but less than it may.
func physicalSlow(t *testing.T, f *faulty) {
	s := f.subject(t, "slow")
	f.fronts["east"].Held.Store(0) // other faults have let requests pass, too
	f.fronts["east"].Break(framework.Slow(1500 * time.Millisecond))
	f.fronts["west"].Proxy.Delay(700 * time.Millisecond)
	f.fronts["west"].Proxy.Throttle(64 << 10)
	s.changing(lasting(10*time.Second, 90*time.Second), 3)
	for name := range f.clusters {
		if problem := s.readyProblem(name); problem != "" {
			t.Errorf("merely slow: %s", problem)
		}
	}
	s.recovered("while physical clusters take 1.5 s for each request")
	if f.fronts["east"].Held.Load() == 0 {
		t.Error("nobody asked east while it was slow")
	}
	if f.fronts["west"].Proxy.Delayed.Load() == 0 {
		t.Error("nothing went to west or came from there while it was slow")
	}
	f.restore()
	s.change()
	s.recovered("from slow physical clusters")

	if soaking() {
		f.fronts["east"].Break(framework.Slow(6 * time.Second))
		s.notReady("east")
		s.change()
		f.restore()
		s.recovered("from a physical cluster that took 6 s for each request")
	}
}

// physicalRefuses: one physical cluster is overloaded, the other's load balancer has no backend, and both ask to be left
// alone for long.
func physicalRefuses(t *testing.T, f *faulty) {
	s := f.subject(t, "refuses")
	f.fronts["east"].Break(framework.Refuses(http.StatusServiceUnavailable, 5*time.Minute))
	f.fronts["west"].Break(framework.Refuses(http.StatusTooManyRequests, 5*time.Minute))
	for _, front := range f.fronts {
		front.Proxy.Cut()
	}
	s.change()
	for name := range f.clusters {
		framework.Eventually(t, patience, "an Event tells that "+name+" does not answer", func() string {
			out := s.kubectl("get", "events", "-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
			if !strings.Contains(out, "Unreachable: Cluster \""+name+"\"") {
				return out
			}
			return ""
		})
	}
	s.change()
	if soaking() {
		s.notReady("east")
		s.notReady("west")
	}
	f.met(t)
	f.restore()
	s.recovered("from 503 and 429 with Retry-After: 300")
}

// physicalSwallows: requests are taken and never answered, not even after the fault has ended.
func physicalSwallows(t *testing.T, f *faulty) {
	s := f.subject(t, "swallows")
	for _, front := range f.fronts {
		front.Break(framework.Swallows)
		front.Proxy.Cut()
	}
	s.changing(lasting(12*time.Second, 2*time.Minute), 2)
	f.met(t)
	f.restore()
	s.recovered("from requests that are never answered")
}

// serverPaused: the server does nothing for a while, its connections stay open.
func serverPaused(t *testing.T, f *faulty) {
	s := f.subject(t, "paused")
	for range 2 {
		s.change()
		f.Pause()
		time.Sleep(lasting(12*time.Second, 2*time.Minute)) // the fault itself: nobody can be asked meanwhile
		f.Resume()
		s.change()
		s.recovered("from a server that was stopped by SIGSTOP")
	}
}

// syncerKilled: the server ends without a word and is started again, twice. Then clusters with syncers of their own get a
// second one: the one that works is killed, or stopped and waked when the other has taken over.
func syncerKilled(t *testing.T, f *faulty) {
	s := f.subject(t, "killed")
	for range 2 {
		s.change()
		f.Kill()
		f.Restart()
		s.change()
	}
	s.recovered("from a server killed and started twice")
	if len(f.syncers) == 0 {
		return
	}
	second := map[string]*framework.Syncer{}
	for name := range f.syncers {
		second[name] = framework.StartSyncer(t, f.Atoll, f.fronts[name].Physical, f.manifests[name])
	}
	s.change()
	s.recovered("with a second syncer started for each cluster")
	f.syncers["east"].Pause()
	west := f.syncers["west"]
	if west != nil {
		west.Kill()
	}
	s.change()
	s.recovered("by the second syncer (the lock of the first has to run out)")
	s.change()
	f.syncers["east"].Resume()
	if west != nil {
		west.Start()
	}
	s.change()
	s.recovered("with the first syncer waked again")
	for _, syncer := range second {
		syncer.Stop()
	}
	s.change()
	s.recovered("by the first syncer (the second gave its lock back)")
}

// lossAndDelay: hub and east are hosts between which packets get lost.
func lossAndDelay(t *testing.T, f *faulty) {
	if err := framework.CanLink(); err != nil {
		t.Skipf("NOT TESTED: no hosts can be made of network namespaces: %v", err)
	}
	link := framework.StartLink(t, 0.05, 50*time.Millisecond)
	s := f.subject(t, "lossy")
	if f.syncers["east"] != nil {
		east, hub := f.fronts["east"].Physical, strings.Replace(f.URL, "127.0.0.1", "localhost", 1)
		f.syncers["east"].Stop()
		manifest := strings.ReplaceAll(f.manifests["east"], "https://"+f.hubs["east"].Address, hub)
		syncer := framework.StartSyncer(t, f.Atoll, east, manifest)
		link.Move(syncer, east, hub)
		defer func() {
			syncer.Stop()
			f.syncers["east"].Start()
		}()
	} else {
		between := f.between("east")
		between.Through(link.Dialer(between.Target))
		defer between.Through(nil)
	}
	s.changing(lasting(5*time.Second, 5*time.Minute), 5)
	s.recovered("while 5 % of packets are lost and each takes 50 ms")
	if link.Lost() == 0 {
		t.Error("no packet was lost")
	}
}

// halfOpen: nothing passes any more, in one direction each, and nobody is told: connections stay open.
func halfOpen(t *testing.T, f *faulty) {
	s := f.subject(t, "halfopen")
	proxies := []func(string) *framework.Proxy{f.between}
	if len(f.hubs) == len(f.clusters) && soaking() {
		// The syncer's other side, too.
		proxies = append(proxies, func(cluster string) *framework.Proxy { return f.fronts[cluster].Proxy })
	}
	for _, between := range proxies {
		between("east").Hold(framework.Requests)
		between("west").Hold(framework.Answers)
		s.change()
		s.notReady("east")
		s.notReady("west")
		s.change()
		f.restore()
		s.recovered("from half-open connections")
	}
	if soaking() {
		f.between("east").Hold(framework.Requests, framework.Answers)
		f.between("west").Hold(framework.Requests, framework.Answers)
		s.changing(10*time.Minute, 3)
		f.restore()
		s.recovered("from half-open connections of ten minutes")
	}
}

// backOlder: a physical cluster is gone and comes back with the state of a backup.
func backOlder(t *testing.T, f *faulty) {
	s := f.subject(t, "older")
	east := f.clusters["east"]
	backup := filepath.Join(t.TempDir(), "backup")
	east.Stop()
	copyState(t, east.Dir, backup)
	east.Restart()
	s.change()
	s.settled() // new-1 is there, old-1 is not
	leafGone(t, f.fleet, "east", s.namespace(), "old-1")

	east.Stop()
	s.change()
	if err := os.RemoveAll(filepath.Join(east.Dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	copyState(t, backup, east.Dir)
	east.Restart()
	f.condition(t, "east", workloadv1alpha1.SyncTargetObserveOnly, metav1.ConditionTrue, "restored")
	s.change()
	// The state of before, and nothing written to it.
	framework.Eventually(t, patience, "west is as asked", func() string {
		if n := s.ready("west"); n != s.replicas()/2 {
			return fmt.Sprintf("%d pods", n)
		}
		return ""
	})
	for _, name := range []string{"old-1", "old-2", "old-3"} {
		if _, err := east.Clientset().CoreV1().Services(s.namespace()).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("Service %s of a cluster that was restored: %v", name, err)
		}
	}
	d, err := east.Clientset().AppsV1().Deployments(s.namespace()).Get(t.Context(), s.app, metav1.GetOptions{})
	if err != nil || ptr.Deref(d.Spec.Replicas, 0) != 3 {
		t.Errorf("the Deployment of a cluster that was restored has %d replicas, want the 3 of its backup (%v)", ptr.Deref(d.Spec.Replicas, 0), err)
	}
	f.MustRun("cluster", "confirm", "east", "restored")
	// What was deleted between backup and restore has no leaf any more, and is left to people.
	f.condition(t, "east", "Orphans", metav1.ConditionTrue, "old-1")
	if err := east.Clientset().CoreV1().Services(s.namespace()).Delete(t.Context(), "old-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.observer = nil // the pods of the restored cluster are its own business
	s.recovered("from a physical cluster with an older state, since it was confirmed")
}

// copyState copies what a stopped physical cluster keeps in etcd. Its audit log stays: it is the judge.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(to, "etcd"), os.DirFS(filepath.Join(from, "etcd"))); err != nil {
		t.Fatalf("copy the state of a physical cluster: %v", err)
	}
}
