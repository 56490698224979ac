package storage

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	api "k8s.io/kubernetes/pkg/apis/core"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
)

func rowsBelow(t testing.TB, prefix string) []string {
	t.Helper()
	got, err := etcd.Client.Get(context.Background(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{}
	for _, kv := range got.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// deletions are what a Deleted was told.
type deletions struct {
	told  []string
	there func() bool // what is to be gone by then
}

func (d *deletions) Deleted(cluster logicalcluster.Name, resource schema.GroupResource) {
	d.told = append(d.told, fmt.Sprint(cluster, " ", resource, " ", d.there()))
}

func (d *deletions) AllDeleted(cluster logicalcluster.Name) {
	d.told = append(d.told, fmt.Sprint(cluster, " ", d.there()))
}

// TestDeletionsAreTold: a deletion is told in its logical cluster, when the row is gone; one that is refused is not.
func TestDeletionsAreTold(t *testing.T) {
	told := &deletions{}
	s := serve(t, prefixOf(t), func(c *Config) { c.Deleted = told })
	told.there = func() bool { return len(rowsBelow(t, prefixOf(t)+"/configmaps/aa/")) > 0 }
	put(t, s, "aa", "x", "")
	for range 2 {
		_, _, err := s.configMaps.Delete(in("aa", "default"), "x", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	put(t, s, "aa", "y", "")
	if err := s.DeleteClusterData(t.Context(), "aa", nil); err != nil {
		t.Fatal(err)
	}
	if want := []string{"aa configmaps false", "aa false"}; !slices.Equal(told.told, want) {
		t.Errorf("told are %q, want %q: whether there are rows left", told.told, want)
	}
}

func TestDeleteClusterData(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	// Few enough that a watcher that is not reading yet has room for all their events: the cacher ends slow watchers.
	const n = 8
	for _, c := range []string{"aa", "aab", "bb"} {
		for i := range n {
			put(t, s, c, fmt.Sprint("x", i), "")
		}
		create(t, s.clusterRoles, in(c), clusterRole("r", nil))
		create(t, s.events, in(c, "default"), event("default", "e"))
		if _, _, err := s.Exclusive(in(c), "nodeports/30080", "default/web"); err != nil {
			t.Fatal(err)
		}
	}
	// A resource of an earlier run, whose store is not open in this one.
	if err := s.rememberPrefix("/example.com/widgets"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"aa", "bb"} {
		if _, err := etcd.Client.Put(t.Context(), prefixOf(t)+"/example.com/widgets/"+c+"/default/w", "{}"); err != nil {
			t.Fatal(err)
		}
	}
	s.Destroy()
	s = serve(t, prefixOf(t), nil)

	others := func() []string {
		return slices.DeleteFunc(rowsBelow(t, prefixOf(t)+"/"), func(k string) bool { return strings.Contains(k, "/aa/") })
	}
	before := others()
	w := startWatch(t, s.configMaps, in("aa"), &metainternalversion.ListOptions{})
	for range n {
		next(t, w)
	}
	var told []int64
	if err := s.DeleteClusterData(t.Context(), "aa", func(n int64) { told = append(told, n) }); err != nil {
		t.Fatal(err)
	}
	if got := slices.DeleteFunc(rowsBelow(t, prefixOf(t)+"/"), func(k string) bool { return !strings.Contains(k, "/aa/") }); len(got) != 0 {
		t.Errorf("left of aa: %v", got)
	}
	if diff := cmp.Diff(before, others()); diff != "" {
		t.Errorf("other clusters' rows: %s", diff)
	}
	if len(told) == 0 || told[len(told)-1] != n+4 {
		t.Errorf("progress %v, want %d at last", told, n+4)
	}
	for range n {
		if got, event := next(t, w); event.Type != watch.Deleted {
			t.Fatalf("event %s, want DELETED", got)
		}
	}
	if got := names(t, s.configMaps, in("aa"), nil); len(got) != 0 {
		t.Errorf("the cache has %v", got)
	}
	if err := s.DeleteClusterData(t.Context(), "aa", nil); err != nil {
		t.Errorf("again: %v", err)
	}
	for _, bad := range []string{"", "*", "aa/default", ".."} {
		if err := s.DeleteClusterData(t.Context(), logicalName(bad), nil); err == nil {
			t.Errorf("data of %q was deleted", bad)
		}
	}
}

func TestDeleteClusterDataKeeps(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	for _, c := range []string{"aa", "bb"} {
		put(t, s, c, "x", "")
		create(t, s.clusterRoles, in(c), clusterRole("r", nil))
		create(t, s.roles, in(c, "default"), role("default", "r"))
	}
	keep := []schema.GroupResource{{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}, {Resource: "configmaps"}}
	if err := s.DeleteClusterData(t.Context(), "aa", nil, keep...); err != nil {
		t.Fatal(err)
	}
	want := []string{"/clusterroles/aa/r", "/clusterroles/bb/r", "/configmaps/aa/default/x", "/configmaps/bb/default/x", "/roles/bb/default/r"}
	for i := range want {
		want[i] = prefixOf(t) + want[i]
	}
	if diff := cmp.Diff(want, rowsBelow(t, prefixOf(t)+"/")); diff != "" {
		t.Errorf("rows: %s", diff)
	}
	// What to keep is found by its store: one that is not open must stop everything, not be forgotten.
	err := s.DeleteClusterData(t.Context(), "aa", nil, schema.GroupResource{Group: "example.com", Resource: "widgets"})
	if err == nil || !strings.Contains(err.Error(), "widgets.example.com") || !strings.Contains(err.Error(), `"aa"`) {
		t.Errorf("keeping what is not served: %v", err)
	}
	if diff := cmp.Diff(want, rowsBelow(t, prefixOf(t)+"/")); diff != "" {
		t.Errorf("rows after the refusal: %s", diff)
	}
	if err := s.DeleteClusterData(t.Context(), "aa", nil); err != nil {
		t.Fatal(err)
	}
	if got := names(t, s.configMaps, everywhere(), nil); !slices.Equal(got, []string{"bb/default/x"}) {
		t.Errorf("at last there is %v", got)
	}
}

// TestDeleteClusterDataOfAnotherServersResources: servers that share an etcd open stores of custom resources when they are
// asked for them, so the one that deletes may never have heard of a resource.
func TestDeleteClusterDataOfAnotherServersResources(t *testing.T) {
	deletes, serves := serve(t, prefixOf(t), nil), serve(t, prefixOf(t), nil)
	if err := serves.rememberPrefix("/" + strings.ToLower(t.Name()) + "/widgets"); err != nil {
		t.Fatal(err)
	}
	row := prefixOf(t) + "/" + strings.ToLower(t.Name()) + "/widgets/aa/default/w"
	if _, err := etcd.Client.Put(t.Context(), row, "{}"); err != nil {
		t.Fatal(err)
	}
	if err := deletes.DeleteClusterData(t.Context(), "aa", nil); err != nil {
		t.Fatal(err)
	}
	if left := rowsBelow(t, prefixOf(t)+"/"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestDeleteClusterDataRacesWriters: rows that are written meanwhile, also of resources nobody knew before, are gone when
// it is called once more after the last write.
func TestDeleteClusterDataRacesWriters(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for i := range 100 {
				put(t, s, "aa", fmt.Sprintf("w%d-%d", w, i), "")
				if _, _, err := s.Exclusive(in("aa"), fmt.Sprintf("kind%d-%d/x", w, i%7), "v"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		if err := s.DeleteClusterData(t.Context(), "aa", nil); err != nil {
			t.Error(err)
		}
	}
	group.Wait()
	if err := s.DeleteClusterData(t.Context(), "aa", nil); err != nil {
		t.Fatal(err)
	}
	if left := rowsBelow(t, prefixOf(t)+"/"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if got := names(t, s.configMaps, in("aa"), nil); len(got) != 0 {
		t.Errorf("the cache has %v", got)
	}
}

func TestTransactions(t *testing.T) {
	for name, tc := range map[string]struct {
		rows [][]string
		most int
		want [][]string
	}{
		"nothing":                        {rows: [][]string{nil, {}}, most: 9},
		"one key of each resource":       {rows: [][]string{{"a1", "a2", "a3"}, {"b1"}, nil, {"c1", "c2"}}, most: 9, want: [][]string{{"a1", "b1", "c1"}, {"a2", "c2"}, {"a3"}}},
		"the limit ends after a whole":   {rows: [][]string{{"a1", "a2"}, {"b1", "b2"}}, most: 1, want: [][]string{{"a1", "b1"}}},
		"as many as the limit, no empty": {rows: [][]string{{"a1", "a2"}}, most: 2, want: [][]string{{"a1"}, {"a2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, transactions(tc.rows, tc.most)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDeleteClusterDataInBatches(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	const n = 2*deleteBatch + 7
	for chunk := range slices.Chunk(slices.Collect(func(yield func(int) bool) {
		for i := 0; i < n && yield(i); i++ {
		}
	}), 100) {
		var ops []clientv3.Op
		for _, i := range chunk {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/secrets/aa/default/s%06d", prefixOf(t), i), `{"apiVersion":"v1","kind":"Secret"}`))
		}
		if _, err := etcd.Client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	var told []int64
	if err := s.DeleteClusterData(t.Context(), "aa", func(n int64) { told = append(told, n) }); err != nil {
		t.Fatal(err)
	}
	if left := rowsBelow(t, prefixOf(t)+"/secrets/"); len(left) != 0 || len(told) != 3 || told[2] != n {
		t.Errorf("%d left, progress %v", len(left), told)
	}
}

func TestExclusive(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	take := func(cluster, value string) string {
		t.Helper()
		won, current, err := s.Exclusive(in(cluster), "nodeports/30080", value)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(won, " ", current)
	}
	for i, step := range []struct{ got, want, reason string }{
		{take("aa", "default/web"), "true default/web", "free"},
		{take("aa", "default/web"), "true default/web", "its own again, after a crash"},
		{take("aa", "default/db"), "false default/web", "taken"},
		{take("bb", "default/db"), "true default/db", "each cluster has its own"},
	} {
		if step.got != step.want {
			t.Errorf("step %d (%s): %s, want %s", i, step.reason, step.got, step.want)
		}
	}
	if released, err := s.Release(in("aa"), "nodeports/30080", "default/db"); err != nil || released {
		t.Errorf("released by who did not hold it: %v, %v", released, err)
	}
	if value, held, err := s.Holder(in("aa"), "nodeports/30080"); err != nil || !held || value != "default/web" {
		t.Errorf("aa's lock: %q, %v, %v", value, held, err)
	}
	if released, err := s.Release(in("aa"), "nodeports/30080", "default/web"); err != nil || !released {
		t.Errorf("not released: %v, %v", released, err)
	}
	if _, held, err := s.Holder(in("aa"), "nodeports/30080"); err != nil || held {
		t.Errorf("held after release: %v, %v", held, err)
	}
	if value, held, err := s.Holder(in("bb"), "nodeports/30080"); err != nil || !held || value != "default/db" {
		t.Errorf("bb's lock: %q, %v, %v", value, held, err)
	}
	for _, key := range []string{"nodeports", "/x", "nodeports/", "a/b/c"} {
		if _, _, err := s.Exclusive(in("aa"), key, "v"); err == nil {
			t.Errorf("key %q was accepted", key)
		}
	}
	for name, ctx := range map[string]context.Context{"no cluster": context.Background(), "wildcard": everywhere(), "bad cluster": in("a/b")} {
		if _, _, err := s.Exclusive(ctx, "nodeports/1", "v"); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// TestCompactedPositionIsGone: 410 tells clients to list again.
func TestCompactedPositionIsGone(t *testing.T) {
	own, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Stop() })
	s := serveOn(t, own.Client, "/registry", nil)
	create(t, s.events, in("aa", "default"), event("default", "e"))
	old := put(t, s, "aa", "x", "1").ResourceVersion
	_, token := "", ""
	put(t, s, "aa", "y", "1")
	_, token = page(t, s.configMaps, in("aa"), &metainternalversion.ListOptions{Limit: 1})
	last := put(t, s, "aa", "z", "1").ResourceVersion
	rv, err := s.configMaps.Storage.Versioner().ParseResourceVersion(last)
	if err != nil {
		t.Fatal(err)
	}
	s.Destroy()
	if _, err := own.Client.Compact(t.Context(), int64(rv)); err != nil {
		t.Fatal(err)
	}
	s = serveOn(t, own.Client, "/registry", nil)

	if _, err := s.configMaps.List(in("aa"), &metainternalversion.ListOptions{ResourceVersion: old, ResourceVersionMatch: "Exact"}); !apierrors.IsResourceExpired(err) {
		t.Errorf("list at a compacted position: %v, want Expired", err)
	}
	if _, err := s.configMaps.List(in("aa"), &metainternalversion.ListOptions{Limit: 1, Continue: token}); !apierrors.IsResourceExpired(err) {
		t.Errorf("continue at a compacted position: %v, want Expired", err)
	}
	for name, store := range map[string]func() (watch.Interface, error){
		"cached": func() (watch.Interface, error) {
			return s.configMaps.Watch(in("aa"), &metainternalversion.ListOptions{ResourceVersion: old})
		},
		"uncached": func() (watch.Interface, error) {
			return s.events.Watch(in("aa"), &metainternalversion.ListOptions{ResourceVersion: old})
		},
	} {
		w, err := store()
		if err != nil {
			t.Fatal(name, err)
		}
		select {
		case event := <-w.ResultChan():
			status, ok := event.Object.(*metav1.Status)
			if event.Type != watch.Error || !ok || status.Code != 410 {
				t.Errorf("%s watch from a compacted position: %v, want 410", name, event)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s watch from a compacted position: nothing", name)
		}
		w.Stop()
	}
	// A watch that says nothing about its position is not harmed.
	w := startWatch(t, s.configMaps, in("aa"), &metainternalversion.ListOptions{})
	wantEvents(t, w, "ADDED aa/default/x", "ADDED aa/default/y", "ADDED aa/default/z")
}

type oneKey struct{ transformer value.Transformer }

func (o oneKey) TransformerForResource(gr schema.GroupResource) value.Transformer {
	if gr.Resource == "secrets" {
		return o.transformer
	}
	return plain{}
}

// newEncryption encrypts with the same key each time.
func newEncryption(t *testing.T) value.Transformer {
	t.Helper()
	block, err := aes.NewCipher(bytes.Repeat([]byte("k"), 32))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := aestransformer.NewGCMTransformer(block)
	if err != nil {
		t.Fatal(err)
	}
	return gcm
}

// TestEncryption: values are encrypted as plain Kubernetes bytes with their full key, so a row copied to another cluster
// does not even decrypt.
func TestEncryption(t *testing.T) {
	gcm := newEncryption(t)
	encrypted := func(c *Config) { c.Transformers = oneKey{gcm} }
	s := serve(t, prefixOf(t), encrypted)
	secret := &api.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Type: api.SecretTypeOpaque, Data: map[string][]byte{"password": []byte("hunter2")}}
	create(t, s.secrets, in("aa", "default"), secret)
	key := prefixOf(t) + "/secrets/aa/default/s"
	raw, err := etcd.Client.Get(t.Context(), key)
	if err != nil || len(raw.Kvs) != 1 {
		t.Fatal(raw, err)
	}
	row := raw.Kvs[0].Value
	if bytes.Contains(row, []byte("hunter2")) || bytes.Contains(row, []byte("lc:")) {
		t.Errorf("the row shows its value: %q", row)
	}
	opened, _, err := gcm.TransformFromStorage(t.Context(), row, value.DefaultContext(key))
	if err != nil || !bytes.HasPrefix(opened, []byte("k8s\x00")) {
		t.Errorf("what was encrypted begins with %q, %v", opened[:min(4, len(opened))], err)
	}
	s.Destroy()
	s = serve(t, prefixOf(t), encrypted)
	got, err := s.secrets.Get(in("aa", "default"), "s", &metav1.GetOptions{ResourceVersion: "0"})
	if err != nil || string(got.(*api.Secret).Data["password"]) != "hunter2" {
		t.Errorf("read back %v, %v", got, err)
	}
	if _, err := etcd.Client.Put(t.Context(), prefixOf(t)+"/secrets/bb/default/s", string(row)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.secrets.Get(in("bb", "default"), "s", &metav1.GetOptions{}); err == nil {
		t.Errorf("a stolen row was read: %v", got)
	}
}

// TestRowsOfFormat1 reads rows as the first release wrote them. The bytes are never written anew: a binary that cannot
// read them cannot read what users have.
func TestRowsOfFormat1(t *testing.T) {
	for key, value := range format1 {
		if strings.HasPrefix(value, "hex:") {
			b, err := hex.DecodeString(value[4:])
			if err != nil {
				t.Fatal(err)
			}
			value = string(b)
		}
		if _, err := etcd.Client.Put(t.Context(), prefixOf(t)+key, value); err != nil {
			t.Fatal(err)
		}
	}
	s := serve(t, prefixOf(t), nil)
	got, err := s.configMaps.Get(in("1kqx0m2e9zj4s7ab", "default"), "settings", &metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	cm := got.(*api.ConfigMap)
	if describe(cm) != "1kqx0m2e9zj4s7ab/default/settings" || cm.Data["color"] != "green" || cm.UID != "d8d15553-fd61-4be0-8070-a170183d1610" {
		t.Errorf("read %+v", cm)
	}
	if diff := cmp.Diff([]string{"root/b"}, names(t, s.clusterRoles, in("root"), nil)); diff != "" {
		t.Error(diff)
	}
}

// format1 is what the first release stored: protobuf in hexadecimal, and JSON, which every release reads.
var format1 = map[string]string{
	"/configmaps/1kqx0m2e9zj4s7ab/default/settings": "hex:6b3873000a0f0a0276311209436f6e6669674d6170125d0a4b0a0873657474696e677312001a0764656661756c7422002a2464386431353535332d666436312d346265302d383037302d61313730313833643136313032003800420808c39a86d8061000120e0a05636f6c6f721205677265656e1a002200",
	"/clusterroles/root/b":                          `{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"b","uid":"0f9a0f5e-0c5f-4d8c-9b39-3a1f3d6f5a02","creationTimestamp":"2026-01-01T00:00:00Z"},"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]}`,
}
