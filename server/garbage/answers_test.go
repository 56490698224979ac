package garbage

import (
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestAnswers: what etcd has said is good for what is older than the question, for a moment, and of one logical cluster.
func TestAnswers(t *testing.T) {
	a, noon := answers{}, time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	resources := []schema.GroupResource{{Group: "shop.example", Resource: "widgets"}}
	after := func(d time.Duration) time.Time { return noon.Add(d) }
	a.put("shop", 7, resources, noon)
	a.put("shop", 6, nil, noon) // which took longer
	for _, tc := range []struct {
		name     string
		cluster  logicalcluster.Name
		revision uint64
		at       time.Time
		want     bool
	}{
		{"older than the question", "shop", 6, noon, true},
		{"as old", "shop", 7, noon, true},
		{"newer", "shop", 8, noon, false},
		{"of another logical cluster", "bank", 6, noon, false},
		{"a moment later", "shop", 7, after(2*answered - 1), true},
		{"too late", "shop", 7, after(2 * answered), false},
	} {
		if got, ok := a.get(tc.cluster, tc.revision, tc.at); ok != tc.want || ok && len(got) != 1 {
			t.Errorf("%s: %v, %t; want %t", tc.name, got, ok, tc.want)
		}
	}
	if len(a.young)+len(a.old) != 0 {
		t.Errorf("kept: %v, %v", a.young, a.old)
	}
}
