package storage

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

func rowOf(cluster, resource string, obj runtime.Object) Row {
	return Row{Cluster: logicalName(cluster), Resource: schema.GroupResource{Resource: resource}, Object: obj}
}

func secretOf(name, password string) *api.Secret {
	return &api.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Type:       api.SecretTypeOpaque, Data: map[string][]byte{"password": []byte(password)},
	}
}

// rowsIn returns the keys in etcd below the prefix of a test, without it.
func rowsIn(t *testing.T, cluster string) (keys []string) {
	t.Helper()
	all, err := etcd.Client.Get(t.Context(), prefixOf(t)+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range all.Kvs {
		if key := strings.TrimPrefix(string(kv.Key), prefixOf(t)); strings.Contains(key, "/"+cluster+"/") {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestTogetherIsAsByItself: what is written together is, byte for byte, what each store writes by itself, and readers,
// caches and watchers find it at once in its logical cluster and in no other.
func TestTogetherIsAsByItself(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Transformers = oneKey{newEncryption(t)} })
	alone := create(t, s.configMaps, in("aa", "default"), configMap("default", "x", "1")).(*api.ConfigMap)
	aaWatch := startWatch(t, s.configMaps, in("aa", "default"), &metainternalversion.ListOptions{ResourceVersion: alone.ResourceVersion})
	bbWatch := startWatch(t, s.configMaps, in("bb"), &metainternalversion.ListOptions{})
	allWatch := startWatch(t, s.secrets, everywhere(), &metainternalversion.ListOptions{})

	same := alone.DeepCopy()
	same.ResourceVersion = ""
	same.Annotations = map[string]string{lc.Annotation: "aa"} // a lie, which is not believed
	written, err := s.WriteTogether(t.Context(),
		rowOf("bb", "configmaps", same),
		rowOf("bb", "secrets", secretOf("s", "hunter2")),
		rowOf("bb", "namespaces", &api.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	if !written || err != nil {
		t.Fatal(written, err)
	}
	if got, want := rowsIn(t, "bb"), []string{"/configmaps/bb/default/x", "/namespaces/bb/default", "/secrets/bb/default/s"}; !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
	raw := func(key string) []byte {
		got, err := etcd.Client.Get(t.Context(), prefixOf(t)+key)
		if err != nil || len(got.Kvs) != 1 {
			t.Fatal(got, err)
		}
		return got.Kvs[0].Value
	}
	if a, b := raw("/configmaps/aa/default/x"), raw("/configmaps/bb/default/x"); !bytes.Equal(a, b) {
		t.Errorf("alone the store writes\n%q, together\n%q", a, b)
	}
	if row := raw("/secrets/bb/default/s"); bytes.Contains(row, []byte("hunter2")) {
		t.Errorf("the row is not encrypted: %q", row)
	}

	wantEvents(t, bbWatch, "ADDED bb/default/x")
	wantEvents(t, allWatch, "ADDED bb/default/s")
	now, err := s.configMaps.Get(in("bb", "default"), "x", &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rv := now.(*api.ConfigMap).ResourceVersion
	for what, get := range map[string]func() (runtime.Object, error){
		"etcd": func() (runtime.Object, error) {
			return s.secrets.Get(in("bb", "default"), "s", &metav1.GetOptions{})
		},
		"the cache of secrets": func() (runtime.Object, error) {
			return s.secrets.Get(in("bb", "default"), "s", &metav1.GetOptions{ResourceVersion: rv})
		},
		"the cache of namespaces": func() (runtime.Object, error) {
			r, _ := s.Resource(schema.GroupResource{Resource: "namespaces"})
			out := r.New()
			return out, r.Storage.Get(in("bb"), r.Key("", "default"), storage.GetOptions{ResourceVersion: rv}, out)
		},
	} {
		obj, err := get()
		if err != nil || !strings.HasPrefix(describe(obj), "bb/") {
			t.Errorf("%s: %v, %v", what, obj, err)
			continue
		}
		if got := obj.(metav1.Object).GetResourceVersion(); got != rv {
			t.Errorf("%s: at %s, want %s, as all that was written together", what, got, rv)
		}
	}
	if got := names(t, s.configMaps, in("aa"), nil); !slices.Equal(got, []string{"aa/default/x"}) {
		t.Errorf("aa has %v", got)
	}
	// Whoever writes next writes on top of it, and watchers of aa see their own alone.
	if _, _, err := s.configMaps.Update(in("bb", "default"), "x", changed(func(cm *api.ConfigMap) { cm.Data["v"] = "2" }),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, bbWatch, "MODIFIED bb/default/x")
	put(t, s, "aa", "y", "3")
	wantEvents(t, aaWatch, "ADDED aa/default/y")
}

// TestTogetherIsAllOrNothing: nothing is written unless everything is as the objects say.
func TestTogetherIsAllOrNothing(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	there := put(t, s, "aa", "there", "1")
	old := put(t, s, "aa", "moved", "1")
	if _, _, err := s.configMaps.Update(in("aa", "default"), "moved", changed(func(cm *api.ConfigMap) { cm.Data["v"] = "2" }),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	never := there.DeepCopy()
	never.Name = "never"
	guard := func(cm *api.ConfigMap) Row {
		row := rowOf("aa", "configmaps", cm.DeepCopy())
		row.Guard = true
		return row
	}
	replaced := there.DeepCopy()
	replaced.Data["v"] = "replaced"
	for _, tc := range []struct {
		reason string
		row    Row
		want   bool
	}{
		{"a new object exists already", rowOf("aa", "configmaps", configMap("default", "there", "2")), false},
		{"one was changed since it was read", rowOf("aa", "configmaps", old.DeepCopy()), false},
		{"one is gone", rowOf("aa", "configmaps", never), false},
		{"what guards was changed", guard(old), false},
		{"what guards is gone", guard(never), false},
		{"what guards should be absent", guard(configMap("default", "there")), false},
		{"what guards is as it was", guard(there), true},
		{"it is of another logical cluster", rowOf("bb", "configmaps", configMap("default", "there", "2")), true},
		{"it is as it was read", rowOf("aa", "configmaps", replaced), true},
	} {
		name := strings.ReplaceAll(tc.reason, " ", "-")
		written, err := s.WriteTogether(t.Context(), rowOf("aa", "secrets", secretOf(name, "x")), tc.row)
		if written != tc.want || err != nil {
			t.Errorf("%s: written %v, %v", tc.reason, written, err)
		}
		if _, err := s.secrets.Get(in("aa", "default"), name, &metav1.GetOptions{}); (err == nil) != tc.want {
			t.Errorf("%s: the other object: %v", tc.reason, err)
		}
	}
	got, err := s.configMaps.Get(in("aa", "default"), "there", &metav1.GetOptions{})
	if err != nil || got.(*api.ConfigMap).Data["v"] != "replaced" {
		t.Errorf("%v, %v", got, err)
	}
}

// TestTogetherRefuses what would do harm.
func TestTogetherRefuses(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	for _, tc := range []struct {
		reason string
		rows   []Row
		want   string
	}{
		{"a watch cache that sees one of two at a revision misses the other", []Row{
			rowOf("aa", "configmaps", configMap("default", "a")), rowOf("bb", "configmaps", configMap("default", "a"))}, "two of them"},
		{"an unknown resource has no codec", []Row{rowOf("aa", "gadgets", configMap("default", "a"))}, "no store"},
		{"all logical clusters are none", []Row{rowOf("*", "configmaps", configMap("default", "a"))}, "logical cluster name"},
		{"a namespaced object without one would be of the cluster that its namespace names", []Row{
			rowOf("aa", "configmaps", configMap("", "a"))}, `the namespace ""`},
		{"a cluster-scoped object has none", []Row{
			rowOf("aa", "namespaces", &api.Namespace{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "c"}})}, `the namespace "b"`},
		{"an object without a name", []Row{rowOf("aa", "configmaps", configMap("default", ""))}, `the name ""`},
	} {
		written, err := s.WriteTogether(t.Context(), tc.rows...)
		if written || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: written %v, error %v, want one that says %q", tc.reason, written, err, tc.want)
		}
	}
	if rows := rowsIn(t, "aa"); len(rows) > 0 {
		t.Errorf("written all the same: %q", rows)
	}
}

// TestTogetherKeepsCachesWhole: caches that take many transactions over several resources end with all of it.
func TestTogetherKeepsCachesWhole(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	const n = 200
	for i := range n {
		cluster := "c" + string(rune('a'+i/26)) + string(rune('a'+i%26))
		written, err := s.WriteTogether(t.Context(), rowOf(cluster, "configmaps", configMap("default", "x")), rowOf(cluster, "secrets", secretOf("s", "x")))
		if !written || err != nil {
			t.Fatal(i, written, err)
		}
	}
	for what, list := range map[string]func() int{
		"configmaps": func() int { return len(names(t, s.configMaps, everywhere(), &metainternalversion.ListOptions{})) },
		"secrets":    func() int { return len(names(t, s.secrets, everywhere(), &metainternalversion.ListOptions{})) },
	} {
		if got := list(); got != n {
			t.Errorf("a consistent list has %d of %d %s", got, n, what)
		}
	}
}
