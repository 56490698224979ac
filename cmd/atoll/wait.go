package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/internal/cli"
)

// rewatchAfter is between two looks where no watch tells of changes, since it has ended, or may not be had.
const rewatchAfter = 500 * time.Millisecond

// awaited is an object that a command waits for.
type awaited struct {
	hub    *cli.Hub
	holder logicalcluster.Path
	list   ctrlclient.ObjectList // of its kind
	name   string
}

// until calls look, and again whenever the object may have changed, until it is done, fails or the time is up; then the error says what look saw last, if
// it saw something.
func (a awaited) until(ctx context.Context, timeout time.Duration, look func(context.Context) (done bool, seen string, err error)) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	changes, seen := a.changes(waiting), "the server has not answered"
	for {
		done, now, err := look(waiting)
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case waiting.Err() != nil: // a look that this interrupts sees nothing
			return fmt.Errorf("not within %s: %s", timeout, seen)
		case err != nil:
			return err
		case now != "":
			seen = now
		}
		select {
		case <-changes:
		case <-waiting.Done():
		}
	}
}

// changes tells when the object may have changed, until ctx ends.
func (a awaited) changes(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{}, 1) // several are one
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		watched, err := a.hub.Objects.Watch(cli.In(ctx, a.holder), a.list, ctrlclient.MatchingFields{metav1.ObjectNameField: a.name})
		if err == nil {
			unwatch := context.AfterFunc(ctx, watched.Stop)
			defer unwatch()
			for range watched.ResultChan() { // first of the object as it is
				tell()
			}
		}
		tell() // looks say what is wrong
	}, rewatchAfter)
	return changed
}
