package storage

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	clocktesting "k8s.io/utils/clock/testing"

	"atoll.dev/atoll/embedded-etcd/etcdtest"
)

// TestConsistentListsDoNotWaitForTheTicker: a cacher asks etcd every 100 ms how far it is, so with writes of others in
// between every consistent list would take that long.
func TestConsistentListsDoNotWaitForTheTicker(t *testing.T) {
	_, options := etcdtest.StartTLS(t)
	for name, client := range map[string]*clientv3.Client{"embedded": etcd.Client, "external": etcdtest.Connect(t, options).Client} {
		t.Run(name, func(t *testing.T) {
			s := serveOn(t, client, prefixOf(t), nil)
			put(t, s, "aa", "x", "v")
			var took []time.Duration
			for range 21 {
				create(t, s.secrets, in("bb", "default"), secret("default", ""))
				begin := time.Now()
				names(t, s.configMaps, in("aa"), nil)
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			if median := took[len(took)/2]; median > 50*time.Millisecond {
				t.Errorf("a list after a foreign write takes %v in the median, %v at least", median, took[0])
			}
		})
	}
}

// TestDestroyWhileEventsCome: a cacher that stops takes no more events, and what delivers them would wait for it for good.
func TestDestroyWhileEventsCome(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	const n = 20 * maxOps // several times what a cacher queues
	var writes []clientv3.Op
	for i := range n {
		key := join(s.prefix, ClusterKey("/configmaps", "aa", fmt.Sprintf("default/cm-%05d", i)))
		writes = append(writes, clientv3.OpPut(key, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":"cm-%05d"}}`, i)))
	}
	for some := range slices.Chunk(writes, maxOps) {
		if _, err := etcd.Client.Txn(t.Context()).Then(some...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	s.Destroy()
}

// TestDestroyWithoutEtcd: what asks an etcd that is away how far it is waits for it, and does not keep a store from closing.
func TestDestroyWithoutEtcd(t *testing.T) {
	server, options := etcdtest.StartTLS(t)
	clk := clocktesting.NewFakeClock(time.Now())
	s := serveOn(t, etcdtest.Connect(t, options).Client, prefixOf(t), func(c *Config) { c.Clock = clk })
	for n := range 2 * leastRoom {
		put(t, s, "aa", fmt.Sprintf("x%04d", n), "v")
	}
	deadline := time.Now().Add(30 * time.Second)
	for roomForEvents(t) <= leastRoom { // the cacher has yet to hear of what was put
		if time.Now().After(deadline) {
			t.Fatalf("there is room for %d events, so there is nothing to ask", roomForEvents(t))
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		clk.Step(time.Second)
		time.Sleep(time.Millisecond) // for the goroutines that wait for the clock
	}
	s.Destroy()
}
