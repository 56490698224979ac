package main

import (
	"context"
	"fmt"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
)

// floorWorkers write at a time, and each value has this size: about a small ConfigMap as it is stored.
const (
	floorWorkers   = 32
	floorValueSize = 500
)

var etcdFloor = Scenario{
	Name: "etcd-floor",
	Rows: []Row{{
		Name: "the store alone: puts per second",
		Unit: "/s",
		How:  "the embedded etcd in this process, with the settings of the server: no API can create more objects a second. 32 writers, values of 500 bytes",
	}},
	Run: func(ctx context.Context, env *Env) error {
		etcd, err := embeddedetcd.Start(ctx, embeddedetcd.Options{Dir: env.TempDir()})
		if err != nil {
			return err
		}
		env.Cleanup(func() {
			if err := etcd.Stop(); err != nil {
				env.Progress("stop etcd: %v", err)
			}
		})
		value := string(make([]byte, floorValueSize))
		puts := env.N(20000, 500)
		ms, all, err := Load(ctx, floorWorkers, puts, func(ctx context.Context, i int) error {
			_, err := etcd.Client.Put(ctx, fmt.Sprintf("/bench/%06d", i), value)
			return err
		})
		if err != nil {
			return err
		}
		return env.Report("the store alone: puts per second", float64(puts)/all.Seconds(),
			fmt.Sprintf("p50 %s ms, p99 %s ms", number(Median(ms)), number(Percentile(ms, 99))),
			map[string][]float64{"ms of each put": ms})
	},
}
