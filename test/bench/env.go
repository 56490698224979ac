package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"atoll.dev/atoll/test/framework"
)

// Env is what a scenario works with. What it starts ends with the scenario.
type Env struct {
	// Quick asks for small numbers: see N.
	Quick bool
	// Workspaces is the number of workspaces of the rows that are about many.
	Workspaces int

	t      *tb
	report func(Result) error
	asked  map[string]bool
	// profiler looks at servers, nil if nobody does.
	profiler *profiler
}

// N is how much of something to do: full, or quick in a quick run.
func (e *Env) N(full, quick int) int {
	if e.Quick {
		return quick
	}
	return full
}

// StartAtoll starts a server in an empty directory with further flags of `atoll start`, and waits until it is ready.
func (e *Env) StartAtoll(args ...string) *framework.Atoll {
	a := framework.StartAtoll(e.t, args...)
	if e.profiler != nil {
		e.profiler.watch(a)
	}
	return a
}

// StartPhysical starts a physical cluster, and waits until it takes pods.
func (e *Env) StartPhysical(name string, opts ...framework.PhysicalOption) *framework.Physical {
	return framework.StartPhysical(e.t, name, append(opts, framework.PhysicalFullSpeed())...)
}

// TempDir returns an empty directory.
func (e *Env) TempDir() string { return e.t.TempDir() }

// Cleanup calls f at the end of the scenario, also of one that fails, before what was started earlier stops.
func (e *Env) Cleanup(f func()) { e.t.Cleanup(f) }

// Progress tells the person who waits what is going on.
func (e *Env) Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "    %s  %s\n", time.Now().UTC().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// Asked says whether any of these rows of the running scenario is asked for, so that it can leave out what is for others.
func (e *Env) Asked(rows ...string) bool {
	return slices.ContainsFunc(rows, func(row string) bool { return e.asked[row] })
}

// Report gives the figure of a row of the running scenario, in the row's unit, with the samples behind it by what they
// are ("ms of each request"). Detail may add to the figure what the reader should know: "p50 3 ms, p99 9 ms".
func (e *Env) Report(row string, figure float64, detail string, samples map[string][]float64) error {
	if math.IsNaN(figure) || math.IsInf(figure, 0) {
		return fmt.Errorf("row %q: the figure is %v", row, figure)
	}
	for _, values := range samples {
		for i, v := range values {
			values[i] = math.Round(v*1e4) / 1e4 // what is behind is noise
		}
	}
	return e.report(Result{Row: row, Figure: figure, Detail: detail, Samples: samples})
}

// Load calls do with 0 to n-1, from so many workers at a time, and returns how many milliseconds each call took, by its
// number, and how long all took together. It ends early at the first error, which it returns.
func Load(ctx context.Context, workers, n int, do func(ctx context.Context, i int) error) (ms []float64, all time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ms = make([]float64, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range min(workers, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				start := time.Now()
				if err := try(func() error { return do(ctx, i) }); err != nil {
					cancel(fmt.Errorf("number %d of %d: %w", i, n, err))
					return
				}
				ms[i] = Milliseconds(time.Since(start))
			}
		})
	}
	wg.Wait()
	return ms, time.Since(began), context.Cause(ctx)
}

// Milliseconds of a duration, with fractions.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Rounds holds what two things that are compared measured, and a/b of each round.
type Rounds struct{ A, B, Ratios []float64 }

// roundRatios names the samples that a figure is the median of, and that its verdict looks at.
const roundRatios = "ratio of each round"

// Samples of the rounds, for Report.
func (r Rounds) Samples(a, b string) map[string][]float64 {
	return map[string][]float64{a: r.A, b: r.B, roundRatios: r.Ratios}
}

// Compare measures a and b in alternating rounds, so that what else the machine does meets both: a b, b a, a b, ... One
// uncounted round of each comes before.
func Compare(ctx context.Context, rounds int, a, b func(ctx context.Context) (float64, error)) (Rounds, error) {
	var r Rounds
	for i := range rounds + 1 {
		var figures [2]float64
		for j := range 2 {
			which := (i + j) % 2
			var err error
			if figures[which], err = []func(context.Context) (float64, error){a, b}[which](ctx); err != nil {
				return r, fmt.Errorf("round %d: %w", i, err)
			}
		}
		if i == 0 {
			continue
		}
		r.A, r.B = append(r.A, figures[0]), append(r.B, figures[1])
		r.Ratios = append(r.Ratios, figures[0]/figures[1])
	}
	return r, nil
}
