package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// clocksLoad is how long clients write after each step: longer than a silent connection to etcd lasts.
const clocksLoad = 20 * time.Second

// TestServerClockSteps steps the clock of a running server by an hour, ahead and back again: the leader's, the other's, and both. Clients
// write and watch through both all the while: nothing that was acknowledged is lost, no resourceVersion goes back, the same server leads, and what
// runs in a physical cluster follows. No write fails, but those on the way to etcd when gRPC, which takes a clock that steps back for silence, gives
// up its connection. Tokens are judged by the clock of the server that is asked.
func TestServerClockSteps(t *testing.T) {
	t.Parallel() // much of it is waiting
	flags := append(framework.StartEtcd(t).Flags(), "--service-account-issuer=https://atoll.example")
	first := framework.StartAtoll(t, flags...)
	r := &replicas{t: t, services: map[string]string{}, east: framework.StartPhysical(t, "east")}
	r.servers = []*framework.Atoll{first, first.StartReplica(t, flags...)}
	for _, server := range r.servers {
		r.clients = append(r.clients, server.Clients())
	}
	r.cluster = framework.MakeWorkspace(t, r.clients[0], "root", "clocks")
	r.deploy()
	r.runs(0)
	leader := r.leader()
	holder, err := r.holder(0)
	must(t, err)

	for _, tc := range []struct {
		name   string
		struck []int
	}{
		{"the leader's", []int{leader}},
		{"the other's", []int{1 - leader}},
		{"both", []int{leader, 1 - leader}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.t = t
			name := fmt.Sprintf("clocks-%d-%d", tc.struck[0], len(tc.struck))
			cluster := framework.MakeWorkspace(t, r.clients[0], "root", name)
			var loads []*stubbornLoad
			var watches []*orderedWatch
			for i, clients := range r.clients {
				watches = append(watches, startOrderedWatch(t, r.servers[i].URL, clients, cluster))
			}
			for i, clients := range r.clients {
				loads = append(loads, startStubbornLoad(t, clients, cluster, fmt.Sprintf("by-%d", i), 2))
			}

			before := tokenOf(t, r.clients[0], cluster)
			for _, ahead := range []time.Duration{time.Hour, 0} {
				for _, server := range tc.struck {
					r.servers[server].Use(t)
					r.servers[server].SetClock(ahead)
				}
				began := time.Now()
				r.runs(0)
				r.targetReady()
				t.Logf("figure recovery after a clock stepped to %s ahead: %s", ahead, time.Since(began).Round(10*time.Millisecond))
				// By then a connection that nothing came from would have been given up.
				framework.Eventually(t, patience, "clients write on", func() string {
					if d := time.Since(began); d < clocksLoad {
						return "for " + d.String()
					}
					return ""
				})
				for _, l := range loads {
					l.goesOn(t)
				}
				r.runs(0) // by now the leader has renewed its Lease by the new clock alone
				for i, l := range loads {
					stepped := i == tc.struck[0] || len(tc.struck) == 2
					failed := l.failed()
					if len(failed) > 0 && (ahead != 0 || !stepped) {
						t.Errorf("writes by server %d, whose clock stepped to %s ahead: %v, failed: %v", i, ahead, stepped, failed)
					}
					t.Logf("figure writes by server %d that had to be repeated: %d", i, len(failed))
					for _, err := range failed {
						if text := err.Error(); !strings.Contains(text, "keepalive ping failed") {
							t.Errorf("a write failed for another reason than the connection to etcd: %v", err)
						}
					}
				}
				if is, err := r.holder(1 - leader); err != nil || is != holder {
					t.Errorf("%q holds the Lease, error %v; it was %q", is, err, holder)
				}
				for i, server := range r.servers {
					stepped := ahead != 0 && (i == tc.struck[0] || len(tc.struck) == 2)
					if text := readyzText(t, server); text != "" {
						t.Errorf("server %d is not ready: %s", i, text)
					}
					// It lasts ten minutes.
					if ok := tokenGood(t, server, cluster, before); ok == stepped {
						t.Errorf("a token of before is good with server %d: %v; its clock is %s ahead: %v", i, ok, ahead, stepped)
					}
					now := tokenOf(t, r.clients[i], cluster)
					for j, other := range r.servers {
						otherStepped := ahead != 0 && (j == tc.struck[0] || len(tc.struck) == 2)
						if ok := tokenGood(t, other, cluster, now); ok != (otherStepped == stepped) {
							t.Errorf("a new token of server %d (stepped: %v) is good with server %d (stepped: %v): %v", i, stepped, j, otherStepped, ok)
						}
					}
				}
			}
			wanted := map[string]bool{}
			for _, l := range loads {
				l.stop()
				maps.Copy(wanted, l.acked)
			}
			for _, w := range watches {
				w.sees(t, wanted)
			}
			allThere(t, r.clients[0], cluster, slices.Collect(maps.Keys(wanted)))
		})
	}
	for i, server := range r.servers {
		if n := strings.Count(server.Log(), termOver); n > 0 {
			t.Errorf("server %d has ended %d terms", i, n)
		}
		if runs := strings.Count(server.Log(), "Runs the controllers"); runs > 1 || runs == 1 && i != leader {
			t.Errorf("server %d has led %d times, and %d leads", i, runs, leader)
		}
	}
}

// stubbornLoad are writers that make ConfigMaps, each again and again until it is acknowledged.
type stubbornLoad struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex // guards what follows
	acked  map[string]bool
	errors []error
}

func startStubbornLoad(t *testing.T, clients *client.Clients, cluster logicalcluster.Name, name string, writers int) *stubbornLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(client.In(t.Context(), cluster))
	l := &stubbornLoad{cancel: cancel, acked: map[string]bool{}}
	t.Cleanup(l.stop)
	for writer := range writers {
		l.wait.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d-%d", name, writer, i)}}
				for again := false; ; again = true {
					_, err := clients.Kube.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
					if again && apierrors.IsAlreadyExists(err) {
						err = nil // it had been done
					}
					if ctx.Err() != nil {
						return
					}
					l.mu.Lock()
					if err == nil {
						l.acked[cm.Name] = true
					} else {
						l.errors = append(l.errors, err)
					}
					l.mu.Unlock()
					if err == nil {
						break
					}
				}
			}
		})
	}
	return l
}

// stop ends the writers and waits for them.
func (l *stubbornLoad) stop() {
	l.cancel()
	l.wait.Wait()
}

// failed are the errors since it was asked last.
func (l *stubbornLoad) failed() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := l.errors
	l.errors = nil
	return errs
}

// goesOn waits until more is acknowledged.
func (l *stubbornLoad) goesOn(t *testing.T) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.acked)
	}
	want := count() + 20
	framework.Eventually(t, patience, "writes go on", func() string {
		if n := count(); n < want {
			return fmt.Sprintf("%d are acknowledged, want %d", n, want)
		}
		return ""
	})
}

// targetReady waits until the physical cluster is Ready.
func (r *replicas) targetReady() {
	r.t.Helper()
	framework.Eventually(r.t, patience, "the physical cluster is Ready", func() string {
		target := &workloadv1alpha1.SyncTarget{}
		if err := r.clients[0].Objects.Get(client.In(r.t.Context(), r.placed), ctrlclient.ObjectKey{Name: "east"}, target); err != nil {
			return err.Error()
		}
		for _, c := range target.Status.Conditions {
			if c.Type == "Ready" && c.Status == metav1.ConditionTrue {
				return ""
			}
		}
		return fmt.Sprintf("%+v", target.Status.Conditions)
	})
}

// tokenOf is a token of ten minutes.
func tokenOf(t *testing.T, clients *client.Clients, cluster logicalcluster.Name) string {
	t.Helper()
	made, err := clients.Kube.CoreV1().ServiceAccounts("default").CreateToken(client.In(t.Context(), cluster), "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](600)}}, metav1.CreateOptions{})
	must(t, err)
	return made.Status.Token
}

// tokenGood says whether a server takes a token.
func tokenGood(t *testing.T, server *framework.Atoll, cluster logicalcluster.Name, token string) bool {
	t.Helper()
	config := rest.AnonymousClientConfig(server.Config())
	config.BearerToken, config.Host = token, server.URL+"/clusters/"+cluster.String()
	kube, err := kubernetes.NewForConfig(config)
	must(t, err)
	_, err = kube.CoreV1().ConfigMaps("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return false
	case apierrors.IsForbidden(err), err == nil:
		return true
	}
	t.Fatalf("ask %s with a token: %v", server.URL, err)
	return false
}

// orderedWatch watches the ConfigMaps of a logical cluster, from where it was if it ends.
type orderedWatch struct {
	by      string // address of the server
	seen    map[string]bool
	last    uint64 // version
	problem string
	done    chan struct{}
	cancel  context.CancelFunc
	enough  chan map[string]bool
}

func startOrderedWatch(t *testing.T, by string, clients *client.Clients, cluster logicalcluster.Name) *orderedWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(client.In(t.Context(), cluster))
	w := &orderedWatch{by: by, seen: map[string]bool{}, done: make(chan struct{}), cancel: cancel, enough: make(chan map[string]bool, 1)}
	configMaps := clients.Kube.CoreV1().ConfigMaps("default")
	list, err := configMaps.List(ctx, metav1.ListOptions{})
	must(t, err)
	w.last = versionOf(t, list.ResourceVersion)
	t.Cleanup(func() { cancel(); <-w.done })
	go func() {
		defer close(w.done)
		var wanted map[string]bool
		for {
			watching, err := configMaps.Watch(ctx, metav1.ListOptions{ResourceVersion: fmt.Sprint(w.last)})
			if err != nil {
				w.problem = fmt.Sprintf("watch from %d: %v", w.last, err)
				return
			}
			for open := true; open; {
				if wanted != nil && w.lacks(wanted) == 0 {
					watching.Stop()
					return
				}
				select {
				case wanted = <-w.enough:
				case <-ctx.Done():
					watching.Stop()
					return
				case event, ok := <-watching.ResultChan():
					if open = ok; !ok {
						continue
					}
					accessor, isObject := event.Object.(metav1.Object)
					if event.Type == watch.Error || !isObject {
						w.problem = fmt.Sprintf("an event after %d: %+v", w.last, event)
						watching.Stop()
						return
					}
					var version uint64
					if _, err := fmt.Sscan(accessor.GetResourceVersion(), &version); err != nil || version <= w.last {
						w.problem = fmt.Sprintf("%s has version %q after %d", accessor.GetName(), accessor.GetResourceVersion(), w.last)
						watching.Stop()
						return
					}
					w.last = version
					w.seen[accessor.GetName()] = true
				}
			}
		}
	}()
	return w
}

// lacks is how many it has not shown.
func (w *orderedWatch) lacks(wanted map[string]bool) (n int) {
	for name := range wanted {
		if !w.seen[name] {
			n++
		}
	}
	return n
}

// sees waits until the watch has shown everything.
func (w *orderedWatch) sees(t *testing.T, wanted map[string]bool) {
	t.Helper()
	w.enough <- wanted
	select {
	case <-w.done:
	case <-time.After(patience):
		w.cancel()
		<-w.done
		t.Errorf("a watch by %s shows %d objects, up to version %d, and lacks %d of the %d that were acknowledged", w.by, len(w.seen), w.last, w.lacks(wanted), len(wanted))
	}
	if w.problem != "" {
		t.Error(w.problem)
	}
}
