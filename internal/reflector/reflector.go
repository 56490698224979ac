// Package reflector keeps what an informer holds up to date. It is client-go's Reflector, with another back-off than that of
// cache.Controller, which nobody can set: there each interruption within two minutes of the last one doubles the wait, up to a minute.
// Who restarts a server three times would wait for minutes before anything is seen again.
package reflector

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// firstRetry and lastRetry bound the wait before a list or watch is tried again; jitter adds up to that share of it. The
	// longest is 7.5 s: 500 syncers with 9 watches each ask a server that is away, or comes back, 700 times a second.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 5 * time.Second
	jitter     = 0.5
)

// Config says what is reflected. PageSize may be 0.
type Config struct {
	From cache.ListerWatcher
	// Example is an object of the type that From brings, as in cache.Config.
	Example any
	// Description of that type, for logs.
	Description string
	// PageSize of lists, in objects.
	PageSize int64
	Queue    cache.Queue
	// Process is called with what the queue holds, one after the other. It must not block.
	Process cache.PopProcessFunc
}

// Backoff is for a cache.Reflector.
func Backoff() *wait.Backoff {
	return &wait.Backoff{Duration: firstRetry, Cap: lastRetry, Factor: 2, Jitter: jitter, Steps: math.MaxInt32}
}

// ListOptions are those of a list that a Reflector asks for in pages. It names the resourceVersion it has, after a watch
// was told that this is too old; a list with a limit and a resourceVersion is one of that very moment, from where the next watch
// would be told the same, until the store has forgotten it. It means what came later as well.
func ListOptions(asked metav1.ListOptions) metav1.ListOptions {
	if asked.ResourceVersion != "" && asked.ResourceVersion != "0" && asked.ResourceVersionMatch == "" {
		asked.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	return asked
}

// Run lists and watches until ctx ends, and closes the queue.
func Run(ctx context.Context, c Config) {
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(c.From, c.Example, c.Queue, cache.ReflectorOptions{
		Logger:          &logger,
		TypeDescription: c.Description,
		Backoff:         Backoff(),
	})
	r.WatchListPageSize = c.PageSize
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.RunWithContext(ctx) })
	wg.Go(func() {
		<-ctx.Done()
		c.Queue.Close()
	})
	for {
		switch _, err := c.Queue.Pop(c.Process); {
		case errors.Is(err, cache.ErrFIFOClosed):
			return
		case err != nil:
			logger.Error(err, "Cannot take over a change", "type", c.Description)
		}
	}
}
