package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
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

// Figures are of the commit that the program was built of, which may be an older one than what is checked out.
func TestBuiltOf(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}, args...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	commit := func(file, tag string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(tag), 0o600); err != nil {
			t.Fatal(err)
		}
		git("add", "-A")
		git("commit", "-q", "-m", tag)
		git("tag", tag)
	}
	git("init", "-q")
	commit("main.go", "old")
	commit("main.go", "new")
	commit("docs/benchmarks.md", "figures")
	for name, tc := range map[string]struct{ reason, version, want string }{
		"Now":       {"it was just built", "figures", ""},
		"Documents": {"only documents are newer", "new", ""},
		"Described": {"git describes a commit by the tag before", "old-1-g$(git rev-parse --short new)", ""},
		"Old":       {"what is newer is not measured", "old", "is of commit old, and main.go differs from it"},
		"Dirty":     {"it was built of files that nobody has", "new-dirty", `is of no commit: its version is "new-dirty"`},
		"Unknown":   {"go build sets no version", "unknown", `by its version "unknown": git diff`},
		"Gone":      {"it does not run", "\nexit 1", "for its version: exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "atoll")
			if err := os.WriteFile(program, []byte("#!/bin/sh\ncd "+root+"\necho Atoll       "+tc.version+"\necho Kubernetes  v1.2.3\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := builtOf(t.Context(), root, program); (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: error %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
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
