package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"

	"atoll.dev/atoll/server/storage"
)

// annotations is a directory of logical clusters of which only those are known.
type annotations struct {
	Directory
	of map[logicalcluster.Name]map[string]string
}

func (a annotations) Annotation(name logicalcluster.Name, key string) string { return a.of[name][key] }

// TestLimitsOfItsOwn: each annotation sets the limit that it names, for its workspace alone; else the flags do.
func TestLimitsOfItsOwn(t *testing.T) {
	type limits struct {
		Storage              storage.Limits
		Watches, Definitions int
		DefinitionBytes      int64
	}
	flags := limits{storage.Limits{Objects: 10, Bytes: 20}, 30, 40, 50}
	s := &Server{options: &Options{MaxObjectsPerWorkspace: 10, MaxBytesPerWorkspace: 20, MaxWatchesPerWorkspace: 30, MaxDefinitionsPerWorkspace: 40, MaxDefinitionBytesPerWorkspace: 50}}
	for name, test := range map[string]struct {
		reason string
		own    map[string]string
		want   limits
	}{
		"none":             {want: flags},
		"objects":          {own: map[string]string{"limits.atoll.dev/objects": "1k"}, want: limits{storage.Limits{Objects: 1000, Bytes: 20}, 30, 40, 50}},
		"bytes":            {own: map[string]string{"limits.atoll.dev/bytes": "1Mi"}, want: limits{storage.Limits{Objects: 10, Bytes: 1 << 20}, 30, 40, 50}},
		"watches":          {own: map[string]string{"limits.atoll.dev/watches": "3"}, want: limits{storage.Limits{Objects: 10, Bytes: 20}, 3, 40, 50}},
		"definitions":      {own: map[string]string{"limits.atoll.dev/definitions": "4"}, want: limits{storage.Limits{Objects: 10, Bytes: 20}, 30, 4, 50}},
		"definition bytes": {own: map[string]string{"limits.atoll.dev/definition-bytes": "1Mi"}, want: limits{storage.Limits{Objects: 10, Bytes: 20}, 30, 40, 1 << 20}},
		"zeros": {reason: "no limit on what is stored, and no definitions", own: map[string]string{"limits.atoll.dev/objects": "0", "limits.atoll.dev/bytes": "0", "limits.atoll.dev/definitions": "0", "limits.atoll.dev/definition-bytes": "0"},
			want: limits{storage.Limits{}, 30, 0, 0}},
		"no numbers": {reason: "they came past admission", own: map[string]string{"limits.atoll.dev/objects": "many", "limits.atoll.dev/bytes": "-1", "limits.atoll.dev/watches": "0"}, want: flags},
	} {
		t.Run(name, func(t *testing.T) {
			s.directory = annotations{of: map[logicalcluster.Name]map[string]string{shop: test.own}}
			for cluster, want := range map[logicalcluster.Name]limits{shop: test.want, bank: flags} {
				definitions, bytes := s.definitionsLimit(cluster)
				got := limits{s.storageLimits(cluster), s.watchesLimit(cluster), definitions, bytes}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("of %s (-want +got): %s\n%s", cluster, test.reason, diff)
				}
			}
		})
	}
}
