package main

import (
	"context"
	"fmt"
	"os/exec"
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

// ready says whether figures can be written that somebody will compare: the files must be those of a commit, the program
// must be built of them, and the machine must have nothing else to do, for which it waits.
func ready(ctx context.Context, root, program string) error {
	changed, err := host.Changed(root)
	if err != nil {
		return fmt.Errorf("find what differs from the commit: %w", err)
	}
	if len(changed) > 0 {
		return fmt.Errorf("the figures would be of no commit, since %s: commit that, or measure nevertheless with --force", summary(changed))
	}
	if err := builtOf(ctx, root, program); err != nil {
		return fmt.Errorf("%w: run `make build`, or measure nevertheless with --force", err)
	}
	return awaitQuiet(ctx, func() (float64, error) {
		loads, err := host.Loads()
		return loads[0] / float64(runtime.NumCPU()), err
	})
}

// builtOf says whether an atoll program was built of the files that are there. Of which commit it was, it says itself; what
// commits since then changed of documents alone is not in it.
func builtOf(ctx context.Context, root, program string) error {
	out, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", program, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	version := strings.TrimSpace(strings.TrimPrefix(first, "Atoll"))
	if strings.HasSuffix(version, "-dirty") {
		return fmt.Errorf("%s is of no commit: its version is %q", program, version)
	}
	changed, err := host.ChangedSince(root, version)
	if err != nil {
		return fmt.Errorf("find the commit that %s is of, by its version %q: %w", program, version, err)
	}
	if len(changed) > 0 {
		return fmt.Errorf("%s is of commit %s, and %s", program, version, summary(changed))
	}
	return nil
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
