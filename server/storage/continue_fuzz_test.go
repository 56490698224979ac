package storage

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
)

// FuzzContinue: whatever a client sends as a continue value, and wherever it says that the page starts, the page is of the request's
// logical cluster and namespace alone, and the next value names no logical cluster. One resource has a watch cache and rows alone,
// the other shared objects between its rows.
func FuzzContinue(f *testing.F) {
	s := serve(f, prefixOf(f), bootstrap)
	for _, cluster := range []string{"aa", "ab", "bb"} {
		for _, name := range []string{"a", "c", "e"} {
			create(f, s.clusterRoles, in(cluster), clusterRole(name, nil))
			put(f, s, cluster, name, "x")
			create(f, s.configMaps, in(cluster, "other"), configMap("other", name))
		}
	}
	for _, start := range []string{
		"", "/", "//", ".", "..", "../", "../bb", "../bb/", "/../bb/", "bb/", "../bb/default/", "../../clusterroles/bb/", "x/../../bb/", "./../bb/",
		"default/", "default/a", "default/a\x00", "other/", "a", "a\x00", "b-admin", "\x00", "\xff\xff", "~", "/registry/configmaps/bb/", "../aa/../bb/",
	} {
		for at := range uint8(3) {
			f.Add(start, at, uint8(1), "")
		}
	}
	for _, raw := range []string{"%%%", "e30", base64.RawURLEncoding.EncodeToString([]byte("bb")), base64.RawURLEncoding.EncodeToString([]byte(`{"v":"v2","rv":1,"start":"bb/"}`))} {
		f.Add("", uint8(0), uint8(0), raw)
	}
	f.Fuzz(func(t *testing.T, start string, at, limit uint8, raw string) {
		if raw == "" {
			// A revision that is still to come is waited for.
			token, err := json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": []int64{-1, 1, 0}[at%3], "start": start})
			if err != nil {
				t.Fatal(err)
			}
			raw = base64.RawURLEncoding.EncodeToString(token)
		}
		for what, of := range map[string]struct {
			store     *genericregistry.Store
			namespace []string
		}{
			"clusterroles": {s.clusterRoles, nil}, "configmaps": {s.configMaps, nil}, "configmaps of default": {s.configMaps, []string{"default"}},
		} {
			list, err := of.store.List(in("aa", of.namespace...), &metainternalversion.ListOptions{Continue: raw, Limit: int64(limit % 4)})
			if err != nil {
				continue
			}
			scope := strings.Join(append([]string{"aa"}, of.namespace...), "/") + "/"
			err = meta.EachListItem(list, func(obj runtime.Object) error {
				if got := describe(obj); !strings.HasPrefix(got, scope) {
					t.Errorf("%s: %q (start %q) leads to %s", what, raw, start, got)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			accessor, err := meta.ListAccessor(list)
			if err != nil {
				t.Fatal(err)
			}
			next, err := base64.RawURLEncoding.DecodeString(accessor.GetContinue())
			if err != nil || strings.Contains(string(next), "aa/") {
				t.Errorf("%s: after %q (start %q) comes %q, %v", what, raw, start, next, err)
			}
		}
	})
}
