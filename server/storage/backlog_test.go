package storage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// longEvents makes events in a logical cluster, from one number to another, of 200 KiB each.
func longEvents(t *testing.T, s *served, cluster string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		e := event("default", fmt.Sprintf("e%03d", i))
		e.Annotations, e.Reason = map[string]string{"a": strings.Repeat("x", 200<<10)}, "Long"
		create(t, s.events, in(cluster, "default"), e)
	}
}

func behind(b *backlogs, cluster string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes[cluster]
}

// watchEvents watches the events of a logical cluster from a position, "" for all that are there.
func watchEvents(t *testing.T, s *served, ctx context.Context, options *metainternalversion.ListOptions) watch.Interface {
	t.Helper()
	w, err := s.events.Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// TestReaderThatStops: what others write is not kept for it, and when it goes on it hears that it has missed something.
func TestReaderThatStops(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	longEvents(t, s, "aa", 0, 1)
	w := watchEvents(t, s, in("aa", "default"), &metainternalversion.ListOptions{})
	if got, _ := next(t, w); got != "ADDED aa/default/e000" {
		t.Fatalf("the first event is %s", got)
	}
	const n = 100 // of 20 MB
	longEvents(t, s, "aa", 1, n)
	if got := behind(&s.backlogs, "aa"); got > mostBehind {
		t.Errorf("%d bytes are kept, want no more than %d", got, mostBehind)
	}
	// Another one is told meanwhile.
	other := watchEvents(t, s, in("bb", "default"), &metainternalversion.ListOptions{})
	longEvents(t, s, "bb", 0, 3)
	for i := range 3 {
		if got, _ := next(t, other); got != fmt.Sprintf("ADDED bb/default/e%03d", i) {
			t.Errorf("the other reader is told %s", got)
		}
	}

	seen, last := 1, ""
	for {
		got, event := nextOrEnd(t, w)
		if got == ended {
			break
		}
		if want := fmt.Sprintf("ADDED aa/default/e%03d", seen); got != want {
			t.Fatalf("it is told %s, want %s", got, want)
		}
		seen, last = seen+1, event.Object.(*api.Event).ResourceVersion
	}
	if seen >= n/2 {
		t.Errorf("%d of %d events were kept for it", seen, n)
	}
	w = watchEvents(t, s, in("aa", "default"), &metainternalversion.ListOptions{ResourceVersion: last})
	for ; seen < n; seen++ {
		if got, _ := next(t, w); got != fmt.Sprintf("ADDED aa/default/e%03d", seen) {
			t.Fatalf("from where it was it is told %s, want e%03d", got, seen)
		}
	}
	w.Stop()
	for began := time.Now(); behind(&s.backlogs, "aa") != 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d bytes are still counted of a watch that has ended", behind(&s.backlogs, "aa"))
		}
	}
}

// TestReaderOfLittle: what a watch does not select makes nobody slow.
func TestReaderOfLittle(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	w := watchEvents(t, s, in("aa", "default"), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("reason", "Short")})
	longEvents(t, s, "aa", 0, 100)
	short := event("default", "short")
	short.Reason = "Short"
	create(t, s.events, in("aa", "default"), short)
	if got, _ := next(t, w); got != "ADDED aa/default/short" {
		t.Errorf("it is told %s", got)
	}
}

// TestWatchesSayHowFarTheyAre, if they are asked to: by bookmarks, of what etcd serves as of what a cache does.
func TestWatchesSayHowFarTheyAre(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	longEvents(t, s, "aa", 0, 1)
	w := watchEvents(t, s, in("aa", "default"), &metainternalversion.ListOptions{AllowWatchBookmarks: true})
	silent := watchEvents(t, s, in("aa", "default"), &metainternalversion.ListOptions{})
	longEvents(t, s, "aa", 1, 2) // comes by etcd's stream: it tells no progress while a watch of the stream has not caught up
	for i := range 2 {
		for _, w := range []watch.Interface{w, silent} {
			if got, _ := next(t, w); got != fmt.Sprintf("ADDED aa/default/e%03d", i) {
				t.Fatalf("event %d is %s", i, got)
			}
		}
	}
	longEvents(t, s, "bb", 0, 1)
	// etcd tells by itself each minute. It drops a request while any watch of the stream has not caught up, so those who ask ask again.
	ask, patience := time.NewTicker(100*time.Millisecond), time.After(30*time.Second)
	defer ask.Stop()
	for told := false; !told; {
		select {
		case event := <-w.ResultChan():
			if event.Type != watch.Bookmark {
				t.Errorf("it is told %s %s", event.Type, describe(event.Object))
			}
			told = true
		case <-ask.C:
			if err := s.client.RequestProgress(clientv3.WithRequireLeader(t.Context())); err != nil {
				t.Fatal(err)
			}
		case <-patience:
			t.Fatal("it is told nothing")
		}
	}
	longEvents(t, s, "aa", 2, 3)
	if got, _ := next(t, silent); got != "ADDED aa/default/e002" {
		t.Errorf("who has not asked for bookmarks is told %s", got)
	}
}
