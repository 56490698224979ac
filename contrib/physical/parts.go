package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// parts are the running components in the order of their start.
type parts struct {
	fail context.CancelCauseFunc // called with the first component that ends by itself
	all  []*part
}

type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{} // closed when run returned
}

// add runs a component until stop. The component ending before is a failure of the cluster.
func (p *parts) add(name string, run func(ctx context.Context) error) {
	// Not derived from the context of the start: the parts end in the order of stop, not all at once.
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.LoggerWithName(klog.Background(), name)))
	c := &part{name: name, cancel: cancel, done: make(chan struct{})}
	p.all = append(p.all, c)
	go func() {
		defer close(c.done)
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		p.fail(fmt.Errorf("%s: %w", name, err))
	}()
}

// stop stops the components, last started first, each after the one before has ended.
// It gives up on the first that does not end in stopTimeout: what remains goes with the process.
func (p *parts) stop(logger klog.Logger) error {
	for i := len(p.all) - 1; i >= 0; i-- {
		c := p.all[i]
		begin := time.Now()
		c.cancel()
		select {
		case <-c.done:
			logger.Info("Stopped", "component", c.name, "after", time.Since(begin).Round(time.Millisecond))
		case <-time.After(stopTimeout):
			return fmt.Errorf("%s did not stop in %s", c.name, stopTimeout)
		}
	}
	return nil
}
