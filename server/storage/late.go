//go:build late

package storage

import (
	"hash/fnv"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// With the build tag late each watch cache hears of everything a while after it happened. How long is chosen for each resource by
// ATOLL_LATE_SEED, any text, and stays: so which of two resources is seen first changes with the seed. What caches promise holds all
// the same: events and bookmarks come in their order, and a consistent list waits until the cache is as new as etcd. Who fails
// in such a build took what a cache has for what is so.

const (
	// latest is how late a cache is at most. It is longer than controllers, and tests that look every 100 ms, take to go on, and far
	// from the 3 s after which a cache refuses a consistent list.
	latest = 400 * time.Millisecond
	// lateRoom is how many events of a resource are held at most, enough for 10,000 a second; further ones wait in etcd's watch.
	lateRoom = 4096
)

// late returns a watch that delivers what live does, later. It stops live when it is stopped, and ends after it.
func late(live watch.Interface, resource schema.GroupResource) watch.Interface {
	by := lateBy(os.Getenv("ATOLL_LATE_SEED"), resource)
	held, result := make(chan heldEvent, lateRoom), make(chan watch.Event)
	w := watch.NewProxyWatcher(result)
	go func() {
		defer close(held)
		defer live.Stop()
		for {
			select {
			case event, ok := <-live.ResultChan():
				if !ok {
					return
				}
				select {
				case held <- heldEvent{event, time.Now().Add(by)}:
				case <-w.StopChan():
					return
				}
			case <-w.StopChan():
				return
			}
		}
	}()
	go func() {
		defer close(result)
		for h := range held {
			select {
			case <-time.After(time.Until(h.due)):
			case <-w.StopChan():
				return
			}
			select {
			case result <- h.event:
			case <-w.StopChan():
				return
			}
		}
	}()
	return w
}

// heldEvent is an event that is delivered when it is due.
type heldEvent struct {
	event watch.Event
	due   time.Time
}

// lateBy is how late a cache of a resource is: 0 to latest, in milliseconds.
func lateBy(seed string, resource schema.GroupResource) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(seed + " " + resource.String())) // never fails
	return time.Duration(h.Sum32()%uint32(latest/time.Millisecond+1)) * time.Millisecond
}
