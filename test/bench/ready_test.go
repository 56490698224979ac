package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAwaitQuiet(t *testing.T) {
	unread := errors.New("unread")
	for name, tc := range map[string]struct {
		reason string
		load   func(since time.Duration) (float64, error)
		took   time.Duration
		want   string // of the error
	}{
		"Quiet":  {"a quiet machine is measured at once", func(time.Duration) (float64, error) { return quietLoad, nil }, 0, ""},
		"Unread": {"a load that cannot be read is none", func(time.Duration) (float64, error) { return 0, unread }, 0, "unread"},
		"Busy":   {"a machine that stays busy is not measured", func(time.Duration) (float64, error) { return 0.51, nil }, quietWait, "--force"},
		"AfterBuild": {"a build before is waited for", func(since time.Duration) (float64, error) {
			return max(0, 1-since.Minutes()/2), nil
		}, time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := awaitQuiet(t.Context(), func() (float64, error) { return tc.load(time.Since(began)) })
				if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: error %v, want %q", tc.reason, err, tc.want)
				}
				if took := time.Since(began); took != tc.took {
					t.Errorf("%s: took %s, want %s", tc.reason, took, tc.took)
				}
			})
		})
	}
	t.Run("Interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := awaitQuiet(ctx, func() (float64, error) { return 1, nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("^C while it waits: %v", err)
		}
	})
}

func TestSummary(t *testing.T) {
	for want, changed := range map[string][]string{
		"go.mod differs from it":            {"go.mod"},
		"go.mod, go.sum differ from it":     {"go.mod", "go.sum"},
		"a, b, c and 2 more differ from it": {"a", "b", "c", "d", "e"},
	} {
		if got := summary(changed); got != want {
			t.Errorf("%v: %q, want %q", changed, got, want)
		}
	}
}
