package storage

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// BenchmarkCreate creates config maps in one logical cluster, in turns without and with watchers in 5,000 others, which
// should cost nothing. The two halves of a round follow each other and change places every round, so that what else the
// machine does hits both; "ratio" is the median over all rounds of the rate with watchers to the rate without, and
// "cpu-ratio" the same of creates per second of this process's CPU time, which a busy machine disturbs less.
func BenchmarkCreate(b *testing.B) {
	const watchers, creates = 5000, 1000
	s := serve(b, fmt.Sprintf("/bench-create-%d", b.N), nil)
	var n atomic.Int64
	half := func(foreign int) (took, cpu time.Duration) {
		watches := make([]watch.Interface, foreign)
		for i := range watches {
			w, err := s.configMaps.Watch(in(fmt.Sprintf("c%04d", i), "default"), &metainternalversion.ListOptions{ResourceVersion: "0"})
			if err != nil {
				b.Fatal(err)
			}
			watches[i] = w
		}
		runtime.GC()
		b.StartTimer()
		begin, cpuBegin := time.Now(), cpuTime(b)
		var group sync.WaitGroup
		for range 2 * runtime.GOMAXPROCS(0) {
			group.Go(func() {
				for range creates / (2 * runtime.GOMAXPROCS(0)) {
					put(b, s, "own", fmt.Sprint("x", n.Add(1)), "v")
				}
			})
		}
		group.Wait()
		took, cpu = time.Since(begin), cpuTime(b)-cpuBegin
		b.StopTimer()
		for _, w := range watches {
			w.Stop()
		}
		return took, cpu
	}
	half(0)
	b.ResetTimer()
	var rates, cpus []float64
	for round := range b.N {
		var without, with, cpuWithout, cpuWith time.Duration
		if round%2 == 0 {
			without, cpuWithout = half(0)
			with, cpuWith = half(watchers)
		} else {
			with, cpuWith = half(watchers)
			without, cpuWithout = half(0)
		}
		rates = append(rates, without.Seconds()/with.Seconds())
		cpus = append(cpus, cpuWithout.Seconds()/cpuWith.Seconds())
	}
	for unit, ratios := range map[string][]float64{"ratio": rates, "cpu-ratio": cpus} {
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], unit)
		b.ReportMetric(ratios[len(ratios)/4], unit+"-p25")
		b.ReportMetric(ratios[len(ratios)*3/4], unit+"-p75")
	}
	b.ReportMetric(float64(2*creates*b.N)/b.Elapsed().Seconds(), "creates/s")
}

// BenchmarkRead reads one logical cluster of ten objects among 1,000 that have as many.
func BenchmarkRead(b *testing.B) {
	s := serve(b, fmt.Sprintf("/bench-read-%d", b.N), nil)
	for i := range 1000 {
		for j := range 10 {
			put(b, s, fmt.Sprintf("c%04d", i), fmt.Sprint("x", j), "v")
		}
	}
	ctx := in("c0007", "default")
	for name, rv := range map[string]string{"consistent": "", "cached": "0"} {
		b.Run("get "+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.configMaps.Get(ctx, "x3", &metav1.GetOptions{ResourceVersion: rv}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("list "+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.configMaps.List(ctx, &metainternalversion.ListOptions{ResourceVersion: rv}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// cpuTime is what this process has used of the CPUs, in user and system mode.
func cpuTime(b *testing.B) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// BenchmarkWatchStart starts watches in one logical cluster of ten objects, among 2,000 that have as many.
func BenchmarkWatchStart(b *testing.B) {
	s := serve(b, fmt.Sprintf("/bench-watch-%d", b.N), nil)
	for i := range 2000 {
		for j := range 10 {
			put(b, s, fmt.Sprintf("c%04d", i), fmt.Sprint("x", j), "v")
		}
	}
	names(b, s.configMaps, in("c0007"), nil)
	b.ResetTimer()
	for range b.N {
		w, err := s.configMaps.Watch(in("c0007", "default"), &metainternalversion.ListOptions{ResourceVersion: "0"})
		if err != nil {
			b.Fatal(err)
		}
		for range 10 {
			next(b, w)
		}
		w.Stop()
	}
}

// BenchmarkLimits creates, changes and deletes config maps of 1 KB, each without and with Limits in turns, so that what else the
// machine does hits both; "with" is as long as there is room. "asked" is the time of what the limits do by themselves.
func BenchmarkLimits(b *testing.B) {
	const n = 500
	limits := always(Limits{Objects: 100_000, Bytes: 256 << 20})
	backends := [2]*served{
		serve(b, fmt.Sprintf("/bench-limits-without-%d", b.N), nil),
		serve(b, fmt.Sprintf("/bench-limits-with-%d", b.N), func(c *Config) { c.Limits = limits }),
	}
	ctx := as(in("own", "default"))
	value := strings.Repeat("v", 1000)
	took := map[string]*[2]time.Duration{"create": {}, "update": {}, "delete": {}}
	timed := func(what string, do func(s *served, name string) error) {
		for i := range n {
			for turn := range 2 {
				which := (i + turn) % 2
				begin := time.Now()
				if err := do(backends[which], fmt.Sprint("x", i)); err != nil {
					b.Fatal(err)
				}
				took[what][which] += time.Since(begin)
			}
		}
	}
	for b.Loop() {
		timed("create", func(s *served, name string) error {
			return tryCreate(s.configMaps, ctx, configMap("default", name, value))
		})
		timed("update", func(s *served, name string) error { return trySet(s, ctx, name, value+name) })
		timed("delete", func(s *served, name string) error {
			_, _, err := s.configMaps.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
			return err
		})
	}
	for what, t := range took {
		b.ReportMetric(float64(t[0].Microseconds())/float64(n*b.N), what+"-without-µs")
		b.ReportMetric(float64(t[1].Microseconds())/float64(n*b.N), what+"-with-µs")
	}
	u, s := backends[1].usage, share{cluster: "own"}
	begin := time.Now()
	for range 100_000 {
		c, err := u.reserve(ctx, s, amount{1, 1000})
		if err != nil {
			b.Fatal(err)
		}
		u.settle(c, amount{1, 1000}, 0, amount{1, 1000}) // of before it was counted: adds nothing
	}
	b.ReportMetric(float64(time.Since(begin).Nanoseconds())/100_000, "asked-ns")
}

// BenchmarkPodsOfAMirror lists what a mirror shows, 1,000 of 20,000 pods in 200 workspaces, and changes a pod while none, 20 or 200 watch
// as mirrors do.
func BenchmarkPodsOfAMirror(b *testing.B) {
	const workspaces, mirrors, pods, label = 200, 20, 20_000, "mirror"
	s := serve(b, fmt.Sprintf("/bench-mirrors-%d", b.N), nil)
	var group sync.WaitGroup
	for worker := range 16 {
		group.Go(func() {
			for i := worker; i < pods; i += 16 {
				p := pod("default", fmt.Sprint("p", i))
				p.Labels = map[string]string{label: fmt.Sprint(i % mirrors)}
				if err := tryCreate(s.pods, in(fmt.Sprint("w", i%workspaces), "default"), p); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	of := func(mirror int) *metainternalversion.ListOptions {
		return &metainternalversion.ListOptions{ResourceVersion: "0", LabelSelector: labels.SelectorFromSet(labels.Set{label: fmt.Sprint(mirror)})}
	}
	b.Run("list", func(b *testing.B) {
		begin := cpuTime(b)
		for range b.N {
			listed, err := s.pods.List(everywhere(""), of(3))
			if err != nil || len(listed.(*api.PodList).Items) < 900 {
				b.Fatal(listed, err)
			}
		}
		b.ReportMetric(float64((cpuTime(b)-begin).Microseconds())/float64(b.N), "cpu-us/op")
	})
	for _, watching := range []int{0, mirrors, 10 * mirrors} {
		b.Run(fmt.Sprint("event/", watching), func(b *testing.B) {
			for mirror := range watching {
				options := of(mirror % mirrors)
				options.ResourceVersion = ""
				w, err := s.pods.Watch(everywhere(""), options)
				if err != nil {
					b.Fatal(err)
				}
				defer w.Stop()
				go func() {
					for range w.ResultChan() {
					}
				}()
			}
			begin := cpuTime(b)
			b.ResetTimer()
			for i := range b.N {
				_, _, err := s.pods.Update(in("w3", "default"), "p3", changed(func(p *api.Pod) { p.Labels["n"] = fmt.Sprintf("%d-%d", i, watching) }),
					rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpuTime(b)-begin).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}
