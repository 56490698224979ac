package main

import (
	"context"
	"fmt"
	"os"
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

	howToUse     = "a POST of a Workspace, its Ready by a watch, and the 201 of a ConfigMap in its namespace default; "
	howMemory    = "RssAnon and RssFile after a forced collection, when the idle server has given back nothing more for 15 s; "
	howForgotten = "some minutes after the last write, when the watch caches have forgotten the events, and etcd its history, "
	fewer        = 10 // the fraction of all workspaces that memory is compared with
	usesInOrder  = 200
)

var many = Scenario{
	Name: "workspaces",
	Rows: []Row{
		{Name: memoryIdle, Unit: "MB", Goal: atMost(250), How: howMemory + "a server that just started on an empty directory"},
		{Name: memoryIdleAgain, Unit: "MB", Goal: atMost(250), How: howMemory + "the same directory"},
		{Name: workspacesRate, Unit: "/s", Goal: atLeast(500), How: "64 at a time, each from its POST to Ready, until there are all of --workspaces; without the first tenth"},
		{Name: memoryWorkspace, Unit: "KB", Goal: atMost(32), How: howForgotten + howMemory + "(with all workspaces - with a tenth) / (their number), live; the process with all of them was started with the tenth, and made the rest; wanted are 20 KB"},
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
	if env.Asked(memoryIdle, memoryIdleAgain) {
		idle, err := memory(ctx, env, a)
		if err != nil {
			return err
		}
		if err := env.Report(memoryIdle, idle.Total(), idle.String(), nil); err != nil {
			return err
		}
		idleAgain, err := memoryAfterRestart(ctx, env, a)
		if err != nil {
			return err
		}
		if err := env.Report(memoryIdleAgain, idleAgain.Total(), idleAgain.String(), nil); err != nil {
			return err
		}
	}

	few, err := makeWorkspaces(ctx, env, a, 0, env.Workspaces/fewer)
	if err != nil {
		return err
	}
	all, err := makeWorkspaces(ctx, env, a, env.Workspaces/fewer, env.Workspaces)
	if err != nil {
		return err
	}
	detail := fmt.Sprintf("p50 %s, p99 %s; for each %s of a processor in the server and %s in the benchmark, %s writes; %d times the server ended the watch; the first tenth %s/s",
		quantity(Median(all.ms), "ms"), quantity(Percentile(all.ms, 99), "ms"), quantity(all.serverMs, "ms"), quantity(all.benchMs, "ms"),
		number(all.writes), all.rewatched, number(few.rate))
	if err := env.Report(workspacesRate, all.rate, detail, map[string][]float64{"ms of each workspace": all.ms}); err != nil {
		return err
	}
	perWorkspace := func(row string, few, all Memory) error {
		kb := func(few, all float64) float64 {
			return (all - few) * 1000 / float64(env.Workspaces-env.Workspaces/fewer)
		}
		return env.Report(row, kb(few.Total(), all.Total()), fmt.Sprintf("RssAnon %s, RssFile %s; in all %s", quantity(kb(few.Anon, all.Anon), "KB"),
			quantity(kb(few.File, all.File), "KB"), all), nil)
	}
	if err := perWorkspace(memoryWorkspace, few.live, all.live); err != nil {
		return err
	}
	if err := perWorkspace(memoryWorkspaceRest, few.restarted, all.restarted); err != nil {
		return err
	}

	if env.Asked(startLoaded) {
		a.Stop()
		seconds, err := starts(ctx, env, func() *framework.Atoll { a.Restart(); return a })
		if err != nil {
			return err
		}
		if err := reportStarts(env, startLoaded, seconds); err != nil {
			return err
		}
		a.Restart()
	}
	if env.Asked(useP50, useP99, useBusyP99) {
		return measureUse(ctx, env, a)
	}
	return nil
}

// memoryAfterRestart restarts a server and returns what it holds then.
func memoryAfterRestart(ctx context.Context, env *Env, a *framework.Atoll) (Memory, error) {
	a.Restart()
	return memory(ctx, env, a)
}

// made is what making workspaces took.
type made struct {
	rate              float64   // workspaces per second
	ms                []float64 // of each
	serverMs, benchMs float64   // on a processor, per workspace
	writes            float64   // to the store, per workspace
	rewatched         int64     // times
	live, restarted   Memory    // of the server with them, in the process that made them and in the next
}

func makeWorkspaces(ctx context.Context, env *Env, a *framework.Atoll, from, to int) (m made, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("workspaces %d to %d: %w", from, to, err)
		}
	}()
	clients := a.Clients()
	watched, stop := context.WithCancel(ctx)
	defer stop()
	workspaces, err := NewWorkspaces(watched, env, clients)
	if err != nil {
		return m, err
	}
	usageBefore, err := usageOf(ctx, a, clients)
	if err != nil {
		return m, err
	}
	if _, m.ms, m.rate, err = workspaces.CreateMany(ctx, from, to); err != nil {
		return m, err
	}
	usageAfter, err := usageOf(ctx, a, clients)
	if err != nil {
		return m, err
	}
	stop()
	n := float64(to - from)
	m.serverMs = Milliseconds(usageAfter.server-usageBefore.server) / n
	m.benchMs = Milliseconds(usageAfter.bench-usageBefore.bench) / n
	m.writes = float64(usageAfter.revision-usageBefore.revision) / n
	m.rewatched = workspaces.Rewatched.Load()
	env.Progress("there are %d workspaces, made at %s/s", to, number(m.rate))
	if !env.Asked(memoryWorkspace, memoryWorkspaceRest) {
		return m, nil
	}
	if err := forgotten(ctx, env, a); err != nil {
		return m, err
	}
	if m.live, err = memory(ctx, env, a); err != nil {
		return m, err
	}
	if m.restarted, err = memoryAfterRestart(ctx, env, a); err != nil {
		return m, err
	}
	env.Progress("live %s; after a restart %s", m.live, m.restarted)
	return m, nil
}

// usage is what was used until now.
type usage struct {
	server, bench time.Duration // on a processor
	revision      int64         // of the store: the number of writes since it was made
}

func usageOf(ctx context.Context, a *framework.Atoll, clients *client.Clients) (u usage, err error) {
	if u.server, err = cpuTime(a.PID()); err != nil {
		return u, err
	}
	if u.bench, err = cpuTime(os.Getpid()); err != nil {
		return u, err
	}
	u.revision, err = revisionOf(ctx, clients)
	return u, err
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
		{Name: deleteMemory, Goal: atMost(1.2), How: howForgotten + "and its file, which was mostly free, is small, " + howMemory + "of the process that made and deleted all of --workspaces, against that before it made the first"},
	},
	Run: runDeletion,
}

func runDeletion(ctx context.Context, env *Env) error {
	a := env.StartAtoll()
	clients := a.Clients()
	before, err := memory(ctx, env, a)
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
	full, err := memory(ctx, env, a)
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
	deleted := time.Now()
	seconds := deleted.Sub(began).Seconds()
	if clustersAfter != clustersBefore {
		return fmt.Errorf("%d logical clusters are left, there were %d before", clustersAfter, clustersBefore)
	}
	if err := env.Report(deleteTime, seconds, quantity(float64(env.Workspaces)/seconds, "/s"), nil); err != nil {
		return err
	}
	fileBefore, err := storeFile(a)
	if err != nil {
		return err
	}
	if err := forgotten(ctx, env, a); err != nil {
		return err
	}
	fileAfter, err := gaveBack(ctx, env, a, fileBefore)
	if err != nil {
		return err
	}
	after, err := memory(ctx, env, a)
	if err != nil {
		return err
	}
	return env.Report(deleteMemory, after.Total()/before.Total(), fmt.Sprintf("before %s; with all %s; after %s, read %s after the deletion, which took %s; etcd's file %s, and before its deleted rows were forgotten %s",
		before, full, after, quantity(time.Since(deleted).Seconds(), "s"), quantity(seconds, "s"), quantity(float64(fileAfter)/1e6, "MB"), quantity(float64(fileBefore)/1e6, "MB")), nil)
}

func logicalClusters(ctx context.Context, clients *client.Clients) (int, error) {
	var list corev1alpha1.LogicalClusterList
	err := clients.Objects.List(client.Everywhere(ctx), &list)
	return len(list.Items), err
}
