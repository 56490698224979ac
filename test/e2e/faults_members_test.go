package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// membersWriters write at a time, and each has membersWrites acknowledged before and after something happens.
const (
	membersWriters = 4
	membersWrites  = 5
)

// TestEtcdMembers strikes members of an etcd of three while clients write: one is killed, stopped, or cut off without a word.
// Writes go on, and what the server knows from watches, too. When two are away nothing is acknowledged, and the server says
// so; when one of them is back, everything goes on by itself. Nothing acknowledged is lost, and the server is one process all
// the while.
func TestEtcdMembers(t *testing.T) {
	t.Parallel() // most of it is waiting
	etcd := framework.StartEtcdMembers(t, 3)
	a := framework.StartAtoll(t, etcd.Flags()...)
	clients := a.Clients()
	w := &membersLoad{a: a, clients: clients, cluster: framework.MakeWorkspace(t, clients, "root", "shop")}
	pid := a.PID()

	kill := func(i int) (heal func()) { etcd.Members[i].Kill(); return etcd.Members[i].Start }
	pause := func(i int) (heal func()) { etcd.Members[i].Pause(); return etcd.Members[i].Resume }
	cutOff := func(i int) (heal func()) { etcd.CutOff(i); return func() { etcd.Rejoin(i) } }
	rounds := 1
	if soaking() {
		rounds = 10
	}
	for round := range rounds {
		for _, fault := range []struct {
			name   string
			strike func(member int) (heal func())
			long   bool // for `make soak` alone
		}{
			{"killed", kill, false},
			{"stopped", pause, etcd.CanCutOff()}, // nothing more is seen of it than of one that is cut off
			{"cut off", cutOff, false},
		} {
			if fault.long && !soaking() {
				continue
			}
			t.Run(fmt.Sprintf("round %d, a member is %s", round, fault.name), func(t *testing.T) {
				w.use(t, etcd)
				if fault.name == "cut off" && !etcd.CanCutOff() {
					t.Skipf("NOT TESTED: no member can be cut off, since network namespaces cannot be made here: %v", framework.CanLink())
				}
				member := (etcd.Leader(t) + round) % 3 // who leads matters most
				w.during(func(more func(string, int)) {
					more("before", membersWriters)
					heal := fault.strike(member)
					began := time.Now()
					more("while a member is "+fault.name, membersWriters)
					t.Logf("a member is %s: %d writers had %d writes each acknowledged after %s", fault.name, membersWriters, membersWrites, time.Since(began).Round(100*time.Millisecond))
					w.knows()
					t.Logf("a member is %s: watches go on after %s", fault.name, time.Since(began).Round(100*time.Millisecond))
					heal()
					more("when it is back", membersWriters)
				})
				w.check()
			})
		}
		t.Run(fmt.Sprintf("round %d, two members are away", round), func(t *testing.T) {
			w.use(t, etcd)
			leader := etcd.Leader(t)
			var heals []func()
			w.during(func(more func(string, int)) {
				heals = append(heals, pause(leader))
				began := time.Now()
				more("while a member is stopped", 1)
				t.Logf("a member is stopped: a writer had %d writes acknowledged after %s", membersWrites, time.Since(began).Round(100*time.Millisecond))
			})
			heals = append(heals, kill((leader+1)%3))
			began := time.Now()
			if err := w.write(2 * time.Minute); err == nil {
				t.Error("a write was acknowledged by one member of three")
			} else {
				t.Logf("a write is answered after %s: %v", time.Since(began).Round(100*time.Millisecond), err)
			}
			framework.Eventually(t, 2*time.Minute, "/readyz says that etcd is away", func() string {
				if text := readyzText(t, a); !strings.Contains(text, "[-]etcd") {
					return text
				}
				return ""
			})
			heals[0]()
			began = time.Now()
			framework.Eventually(t, 2*time.Minute, "writes go on with two members", func() string { return problemOf(w.write(oneTry)) })
			heals[1]()
			framework.Eventually(t, 2*time.Minute, "it is ready", func() string { return readyzText(t, a) })
			w.knows()
			t.Logf("recovery after two members were away: %s", time.Since(began).Round(100*time.Millisecond))
			w.check()
		})
	}
	if a.PID() != pid {
		t.Error("the server is another process")
	}
}

// membersLoad writes ConfigMaps and remembers those that were acknowledged.
type membersLoad struct {
	t       *testing.T
	a       *framework.Atoll
	clients *client.Clients
	cluster logicalcluster.Name
	made    int // workspaces

	mu           sync.Mutex // guards all below
	n            int
	acknowledged []string
	byWriter     [membersWriters]int
	last         error
}

// use makes t the test that fails.
func (w *membersLoad) use(t *testing.T, etcd *framework.EtcdMembers) {
	w.t = t
	w.a.Use(t)
	for _, member := range etcd.Members {
		member.Use(t)
	}
}

// write makes a ConfigMap.
func (w *membersLoad) write(patience time.Duration) error {
	w.mu.Lock()
	w.n++
	name := fmt.Sprintf("object-%d", w.n)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(client.In(w.t.Context(), w.cluster), patience)
	defer cancel()
	_, err := w.clients.Kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err == nil {
		w.mu.Lock()
		w.acknowledged = append(w.acknowledged, name)
		w.mu.Unlock()
	}
	return err
}

// during lets writers write while do runs. more waits until so many of them have had membersWrites more acknowledged.
func (w *membersLoad) during(do func(more func(when string, writers int))) {
	w.t.Helper()
	var writers sync.WaitGroup
	defer writers.Wait()
	over := make(chan struct{})
	defer close(over)
	for i := range membersWriters {
		writers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				err := w.write(oneTry)
				w.mu.Lock()
				if err == nil {
					w.byWriter[i]++
				} else {
					w.last = err
				}
				w.mu.Unlock()
			}
		})
	}
	do(func(when string, enough int) {
		w.t.Helper()
		w.mu.Lock()
		before := w.byWriter
		w.mu.Unlock()
		framework.Eventually(w.t, 2*time.Minute, "writes go on "+when, func() string {
			w.mu.Lock()
			defer w.mu.Unlock()
			done, had := 0, w.byWriter
			for i := range had {
				if had[i] -= before[i]; had[i] >= membersWrites {
					done++
				}
			}
			if done < enough {
				return fmt.Sprintf("the writers had %v acknowledged, last error %v", had, w.last)
			}
			return ""
		})
	})
}

// knows waits until the server does what takes its watches: a new workspace is made and used.
func (w *membersLoad) knows() {
	w.t.Helper()
	w.made++
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("made-%d", w.made)}}
	framework.Eventually(w.t, 2*time.Minute, "workspace "+ws.Name+" is ready", func() string {
		ctx, cancel := context.WithTimeout(client.In(w.t.Context(), "root"), oneTry)
		defer cancel()
		if err := w.clients.Objects.Get(ctx, ctrlclient.ObjectKey{Name: ws.Name}, ws); apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is not there; create: %v", w.clients.Objects.Create(ctx, ws))
		} else if err != nil {
			return err.Error()
		}
		if ws.Status.Phase != "Ready" {
			return fmt.Sprintf("status %+v", ws.Status)
		}
		return ""
	})
}

// check finds everything that was acknowledged.
func (w *membersLoad) check() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	allThere(w.t, w.clients, w.cluster, w.acknowledged)
	w.t.Logf("%d writes acknowledged", len(w.acknowledged))
}
