package admission

import (
	"fmt"
	"runtime"
	"testing"

	lc "github.com/kcp-dev/logicalcluster/v3"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/webhooks"
)

// BenchmarkInstances: what it takes to make the instance of a logical cluster, and what it keeps: with one webhook, with one policy
// of its own, and with one that others have the same of.
func BenchmarkInstances(b *testing.B) {
	for _, tc := range []struct {
		name string
		make func(*Configurations) *dynamic
		has  func(i int, cluster lc.Name) []kuberuntime.Object
	}{
		{"webhook", func(c *Configurations) *dynamic {
			return newValidatingWebhooks(Config{Configurations: c, Webhooks: webhooks.NewCaller(webhooks.Addresses{})}, newOwnCalls())
		}, func(_ int, cluster lc.Name) []kuberuntime.Object {
			return []kuberuntime.Object{webhookIn(cluster, "same", "https://webhook.invalid/")}
		}},
		{"policy", func(c *Configurations) *dynamic { return newValidatingPolicies(Config{Configurations: c}) }, func(i int, cluster lc.Name) []kuberuntime.Object {
			policy, binding := policyIn(cluster, "own", fmt.Sprintf("object.metadata.name != 'n%d'", i))
			return []kuberuntime.Object{policy, binding}
		}},
		{"equal policy", func(c *Configurations) *dynamic { return newValidatingPolicies(Config{Configurations: c}) }, func(_ int, cluster lc.Name) []kuberuntime.Object {
			policy, binding := policyIn(cluster, "same", "object.metadata.name != 'n'")
			return []kuberuntime.Object{policy, binding}
		}},
	} {
		b.Run(tc.name, func(b *testing.B) {
			configurations := NewConfigurations(nil)
			d := tc.make(configurations)
			const warm = 1 // what all have
			cluster := func(i int) lc.Name { return lc.Name(fmt.Sprint("cluster", i)) }
			for i := range b.N + warm {
				for j, object := range tc.has(i, cluster(i)) {
					if err := (&configurationStore{configurations, d.resources[j]}).Add(object); err != nil {
						b.Fatal(err)
					}
				}
			}
			one := func(i int) {
				d.fill(d.of(cluster(i), stamp{1}), logicalcluster.Cluster{Name: cluster(i)})
			}
			one(0)
			before := live()
			b.ResetTimer()
			for i := range b.N {
				one(i + warm)
			}
			b.StopTimer()
			b.ReportMetric(float64(live()-before)/float64(min(b.N, len(d.instances))), "B-kept/op")
			b.ReportMetric(float64(d.bytes)/float64(len(d.instances)), "B-estimated/op")
			runtime.KeepAlive(configurations)
		})
	}
}

func live() int64 {
	runtime.GC()
	runtime.GC() // what pools hold survives one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
