package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	memoryIdle          = "memory, idle"
	memoryIdleAgain     = "memory, idle, after a restart"
	memoryWorkspace     = "memory per workspace"
	memoryWorkspaceRest = "memory per workspace, after a restart"
	workspacesRate      = "workspaces created per second"
	useP50              = "from POST of a Workspace to use, p50"
	useP99              = "from POST of a Workspace to use, p99"
	useBusyP99          = "from POST of a Workspace to use, 16 at a time, p99"

	howToUse    = "a POST of a Workspace, its Ready by a watch, and the 201 of a ConfigMap in its namespace default; "
	howMemory   = "RssAnon and RssFile after forced collections, until they give back nothing more; "
	fewer       = 10 // the fraction of all workspaces that memory is compared with
	usesInOrder = 200
)

var many = Scenario{
	Name: "workspaces",
	Rows: []Row{
		{Name: memoryIdle, Unit: "MB", Goal: atMost(250), How: howMemory + "a server that just started on an empty directory"},
		{Name: memoryIdleAgain, Unit: "MB", Goal: atMost(250), How: howMemory + "the same directory"},
		{Name: workspacesRate, Unit: "/s", Goal: atLeast(500), How: "64 at a time, each from its POST to Ready, until there are all of --workspaces; without the first tenth"},
		{Name: memoryWorkspace, Unit: "KB", Goal: atMost(32), How: howMemory + "(with all workspaces - with a tenth) / (their number), in the process that made them; wanted are 20 KB"},
		{Name: memoryWorkspaceRest, Unit: "KB", Goal: atMost(32), How: howMemory + "the same, each number after a restart"},
		{Name: useP50, Unit: "ms", How: howToUse + "one after the other, with all of --workspaces there"},
		{Name: useP99, Unit: "ms", How: "as p50"},
		{Name: useBusyP99, Unit: "ms", How: howToUse + "16 at a time"},
		{Name: startLoaded, Unit: "s", Goal: atMost(2), How: "with all of --workspaces: " + howToStart},
	},
	Run: runMany,
}

func runMany(ctx context.Context, env *Env) error {
	a := env.StartAtoll()
	idle, err := memory(ctx, a)
	if err != nil {
		return err
	}
	if err := env.Report(memoryIdle, idle.Total(), idle.String(), nil); err != nil {
		return err
	}
	idleAgain, err := memoryAfterRestart(ctx, a)
	if err != nil {
		return err
	}
	if err := env.Report(memoryIdleAgain, idleAgain.Total(), idleAgain.String(), nil); err != nil {
		return err
	}

	few, all := env.Workspaces/fewer, env.Workspaces
	fewRate, fewLive, fewRestarted, _, err := measureWorkspaces(ctx, env, a, 0, few)
	if err != nil {
		return err
	}
	rate, live, restarted, ms, err := measureWorkspaces(ctx, env, a, few, all)
	if err != nil {
		return err
	}
	err = env.Report(workspacesRate, rate, fmt.Sprintf("p50 %s, p99 %s; the first tenth %s/s", quantity(Median(ms), "ms"), quantity(Percentile(ms, 99), "ms"), number(fewRate)),
		map[string][]float64{"ms of each workspace": ms})
	if err != nil {
		return err
	}
	perWorkspace := func(row string, few, all Memory) error {
		kb := func(few, all float64) float64 {
			return (all - few) * 1000 / float64(env.Workspaces-env.Workspaces/fewer)
		}
		return env.Report(row, kb(few.Total(), all.Total()), fmt.Sprintf("RssAnon %s, RssFile %s; in all %s", quantity(kb(few.Anon, all.Anon), "KB"),
			quantity(kb(few.File, all.File), "KB"), all), nil)
	}
	if err := perWorkspace(memoryWorkspace, fewLive, live); err != nil {
		return err
	}
	if err := perWorkspace(memoryWorkspaceRest, fewRestarted, restarted); err != nil {
		return err
	}

	a.Stop()
	seconds, err := starts(ctx, env, func() *framework.Atoll { a.Restart(); return a })
	if err != nil {
		return err
	}
	if err := reportStarts(env, startLoaded, seconds); err != nil {
		return err
	}

	a.Restart()
	return measureUse(ctx, env, a)
}

// memoryAfterRestart restarts a server and returns what it holds then.
func memoryAfterRestart(ctx context.Context, a *framework.Atoll) (Memory, error) {
	a.Restart()
	return memory(ctx, a)
}

// measureWorkspaces makes workspaces, and returns how many a second, the milliseconds of each, and the server's memory
// with them, before and after a restart.
func measureWorkspaces(ctx context.Context, env *Env, a *framework.Atoll, from, to int) (rate float64, live, restarted Memory, ms []float64, err error) {
	fail := func(err error) (float64, Memory, Memory, []float64, error) {
		return 0, Memory{}, Memory{}, nil, fmt.Errorf("workspaces %d to %d: %w", from, to, err)
	}
	watched, stop := context.WithCancel(ctx)
	defer stop()
	workspaces, err := NewWorkspaces(watched, env, a.Clients())
	if err != nil {
		return fail(err)
	}
	if _, ms, rate, err = workspaces.CreateMany(ctx, from, to); err != nil {
		return fail(err)
	}
	stop()
	env.Progress("there are %d workspaces", to)
	if live, err = memory(ctx, a); err != nil {
		return fail(err)
	}
	if restarted, err = memoryAfterRestart(ctx, a); err != nil {
		return fail(err)
	}
	env.Progress("live %s; after a restart %s", live, restarted)
	return rate, live, restarted, ms, nil
}

// measureUse makes further workspaces and uses each at once.
func measureUse(ctx context.Context, env *Env, a *framework.Atoll) error {
	clients := a.Clients()
	workspaces, err := NewWorkspaces(ctx, env, clients)
	if err != nil {
		return err
	}
	next := env.Workspaces
	use := func(workers, n int) ([]float64, error) {
		first := next
		next += n
		ms, _, err := Load(ctx, workers, n, func(ctx context.Context, i int) error {
			cluster, err := workspaces.Create(ctx, workspaceName(first+i))
			if err != nil {
				return err
			}
			return put(ctx, clients, cluster, "used")
		})
		return ms, err
	}
	ms, err := use(1, env.N(usesInOrder, 10))
	if err != nil {
		return err
	}
	samples := map[string][]float64{"ms of each workspace": ms}
	if err := env.Report(useP50, Median(ms), "", samples); err != nil {
		return err
	}
	if err := env.Report(useP99, Percentile(ms, 99), "maximum "+quantity(slices.Max(ms), "ms"), samples); err != nil {
		return err
	}
	if ms, err = use(16, env.N(2000, 20)); err != nil {
		return err
	}
	return env.Report(useBusyP99, Percentile(ms, 99), "p50 "+quantity(Median(ms), "ms"), map[string][]float64{"ms of each workspace": ms})
}

const (
	deleteTime   = "deletion of many workspaces"
	deleteMemory = "memory after the deletion against before"
)

var deletion = Scenario{
	Name: "deletion",
	Rows: []Row{
		{Name: deleteTime, Unit: "s", Goal: atMost(60), How: "all of --workspaces, 64 DELETEs at a time, until the last Workspace and every logical cluster of theirs is gone"},
		{Name: deleteMemory, Goal: atMost(1.2), How: howMemory + "of the process that made and deleted all of --workspaces, against that before it made the first"},
	},
	Run: runDeletion,
}

func runDeletion(ctx context.Context, env *Env) error {
	a := env.StartAtoll()
	clients := a.Clients()
	before, err := memory(ctx, a)
	if err != nil {
		return err
	}
	clustersBefore, err := logicalClusters(ctx, clients)
	if err != nil {
		return err
	}
	workspaces, err := NewWorkspaces(ctx, env, clients)
	if err != nil {
		return err
	}
	if _, _, _, err := workspaces.CreateMany(ctx, 0, env.Workspaces); err != nil {
		return err
	}
	full, err := memory(ctx, a)
	if err != nil {
		return err
	}
	env.Progress("there are %d workspaces: %s", env.Workspaces, full)
	began := time.Now()
	if err := workspaces.DeleteMany(ctx, 0, env.Workspaces); err != nil {
		return err
	}
	clustersAfter, err := logicalClusters(ctx, clients)
	if err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	if clustersAfter != clustersBefore {
		return fmt.Errorf("%d logical clusters are left, there were %d before", clustersAfter, clustersBefore)
	}
	if err := env.Report(deleteTime, seconds, quantity(float64(env.Workspaces)/seconds, "/s"), nil); err != nil {
		return err
	}
	after, err := memory(ctx, a)
	if err != nil {
		return err
	}
	return env.Report(deleteMemory, after.Total()/before.Total(), fmt.Sprintf("before %s; with all %s; after %s", before, full, after), nil)
}

func logicalClusters(ctx context.Context, clients *client.Clients) (int, error) {
	var list corev1alpha1.LogicalClusterList
	err := clients.Objects.List(client.Everywhere(ctx), &list)
	return len(list.Items), err
}
