package embeddedetcd_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestWatchesThatEndTogether: when many watches end at once, as those of a client that is cut off, the others go on.
func TestWatchesThatEndTogether(t *testing.T) {
	const rounds, many = 20, 300
	etcd := start(t, t.TempDir())
	// With one CPU more requests are written before anybody reads the first answer.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	stays := etcd.Client.Watch(t.Context(), "/stays")
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		for i := range many {
			began := etcd.Client.Watch(ctx, fmt.Sprintf("/ends/%d", i), clientv3.WithCreatedNotify())
			if response := told(t, began); !response.Created {
				t.Fatalf("round %d: watch %d begins with %+v", round, i, response)
			}
		}
		cancel()
		put(t, etcd.Client, "/stays")
		if response := told(t, stays); len(response.Events) != 1 {
			t.Fatalf("round %d: the watch that stays is told %+v", round, response)
		}
	}
}

// told is what a watch says next.
func told(t *testing.T, w clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case response := <-w:
		return response
	case <-time.After(30 * time.Second):
		t.Fatal("the watch says nothing")
		return clientv3.WatchResponse{}
	}
}
