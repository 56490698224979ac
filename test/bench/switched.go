package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	switchedMemoryRow = "memory, idle, with audit log and encryption at rest"
	switchedCreateRow = "CREATE with audit log and encryption at rest, against without"

	switchedWorkers = 32
	switchedCreates = 3000
	switchedRounds  = 7

	switchedHow = "an audit log of every request, with its metadata, and ConfigMaps and Secrets encrypted with AES-GCM"
)

// switchedOn is what costs something for every request when an operator switches it on, which the other rows leave off.
var switchedOn = Scenario{
	Name: "switched-on",
	Rows: []Row{{
		Name: switchedMemoryRow, Unit: "MB", Goal: atMost(250),
		How: switchedHow + ": RssAnon and RssFile as of memory, idle; a server that just started on an empty directory",
	}, {
		Name: switchedCreateRow,
		How:  switchedHow + ": ConfigMaps in one workspace, 32 at a time, alternating rounds against a server without either",
	}},
	Run: runSwitchedOn,
}

func runSwitchedOn(ctx context.Context, env *Env) error {
	flags, err := auditAndEncryption(env.TempDir())
	if err != nil {
		return err
	}
	with := env.StartAtoll(flags...)
	if env.Asked(switchedMemoryRow) {
		m, err := memory(ctx, env, with)
		if err != nil {
			return err
		}
		if err := env.Report(switchedMemoryRow, m.Total(), m.String(), nil); err != nil {
			return err
		}
	}
	if !env.Asked(switchedCreateRow) {
		return nil
	}
	n := env.N(switchedCreates, 50)
	cpu := map[*framework.Atoll][]float64{}
	creates := func(a *framework.Atoll) func(context.Context) (float64, error) {
		clients, created := a.Clients(), 0
		return func(ctx context.Context) (float64, error) { return createsWithCPU(ctx, a, clients, n, &created, cpu) }
	}
	without := env.StartAtoll()
	r, err := Compare(ctx, env.N(switchedRounds, 2), creates(with), creates(without))
	if err != nil {
		return err
	}
	detail := fmt.Sprintf("%s/s against %s/s; for each %s of a processor against %s",
		number(Median(r.A)), number(Median(r.B)), quantity(Median(cpu[with][1:]), "ms"), quantity(Median(cpu[without][1:]), "ms")) // without the uncounted round
	return env.Report(switchedCreateRow, Median(r.Ratios), detail, r.Samples("creates per second, with", "creates per second, without"))
}

// createsWithCPU creates n ConfigMaps, returns how many a second, and notes how many milliseconds of a processor the server took for each.
func createsWithCPU(ctx context.Context, a *framework.Atoll, clients *client.Clients, n int, created *int, cpu map[*framework.Atoll][]float64) (float64, error) {
	before, err := cpuTime(a.PID())
	if err != nil {
		return 0, err
	}
	first := *created
	*created += n
	_, all, err := Load(ctx, switchedWorkers, n, func(ctx context.Context, i int) error {
		return put(ctx, clients, "root", fmt.Sprintf("%s%06d", createdPrefix, first+i))
	})
	if err != nil {
		return 0, err
	}
	after, err := cpuTime(a.PID())
	if err != nil {
		return 0, err
	}
	cpu[a] = append(cpu[a], float64(after-before)/float64(time.Millisecond)/float64(n))
	return float64(n) / all.Seconds(), nil
}

// auditAndEncryption returns the flags that switch both on, whose files are in dir.
func auditAndEncryption(dir string) ([]string, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	policy, encryption := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "encryption.yaml")
	for file, text := range map[string]string{
		policy: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n",
		encryption: fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [configmaps, secrets]\n"+
			"  providers:\n  - aesgcm:\n      keys:\n      - {name: bench, secret: %s}\n  - identity: {}\n", base64.StdEncoding.EncodeToString(key)),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + filepath.Join(dir, "audit.log"), "--encryption-provider-config=" + encryption}, nil
}
