package storage

import (
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// FuzzReady: a row of an import, which may be of a file that anybody wrote, is stored in the logical cluster that is imported into,
// below the prefix that it names, at the key that it names, and nowhere else, or is refused.
func FuzzReady(f *testing.F) {
	s := serve(f, prefixOf(f), nil)
	widget := `{"apiVersion":"shop.example/v1","kind":"Widget","metadata":{"name":"a","namespace":"default"}}`
	config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`
	for _, row := range []struct {
		prefix, key, value string
		custom             bool
	}{
		{"/configmaps", "default/a", config, false}, {"/configmaps", "default/b", config, false}, {"/configmaps", "default", config, false}, {"/configmaps", "../bankname/default/a", config, false},
		{"/configmaps/bankname", "default/a", config, false}, {"/configmaps/../secrets", "default/a", config, false}, {"configmaps", "default/a", config, false}, {"/configmaps/", "default/a", config, false},
		{"/shop.example/widgets", "default/a", widget, true}, {"/shop.example/widgets", "a", widget, true}, {"/shop.example/widgets/bankname", "default/a", widget, true}, {"/../widgets", "default/a", widget, true},
		{"/./widgets", "default/a", widget, true}, {"/shop.example/..", "default/a", widget, true}, {"/shop.example/.", "default/a", widget, true}, {"/shop.example/", "default/a", widget, true}, {"//shop.example", "default/a", widget, true},
		{"/.../widgets", "default/a", widget, true}, {"/a.b\x00/c", "default/a", widget, true}, {"/registry.example/..", "default/a", widget, true}, {"/nodeports", "30000", "x", false}, {"/nodeports", "../30000", "x", false}, {"/", "", "", false}, {"", "", "", true},
		{"/shop.example/widgets", "default/..", strings.Replace(widget, `"a"`, `".."`, 1), true}, {"/shop.example/widgets", "default/a", config, true},
	} {
		f.Add(row.prefix, row.key, []byte(row.value), row.custom)
	}
	const cluster = logicalcluster.Name("shopname")
	f.Fuzz(func(t *testing.T, prefix, key string, value []byte, custom bool) {
		ready, err := s.Ready(t.Context(), cluster, PlainRow{Prefix: prefix, Key: key, Custom: custom, Value: value}, []string{"nodeports"},
			func(schema.GroupResource, runtime.Object) error { return nil })
		if err != nil {
			return
		}
		if strings.Count(prefix, "/") < 1 || prefix[0] != '/' || strings.HasSuffix(prefix, "/") {
			t.Errorf("%q is taken as a prefix", prefix)
		}
		for _, op := range ready.ops {
			at, want := string(op.KeyBytes()), s.prefix+prefix+"/"+string(cluster)+"/"+key
			if !op.IsPut() || at != want && (!custom || at != customRecord(cluster, ready.Resource)) {
				t.Errorf("row %q of %q is written at %q, want %q", key, prefix, at, want)
			}
			if got, err := clusterOf(s.prefix+prefix, at); at == want && (err != nil || got != string(cluster)) {
				t.Errorf("row %q of %q is one of %q, %v", key, prefix, got, err)
			}
		}
	})
}
