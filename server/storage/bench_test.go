package storage

import (
	"fmt"
	"sync/atomic"
	"testing"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
)

// BenchmarkCreate creates config maps in one logical cluster, with watchers in others: they should cost nothing.
func BenchmarkCreate(b *testing.B) {
	for _, watchers := range []int{0, 5000} {
		b.Run(fmt.Sprint(watchers, " foreign watchers"), func(b *testing.B) {
			s := serve(b, fmt.Sprintf("/bench-create-%d-%d", watchers, b.N), nil)
			for i := range watchers {
				w, err := s.configMaps.Watch(in(fmt.Sprintf("c%04d", i), "default"), &metainternalversion.ListOptions{ResourceVersion: "0"})
				if err != nil {
					b.Fatal(err)
				}
				defer w.Stop()
			}
			var n atomic.Int64
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					put(b, s, "own", fmt.Sprint("x", n.Add(1)), "v")
				}
			})
		})
	}
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
