package server

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestInstancesTakeWhatTheyCount: what serves a definition, made for real, takes about what it counts for among those that are
// kept: neither what is short and becomes much is forgotten, nor what is there whatever is served.
func TestInstancesTakeWhatTheyCount(t *testing.T) {
	if !alone(t) {
		return
	}
	r := startServer(t, nil)
	c := r.custom(t, shop)
	read := func() int64 {
		for range 3 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	// heap is read when nobody works on anything any more: when it was alike for as long as that.
	heap := func(quiet time.Duration) int64 {
		bytes, since := read(), time.Now()
		for until := since.Add(quiet + time.Minute); time.Since(since) < quiet && time.Now().Before(until); {
			time.Sleep(100 * time.Millisecond)
			if now := read(); max(bytes-now, now-bytes) >= 64<<10 {
				bytes, since = now, time.Now()
			}
		}
		return bytes
	}
	rules := func(n int) string {
		each := make([]string, n)
		for i := range each {
			each[i] = fmt.Sprintf(`{"rule":"1<%d"}`, i+2)
		}
		return `,"x-kubernetes-validations":[` + strings.Join(each, ",") + `]`
	}
	shapes := []struct {
		name, schema string
		number       int
	}{
		{"first", "", 1}, // what all have together is made for it
		{"nothing", "", 20},
		{"expressions", rules(300), 2},
		{"schemas", `,"properties":{"spec":{"type":"object","allOf":` + nothings(10_000) + `}}`, 2},
		{"properties", `,"properties":{` + strings.Join(func() (all []string) {
			for i := range 3000 {
				all = append(all, fmt.Sprintf(`"p%d":{"type":"string","description":"%s"}`, i, strings.Repeat("what it is for ", 8)))
			}
			return all
		}(), ",") + `}`, 2},
		{"longexpressions", `,"x-kubernetes-validations":[` + strings.Join(func() (all []string) {
			for i := range 10 {
				all = append(all, fmt.Sprintf(`{"rule":"[%sself].size() > %d"}`, strings.Repeat("self,", 18_000), i))
			}
			return all
		}(), ",") + `]`, 2},
		{"expressionsonproperties", `,"properties":{` + strings.Join(func() (all []string) {
			for i := range 300 {
				all = append(all, fmt.Sprintf(`"p%d":{"type":"integer","x-kubernetes-validations":[{"rule":"self>%d"}]}`, i, i))
			}
			return all
		}(), ",") + `}`, 2},
	}
	plurals := map[string][]string{}
	for _, shape := range shapes {
		for i := range shape.number {
			plural := fmt.Sprintf("%s%d", shape.name, i)
			plurals[shape.name] = append(plurals[shape.name], plural)
			c.define(t, decode[apiextensionsv1.CustomResourceDefinition](t, definitionOf(plural, shape.schema, "},")))
		}
	}
	// For ten seconds the watch cache has what was written last, megabytes each, and its going would count against what is made meanwhile.
	heap(12 * time.Second)
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			before, counted := heap(100*time.Millisecond), r.Server.custom.InstanceBytes()
			for _, plural := range plurals[shape.name] {
				_, err := c.objects.Resource(widgetsV1.GroupVersion().WithResource(plural)).List(t.Context(), metav1.ListOptions{})
				must(t, err)
			}
			takes, counts := heap(100*time.Millisecond)-before, r.Server.custom.InstanceBytes()-counted
			n := int64(shape.number)
			t.Logf("each takes %d KiB, and counts for %d", takes/n>>10, counts/n>>10)
			if shape.name != "first" && (takes > 2*counts || counts > 4*takes) {
				t.Errorf("each takes %d bytes, and counts for %d", takes/n, counts/n)
			}
		})
	}
}
