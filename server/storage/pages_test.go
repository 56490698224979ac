package storage

import (
	"fmt"
	"strings"
	"testing"
)

// TestNextPage: what is read at once is bounded by bytes, and small rows are still read in few pages.
func TestNextPage(t *testing.T) {
	const small, large = 300, 3 << 19
	for _, tc := range []struct {
		reason  string
		rows    func(i int) int64 // sizes
		n       int
		largest int64 // page, in bytes
		pages   int
	}{
		{"small rows", func(int) int64 { return small }, 10_000, maxPage * small, 160},
		{"rows of the largest size", func(int) int64 { return large }, 1000, firstPage * large, 251},
		{"small rows, then the largest: one page of them", func(i int) int64 {
			if i < 1024 {
				return small
			}
			return large
		}, 2000, maxPage * large, 300},
		{"small rows for long, then larger ones", func(i int) int64 {
			if i < 1024 {
				return small
			}
			return 200_000
		}, 2000, maxPage * 200_000, 100},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			var largest int64
			read, over := 0, 0
			for i, limit := 0, int64(firstPage); i < tc.n; read++ {
				var bytes, rows int64
				for ; rows < limit && i < tc.n; i, rows = i+1, rows+1 {
					bytes += tc.rows(i)
				}
				if largest = max(largest, bytes); bytes > 2*pageBytes {
					over++
				}
				limit = nextPage(limit, rows, bytes)
			}
			if largest > tc.largest || read > tc.pages || over > 1 {
				t.Errorf("%d pages, the largest of %d bytes, %d of more than %d; want at most %d, of %d bytes, 1", read, largest, over, 2*pageBytes, tc.pages, tc.largest)
			}
		})
	}
}

// TestPages: every row once, whatever the sizes; after a row, those behind it.
func TestPages(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	const n = 150
	var want []string
	for i := range n {
		size := 100
		if i%40 == 39 {
			size = 500_000
		}
		key := fmt.Sprintf("%s/pages/%03d", prefixOf(t), i)
		if _, err := etcd.Client.Put(t.Context(), key, strings.Repeat("v", size)); err != nil {
			t.Fatal(err)
		}
		want = append(want, key)
	}
	for _, from := range []int{0, 1, n - 1, n} {
		after := ""
		if from > 0 {
			after = want[from-1]
		}
		var got []string
		for p := s.pagesOf(prefixOf(t)+"/pages/", after); !p.done; {
			page, err := p.next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range page.Kvs {
				got = append(got, string(kv.Key))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want[from:]) {
			t.Errorf("after %d rows read %q, want %q", from, got, want[from:])
		}
	}
}
