package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"atoll.dev/atoll/test/framework"
)

const (
	startEmpty  = "start to ready, empty"
	startLoaded = "start to ready, with many workspaces"
	howToStart  = "from exec, of a server that was stopped, to /readyz (all caches are synced) and then the first 201 of an authenticated CREATE; the median of 10 runs"
)

var start = Scenario{
	Name: "start",
	Rows: []Row{{
		Name: startEmpty,
		Unit: "s",
		Goal: atMost(1),
		How:  "an empty directory each time, so certificates are made, too: " + howToStart,
	}},
	Run: func(ctx context.Context, env *Env) error {
		seconds, err := starts(ctx, env, func() *framework.Atoll { return env.StartAtoll() })
		if err != nil {
			return err
		}
		return reportStarts(env, startEmpty, seconds)
	},
}

// starts a server again and again, and returns how many seconds each start took. The server is stopped after each.
func starts(ctx context.Context, env *Env, start func() *framework.Atoll) ([]float64, error) {
	var seconds []float64
	for i := range env.N(10, 2) {
		began := time.Now()
		a := start()
		if err := put(ctx, a.Clients(), "root", fmt.Sprintf("start-%d", i)); err != nil {
			return nil, err
		}
		seconds = append(seconds, time.Since(began).Seconds())
		a.Stop()
	}
	return seconds, nil
}

func reportStarts(env *Env, row string, seconds []float64) error {
	return env.Report(row, Median(seconds), "maximum "+quantity(slices.Max(seconds), "s"), map[string][]float64{"s of each start": seconds})
}
