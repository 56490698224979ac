package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestStartWritesNoPrefixAnew: a start forgets the prefixes of custom resources that are left from before, and leaves alone what is
// built in, although nothing in the rows of before tells the one from the other.
func TestStartWritesNoPrefixAnew(t *testing.T) {
	const prefixes, old = "/atoll/prefixes/", "/atoll/prefixes/before.example/widgets"
	r := startServer(t, nil)
	written := func() map[string]int64 {
		got, err := r.data.Get(t.Context(), prefixes, clientv3.WithPrefix())
		must(t, err)
		found := map[string]int64{}
		for _, kv := range got.Kvs {
			found[string(kv.Key)] = kv.ModRevision
		}
		return found
	}
	before := written()
	if len(before) < 50 {
		t.Fatalf("there are %d prefixes: %v", len(before), before)
	}
	before[old] = 0
	for key := range before {
		_, err := r.data.Put(t.Context(), key, "")
		must(t, err)
	}
	want := written()
	delete(want, old)
	r = r.restart(t)
	if diff := cmp.Diff(want, written()); diff != "" {
		t.Errorf("revisions of the prefixes over a restart (-want +got):\n%s", diff)
	}
}
