package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// suiteName is how the suite calls itself; a spec's full name begins with it.
const suiteName = "Kubernetes e2e suite"

// passed is the state of a spec that passed. Every other one is ginkgo's word for why it did not.
const passed = "passed"

// absent is the state of a spec that the suite knows and did not come to, or does not know.
const absent = "absent"

// specTime is how long a spec may take on the peer to be among those that are run. What waits for a pod waits longer.
const specTime = 90 * time.Second

// result is how one spec ended.
type result struct {
	state   string
	took    time.Duration
	message string // of the failure, or of why it was skipped
}

// suite is Kubernetes' own end-to-end suite.
type suite struct {
	binary  string
	kubectl string // an executable, for specs that are about it
	seed    int64  // of the order of specs
	timeout time.Duration
}

// run runs specs, one after the other, on the API server that a kubeconfig names, and returns how those ended that it came
// to. Its log and report are in dir, which exists. The error is about the run as a whole: that specs failed is none.
func (s suite) run(ctx context.Context, kubeconfig, dir string, specs []string) (map[string]result, error) {
	report, log := filepath.Join(dir, "report.json"), filepath.Join(dir, "e2e.log")
	if err := os.RemoveAll(report); err != nil { // of a run before
		return nil, err
	}
	output, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer output.Close() // the child has its own
	cmd := exec.CommandContext(ctx, s.binary,
		"--kubeconfig="+kubeconfig, "--kubectl-path="+s.kubectl,
		// There are no nodes, and nothing to ask a cloud for.
		"--provider=skeleton", "--num-nodes=1", "--allowed-not-ready-nodes=-1", "--dump-logs-on-failure=false",
		"--ginkgo.seed="+strconv.FormatInt(s.seed, 10), "--ginkgo.timeout="+s.timeout.String(),
		"--ginkgo.v", "--ginkgo.no-color", "--ginkgo.silence-skips",
		"--ginkgo.json-report="+report, "--ginkgo.focus="+focus(specs))
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.Env = append(os.Environ(), "TMPDIR="+dir) // specs leave files behind
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

	// The signal for our death is sent when the thread ends that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runErr := cmd.Run()
	var exit *exec.ExitError
	if runErr != nil && (ctx.Err() != nil || !errors.As(runErr, &exit)) {
		return nil, fmt.Errorf("run %s: %w", s.binary, errors.Join(runErr, ctx.Err()))
	}
	data, err := os.ReadFile(report)
	if err != nil {
		return nil, fmt.Errorf("%s ended (%v) without a report: %w; the end of its log:\n%s", s.binary, runErr, err, tail(log))
	}
	results, err := parseReport(data)
	if err != nil {
		return nil, fmt.Errorf("%w; the end of %s:\n%s", err, log, tail(log))
	}
	return results, nil
}

// share runs specs as run does, dealt to so many processes at a time, since most of them wait; those that say [Serial] afterwards,
// in one.
func (s suite) share(ctx context.Context, kubeconfig, dir string, specs []string, processes int) (map[string]result, error) {
	hands, serial := deal(specs, processes)
	all, errs := make([]map[string]result, len(hands)), make([]error, len(hands))
	var wg sync.WaitGroup
	for i, hand := range hands {
		wg.Go(func() {
			own := filepath.Join(dir, strconv.Itoa(i))
			if errs[i] = os.Mkdir(own, 0o700); errs[i] == nil {
				all[i], errs[i] = s.run(ctx, kubeconfig, own, hand)
			}
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err == nil && len(serial) > 0 {
		var last map[string]result
		last, err = s.run(ctx, kubeconfig, dir, serial)
		all = append(all, last)
	}
	if err != nil {
		return nil, err
	}
	results := map[string]result{}
	for _, r := range all {
		maps.Copy(results, r)
	}
	return results, nil
}

// deal parts specs that may run beside others among n, neighbours apart since they wait for the same things, from those that may not.
func deal(specs []string, n int) (hands [][]string, serial []string) {
	hands = make([][]string, n)
	beside := 0
	for _, spec := range specs {
		if strings.Contains(spec, "[Serial]") {
			serial = append(serial, spec)
			continue
		}
		hands[beside%n] = append(hands[beside%n], spec)
		beside++
	}
	return hands[:min(n, beside)], serial
}

// each runs every spec in a process of its own, which ends after specTime, so many at a time, and returns how they ended.
// name is what the API server is called in messages.
func (s suite) each(t *testing.T, name, kubeconfig string, specs []string, workers int) map[string]result {
	s.timeout = specTime
	queue := make(chan string, len(specs))
	for _, spec := range specs {
		queue <- spec
	}
	close(queue)
	results := map[string]result{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		dir := t.TempDir()
		wg.Go(func() {
			for spec := range queue {
				all, err := s.run(t.Context(), kubeconfig, dir, []string{spec})
				if err != nil {
					t.Errorf("run %s alone: %v", spec, err)
				}
				mu.Lock()
				maps.Copy(results, all)
				mu.Unlock()
				t.Logf("%s, %s: %s", name, cmp.Or(all[spec].state, absent), spec)
			}
		})
	}
	wg.Wait()
	return results
}

// focus is a regular expression that matches the full names of specs.
func focus(specs []string) string {
	var quoted []string
	for _, s := range specs {
		quoted = append(quoted, regexp.QuoteMeta(s))
	}
	return "^" + suiteName + " (" + strings.Join(quoted, "|") + ")$"
}

// parseReport reads ginkgo's report. A failure outside of specs, as in what prepares the suite, is an error.
func parseReport(data []byte) (map[string]result, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText            string
			LeafNodeType            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("read a report of ginkgo: %w", err)
	}
	results := map[string]result{}
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			switch {
			case r.LeafNodeType != "It":
				if r.State != passed {
					return nil, fmt.Errorf("the suite's %s %s: %s", r.LeafNodeType, r.State, r.Failure.Message)
				}
			case r.State == "pending", r.State == "skipped" && r.Failure.Message == "":
				// not asked for, or not come to
			default:
				name := strings.Join(slices.Concat(r.ContainerHierarchyTexts, []string{r.LeafNodeText}), " ")
				results[name] = result{state: r.State, took: r.RunTime, message: r.Failure.Message}
			}
		}
	}
	return results, nil
}

// tail is the end of a log, or why there is none.
func tail(file string) string {
	const most = 4 << 10
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-most):])
}
