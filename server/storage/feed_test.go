package storage

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
	destroyed := make(chan struct{})
	go func() {
		defer close(destroyed)
		s.Destroy()
	}()
	select {
	case <-destroyed:
	case <-time.After(time.Minute):
		t.Fatal("the stores are not closed after a minute")
	}
}
