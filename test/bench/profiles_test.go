package main

import (
	"strings"
	"testing"
)

func TestAttribute(t *testing.T) {
	for name, c := range map[string]struct {
		functions   []string // the innermost first
		in, forWhom string
	}{
		"what the runtime does is of who called it": {
			[]string{"runtime.memmove", "compress/flate.(*deflateFast).encode", "k8s.io/apiserver/pkg/endpoints/handlers/responsewriters.x", "atoll.dev/atoll/server.(*Server).Run"},
			"compress/flate", "k8s.io/apiserver/pkg/endpoints/handlers/responsewriters",
		},
		"type parameters are no path": {
			[]string{"atoll.dev/atoll/internal/queue.(*Queue[go.shape.struct { atoll.dev/atoll/server/quota.cluster string }]).next"},
			"atoll.dev/atoll/internal/queue", "atoll.dev/atoll/internal/queue",
		},
		"memory that is made for a part": {
			[]string{"runtime.mallocgc", "internal/runtime/maps.(*Map).grow", "go.etcd.io/etcd/server/v3/storage/mvcc.(*treeIndex).Put"},
			"go.etcd.io/etcd/server/v3/storage/mvcc", "go.etcd.io/etcd/server/v3/storage/mvcc",
		},
		"a domain with dots":                  {[]string{"gopkg.in/yaml%2ev3.Unmarshal"}, "gopkg.in/yaml%2ev3", "nobody's request"},
		"who collects":                        {[]string{"runtime.scanobject", "runtime.gcDrain", "runtime.gcBgMarkWorker.func2"}, collector, collector},
		"who has to help with the collecting": {[]string{"runtime.gcDrainN", "runtime.gcAssistAlloc1", "runtime.mallocgc", "encoding/json.Marshal"}, collector, collector},
		"the runtime alone":                   {[]string{"runtime.futex", "runtime.findRunnable", "runtime.schedule", "runtime.mcall"}, "runtime", "nobody's request"},
	} {
		t.Run(name, func(t *testing.T) {
			if in, forWhom := attribute(c.functions); in != c.in || forWhom != c.forWhom {
				t.Errorf("in %q for %q, want in %q for %q", in, forWhom, c.in, c.forWhom)
			}
		})
	}
}

func TestGoMemory(t *testing.T) {
	const stats = `heap profile: 1: 2 [3: 4] @ heap/8192

# runtime.MemStats
# HeapAlloc = 40000000
# HeapIdle = 30000000
# HeapInuse = 60000000
# HeapReleased = 20000000
# Stack = 5000000 / 6000000
# MSpan = 1000000 / 2000000
# MCache = 1000 / 1000000
# BuckHashSys = 1000000
# GCSys = 3000000
# OtherSys = 1000000
# PauseNs = [1 2]
`
	const want = "Held: 40.0 MB of objects and garbage, 20.0 MB between them in pages that are in use, 10.0 MB of free pages, 6.00 MB of stacks, 8.00 MB for Go's own ends."
	if got := goMemory(stats); got != want {
		t.Errorf("goMemory: %q, want %q", got, want)
	}
}

// TestWithProfiles: rows keep what was seen of them last, in the order of the report; rows that are no more go.
func TestWithProfiles(t *testing.T) {
	order := []Row{{Name: "first"}, {Name: "second"}, {Name: "third"}}
	one := withProfiles("", []string{"## third\n\n3\n\n", "## first\n\n1\n\n| a |\n\n"}, order)
	two := withProfiles(one+"\n## gone\n\n9\n", []string{"## second\n\n2\n\n", "## third\n\n33\n\n"}, order)
	_, got, _ := strings.Cut(two, "its own run.\n")
	if want := "\n## first\n\n1\n\n| a |\n\n## second\n\n2\n\n## third\n\n33\n"; got != want || !strings.HasPrefix(two, "# Profiles\n") {
		t.Errorf("%q, want %q", got, want)
	}
	if again := withProfiles(two, nil, order); again != two {
		t.Errorf("with nothing new: %q", again)
	}
}
