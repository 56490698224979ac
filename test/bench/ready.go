package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"atoll.dev/atoll/test/host"
)

const (
	// quietLoad is how many processes may have run on each core over the last minute: with more, figures are of what else
	// the machine does. `make bench` itself builds before, so that there is something to wait for.
	quietLoad = 0.5
	// quietWait is how long to wait for that. The load of a build that has ended is below it after two minutes.
	quietWait = 5 * time.Minute
	loadEvery = 10 * time.Second
)

// ready says whether figures can be written that somebody will compare: the files must be those of a commit, and the
// machine must have nothing else to do, for which it waits.
func ready(ctx context.Context, root string) error {
	changed, err := host.Changed(root)
	if err != nil {
		return fmt.Errorf("find what differs from the commit: %w", err)
	}
	if len(changed) > 0 {
		return fmt.Errorf("the figures would be of no commit, since %s: commit that, or measure nevertheless with --force", summary(changed))
	}
	return awaitQuiet(ctx, func() (float64, error) {
		loads, err := host.Loads()
		return loads[0] / float64(runtime.NumCPU()), err
	})
}

// summary of files that differ from the commit.
func summary(changed []string) string {
	const shown = 3
	if n := len(changed); n > shown {
		return fmt.Sprintf("%s and %d more differ from it", strings.Join(changed[:shown], ", "), n-shown)
	}
	if len(changed) == 1 {
		return changed[0] + " differs from it"
	}
	return strings.Join(changed, ", ") + " differ from it"
}

// awaitQuiet waits until the load of the last minute, for each core, is at most quietLoad.
func awaitQuiet(ctx context.Context, load func() (float64, error)) error {
	began := time.Now()
	for told := false; ; {
		now, err := load()
		if err != nil {
			return fmt.Errorf("read the load: %w", err)
		}
		switch {
		case now <= quietLoad:
			return nil
		case time.Since(began) >= quietWait:
			return fmt.Errorf("the machine is busy with something else: after %s its load is still %.2f for each core, want %.2f at most: end that, or measure nevertheless with --force",
				quietWait, now, quietLoad)
		case !told:
			told = true
			fmt.Printf("wait up to %s for a load of %.2f for each core at most, it is %.2f (--force does not wait)\n", quietWait, quietLoad, now)
		}
		if err := pause(ctx, loadEvery); err != nil {
			return err
		}
	}
}
