package storage

import (
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
