package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	quotaServers = 3
	quotaClients = 9
	quotaLimit   = 25 // ConfigMaps; clients want more at any time
	quotaStrikes = 12 // and where ATOLL_SOAK=1
	quotaSoaks   = 200
	// quotaBetween is how many ConfigMaps are acknowledged between two strikes at most.
	quotaBetween = 60
	// quotaAway is how long a server is stopped at most: a leader's Lease runs out before.
	quotaAway = 20 * time.Second
)

// TestReplicasQuota lets clients make and delete ConfigMaps through three servers on one etcd, as fast as they can and as many as a
// ResourceQuota lets them, while the servers are killed and stopped at random. etcd's history tells that at no moment there were more.
func TestReplicasQuota(t *testing.T) {
	t.Parallel()
	seed := framework.Seed(t)
	etcd := framework.StartEtcd(t)
	flags := append(etcd.Flags(), "--service-account-issuer=https://atoll.example")
	q := &quotaReplicas{servers: []*framework.Atoll{framework.StartAtoll(t, flags...)}}
	for len(q.servers) < quotaServers {
		q.servers = append(q.servers, q.servers[0].StartReplica(t, flags...))
	}
	for _, server := range q.servers {
		q.clients = append(q.clients, server.Clients())
	}
	q.cluster = framework.MakeWorkspace(t, q.clients[0], "root", "limited")
	q.limit(t)
	history := q.follow(t, etcd.Client(t))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writers sync.WaitGroup
	for n := range quotaClients {
		// Each has its own sequence, so that a seed gives the same requests, if not the same order among clients, nor as many.
		random := rand.New(rand.NewPCG(seed, uint64(n)))
		writers.Go(func() { q.write(ctx, t, n, random) })
	}
	q.strike(t, rand.New(rand.NewPCG(seed, quotaClients)))
	cancel()
	writers.Wait()

	q.mu.Lock()
	made, deleted, refused := q.made, q.deleted, q.refused
	q.mu.Unlock()
	t.Logf("figure ConfigMaps made: %d", made)
	t.Logf("figure deleted: %d", deleted)
	t.Logf("figure refused: %d", refused)
	if deleted == 0 || refused == 0 {
		t.Errorf("%d deleted and %d refused: nothing was counted, or there was no limit", deleted, refused)
	}
	q.exact(t)
	most, changes := history()
	t.Logf("figure at most at a time, of %d: %d", quotaLimit, most)
	if most > quotaLimit {
		t.Errorf("there were %d ConfigMaps at a time, allowed are %d", most, quotaLimit)
	}
	if changes < made {
		t.Errorf("the history has %d changes, and %d ConfigMaps were made", changes, made)
	}
}

type quotaReplicas struct {
	servers []*framework.Atoll
	clients []*client.Clients
	cluster logicalcluster.Name

	mu                     sync.Mutex // guards what follows
	made, deleted, refused int        // acknowledged
}

const quotaNamespace = "limited"

// limit makes the namespace and its ResourceQuota, and waits until that is counted.
func (q *quotaReplicas) limit(t *testing.T) {
	t.Helper()
	in, kube := client.In(t.Context(), q.cluster), q.clients[0].Kube.CoreV1()
	_, err := kube.Namespaces().Create(in, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: quotaNamespace}}, metav1.CreateOptions{})
	must(t, err)
	hard := corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse(fmt.Sprint(quotaLimit))}
	_, err = kube.ResourceQuotas(quotaNamespace).Create(in, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "limit"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
	must(t, err)
	framework.Eventually(t, time.Minute, "the ResourceQuota is counted", func() string {
		got, err := kube.ResourceQuotas(quotaNamespace).Get(in, "limit", metav1.GetOptions{})
		if err != nil || len(got.Status.Used) == 0 {
			return fmt.Sprintf("%v, error %v", got, err)
		}
		return ""
	})
}

// follow reads what becomes of the ConfigMaps in etcd, one change after the other. The result ends it when all that has happened is
// read, compares what is left with what etcd has at that revision, and tells how many there were at most, and how many changes.
func (q *quotaReplicas) follow(t *testing.T, etcd *clientv3.Client) func() (most, changes int) {
	t.Helper()
	prefix := "/registry/configmaps/" + q.cluster.String() + "/" + quotaNamespace + "/"
	start, err := etcd.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(t, err)
	there := map[string]bool{}
	for _, kv := range start.Kvs {
		there[string(kv.Key)] = true
	}
	var mu sync.Mutex // guards what follows
	most, changes := len(there), 0
	seen, left := start.Header.Revision, len(there) // how many there were at that revision
	var failed error
	events := etcd.Watch(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithRev(start.Header.Revision+1))
	go func() {
		for some := range events {
			mu.Lock()
			for _, e := range some.Events {
				changes++
				if e.Type == clientv3.EventTypeDelete {
					delete(there, string(e.Kv.Key))
				} else {
					there[string(e.Kv.Key)] = true
				}
				most = max(most, len(there))
			}
			if some.IsProgressNotify() { // all up to there was told, and nothing of later
				seen, left = some.Header.Revision, len(there)
			}
			failed = some.Err()
			mu.Unlock()
		}
	}()
	return func() (int, int) {
		t.Helper()
		end, err := etcd.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		must(t, err)
		framework.Eventually(t, time.Minute, "the history is read", func() string {
			if err := etcd.RequestProgress(t.Context()); err != nil {
				return err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				t.Fatal(failed)
			}
			if seen < end.Header.Revision {
				return fmt.Sprintf("up to %d of %d", seen, end.Header.Revision)
			}
			return ""
		})
		mu.Lock()
		defer mu.Unlock()
		then, err := etcd.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(seen))
		must(t, err)
		if int64(left) != then.Count {
			t.Errorf("at revision %d etcd has %d ConfigMaps by its history, and it has %d", seen, left, then.Count)
		}
		return most, changes
	}
}

// write makes ConfigMaps and deletes some, each through a server drawn by lot.
func (q *quotaReplicas) write(ctx context.Context, t *testing.T, writer int, random *rand.Rand) {
	var own []string
	for i := 0; ctx.Err() == nil; i++ {
		configMaps := q.clients[random.IntN(len(q.clients))].Kube.CoreV1().ConfigMaps(quotaNamespace)
		try, cancel := context.WithTimeout(client.In(ctx, q.cluster), oneTry)
		name := fmt.Sprintf("w%d-%d", writer, i)
		deletes := len(own) > 0 && random.IntN(3) == 0
		var err error
		if deletes {
			n := random.IntN(len(own))
			name = own[n]
			if err = configMaps.Delete(try, name, metav1.DeleteOptions{}); err == nil || apierrors.IsNotFound(err) {
				own[n] = own[len(own)-1]
				own = own[:len(own)-1]
			}
		} else if _, err = configMaps.Create(try, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err == nil || !apierrors.IsForbidden(err) {
			own = append(own, name) // it may be there
		}
		cancel()
		exceeded := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: limit")
		q.mu.Lock()
		switch {
		case exceeded:
			q.refused++
		case err == nil && deletes:
			q.deleted++
		case err == nil:
			q.made++
		}
		q.mu.Unlock()
		switch {
		case exceeded || err == nil:
		case apierrors.IsForbidden(err):
			t.Errorf("ConfigMap %s: %v", name, err)
			return
		case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown: // no answer: a server that is away is not asked all the time
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// strike kills and stops servers at random, one or two of three at a time, after as many ConfigMaps as the lot says, and heals them.
func (q *quotaReplicas) strike(t *testing.T, random *rand.Rand) {
	t.Helper()
	strikes := quotaStrikes
	if soaking() {
		strikes = quotaSoaks
	}
	t.Logf("figure servers killed and stopped, one or two of three at a time: %d", strikes)
	for n := range strikes {
		q.mu.Lock()
		next := q.made + 1 + random.IntN(quotaBetween)
		q.mu.Unlock()
		framework.Eventually(t, 2*time.Minute, fmt.Sprintf("%d ConfigMaps are acknowledged", next), func() string {
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.made < next {
				return fmt.Sprintf("%d are, %d deleted, %d refused", q.made, q.deleted, q.refused)
			}
			return ""
		})
		var heal []func()
		for _, i := range random.Perm(len(q.servers))[:1+random.IntN(2)] {
			server := q.servers[i]
			if random.IntN(2) == 0 {
				t.Logf("strike %d: server %d is killed", n, i)
				server.Kill()
				heal = append(heal, server.Start)
			} else {
				t.Logf("strike %d: server %d is stopped", n, i)
				server.Pause()
				heal = append(heal, server.Resume)
			}
		}
		// Most strikes are short, and some longer than a Lease.
		away := time.Duration(random.Int64N(int64(2 * time.Second)))
		if random.IntN(4) == 0 {
			away = time.Duration(random.Int64N(int64(quotaAway)))
		}
		select {
		case <-time.After(away):
		case <-t.Context().Done():
		}
		for _, do := range heal {
			do()
		}
	}
}

// exact looks at what is used when nobody writes any more: what a server was charged for when it was killed is given back by the next count,
// which follows from a deletion.
func (q *quotaReplicas) exact(t *testing.T) {
	t.Helper()
	in, kube := client.In(t.Context(), q.cluster), q.clients[0].Kube.CoreV1()
	list, err := kube.ConfigMaps(quotaNamespace).List(in, metav1.ListOptions{})
	must(t, err)
	// The last by name is one of a client, unless clients deleted all of theirs while no leader counted: then it is the one that a
	// controller makes again.
	must(t, kube.ConfigMaps(quotaNamespace).Delete(in, list.Items[len(list.Items)-1].Name, metav1.DeleteOptions{}))
	framework.Eventually(t, 2*time.Minute, "what is used is what there is", func() string {
		list, err := kube.ConfigMaps(quotaNamespace).List(in, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		got, err := kube.ResourceQuotas(quotaNamespace).Get(in, "limit", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		used := got.Status.Used[corev1.ResourceConfigMaps]
		if used.Value() != int64(len(list.Items)) {
			return fmt.Sprintf("%s are used, there are %d", used.String(), len(list.Items))
		}
		return ""
	})
}
