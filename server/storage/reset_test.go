package storage

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/rbac"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// reset changes a shared role and deletes that. It returns the resourceVersion at which there is the shared one again.
func reset(t *testing.T, s *served, ctx context.Context, name string) string {
	t.Helper()
	out, err := updateRole(t, s, ctx, name, func(r *rbac.ClusterRole) { r.Rules = nil })
	if err != nil {
		t.Fatal(err)
	}
	deleted, below := &rbac.ClusterRole{}, s.clusterRoles.Storage.Storage
	if err := below.Delete(ctx, "/clusterroles/"+name, deleted, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	after := getRole(t, s, ctx, name).ResourceVersion
	if order, err := resourceversion.CompareResourceVersion(after, out.ResourceVersion); err != nil || order <= 0 {
		t.Fatalf("after resourceVersion %s there is %s (%v)", out.ResourceVersion, after, err)
	}
	if deleted.ResourceVersion != after || len(deleted.Rules) != 0 {
		t.Errorf("what was deleted is %v, want it at resourceVersion %s", deleted, after)
	}
	return after
}

// sharing is a later version, which shares some ClusterRoles with other rules, and a Role in another namespace.
func sharing(names ...string) func(*Config) {
	return func(c *Config) {
		bootstrap(c)
		c.Shared = func(gr schema.GroupResource) []runtime.Object {
			var objects []runtime.Object
			switch gr.Resource {
			case "clusterroles":
				for _, name := range names {
					r := clusterRole(name, map[string]string{"kind": "shared"})
					r.Rules[0].Verbs = []string{"list"}
					objects = append(objects, r)
				}
			case "roles":
				objects = append(objects, role("kube-public", "other"))
			}
			return objects
		}
	}
}

// wantRoles fails unless there are these ClusterRoles where somebody looks.
func wantRoles(t *testing.T, s *served, ctx context.Context, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), names(t, s.clusterRoles, ctx, nil)); diff != "" {
		t.Error(diff)
	}
}

// TestResetFollowsTheVersion: what was reset is what the server's version shares, at the resourceVersion of the reset.
func TestResetFollowsTheVersion(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	atReset := reset(t, s, in("aa"), "d-view")
	s.Destroy()
	s = serve(t, prefixOf(t), sharing("b-admin", "d-view"))
	if got := getRole(t, s, in("aa"), "d-view"); got.ResourceVersion != atReset || got.Rules[0].Verbs[0] != "list" {
		t.Errorf("what this version shares is %v, want it at resourceVersion %s", got, atReset)
	}
	wantRoles(t, s, in("aa"), "aa/b-admin", "aa/d-view")
	wantRoles(t, s, everywhere())
}

// codecOfClusterRoles is the one that knows nothing of the mark, as an earlier version of the server has it.
func codecOfClusterRoles(t *testing.T, mediaType string) runtime.Codec {
	t.Helper()
	gr := schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}
	config, err := storageFactory(t, prefixOf(t), mediaType).NewConfig(gr, &rbac.ClusterRole{})
	if err != nil {
		t.Fatal(err)
	}
	return config.Codec
}

// TestMarkForAnEarlierVersion: that reads a row with the mark as what was shared then, and whatever it writes there counts, though it be what it read.
func TestMarkForAnEarlierVersion(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	before := map[string]*rbac.ClusterRole{}
	for _, name := range []string{"b-admin", "d-view"} {
		before[name] = getRole(t, s, in("aa"), name)
		reset(t, s, in("aa"), name)
	}
	wantRoles(t, s, everywhere())
	all := startWatch(t, s.clusterRoles, everywhere(), &metainternalversion.ListOptions{})
	earlier := codecOfClusterRoles(t, runtime.ContentTypeProtobuf)
	for _, write := range []struct{ name, verb string }{{"b-admin", "watch"}, {"d-view", "get"}} {
		key := prefixOf(t) + "/clusterroles/aa/" + write.name
		got, err := etcd.Client.Get(t.Context(), key)
		if err != nil || len(got.Kvs) != 1 {
			t.Fatalf("%s: %v, %v", key, got, err)
		}
		row := &rbac.ClusterRole{}
		if _, _, err := earlier.Decode(got.Kvs[0].Value, nil, row); err != nil {
			t.Fatal(err)
		}
		shared := before[write.name].DeepCopy()
		shared.ResourceVersion, shared.Annotations = "", nil
		row.CreationTimestamp = shared.CreationTimestamp // as exact as what is stored
		if diff := cmp.Diff(shared, row); diff != "" {
			t.Errorf("an earlier version reads something else: %s", diff)
		}
		row.Rules[0].Verbs = []string{write.verb}
		data, err := runtime.Encode(earlier, row)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.Client.Put(t.Context(), key, string(data)); err != nil {
			t.Fatal(err)
		}
		wantEvents(t, all, "ADDED aa/"+write.name)
		if got := getRole(t, s, in("aa"), write.name); got.UID != shared.UID || got.Rules[0].Verbs[0] != write.verb {
			t.Errorf("what an earlier version made of %s is %v", write.name, got)
		}
	}
	wantRoles(t, s, everywhere(), "aa/b-admin", "aa/d-view")
	reset(t, s, in("aa"), "b-admin")
	wantEvents(t, all, "MODIFIED aa/b-admin", "DELETED aa/b-admin")
	wantRoles(t, s, everywhere(), "aa/d-view")
}

// TestMark: the codec writes and reads it, and leaves what it encodes as it was.
func TestMark(t *testing.T) {
	protobuf, json := codecOfClusterRoles(t, runtime.ContentTypeProtobuf), codecOfClusterRoles(t, runtime.ContentTypeJSON)
	codec := newClusterCodec(protobuf, true)
	row := clusterRole("a", nil)
	row.UID = "u"
	setCluster(row, "aa")
	plain, err := runtime.Encode(codec, row)
	if err != nil {
		t.Fatal(err)
	}
	if err := setReset(row); err != nil || !isReset(row) {
		t.Fatalf("marked is %v, %v", row, err)
	}
	for range 2 {
		data, err := runtime.Encode(codec, row)
		if err != nil || string(data) != string(plain)+resetMark || !isReset(row) {
			t.Fatalf("%v is written as %q, %v", row, data, err)
		}
		got, _, err := codec.Decode(data, nil, nil)
		if diff := cmp.Diff(runtime.Object(row), got); err != nil || diff != "" {
			t.Errorf("read back: %v, %s", err, diff)
		}
	}
	if got, _, err := codec.Decode(plain, nil, nil); err != nil || isReset(got) || got.(*rbac.ClusterRole).UID != "u" {
		t.Errorf("without the mark: %v, %v", got, err)
	}
	where := newClusterCodec(protobuf, false) // nothing is shared
	got, _, err := where.Decode([]byte(string(plain)+resetMark), nil, nil)
	if err != nil || isReset(got) || got.(*rbac.ClusterRole).UID != "u" {
		t.Errorf("where nothing is shared, the mark is read as %v, %v", got, err)
	}
	if data, err := runtime.Encode(where, row); err != nil || bytes.HasSuffix(data, []byte(resetMark)) {
		t.Errorf("where nothing is shared, a mark is written: %q, %v", data, err)
	}
	if value := "{}" + resetMark; isMarked(value) {
		t.Errorf("%q has the mark", value)
	}
	if err := canMark(protobuf, row); err != nil {
		t.Error(err)
	}
	if err := canMark(json, row); err == nil {
		t.Error("what is stored in JSON can have the mark")
	}
}

func isMarked(value string) bool {
	_, marked := cutMark([]byte(value))
	return marked
}

// TestResetIsEncrypted: the mark is of what is encrypted.
func TestResetIsEncrypted(t *testing.T) {
	encrypted := func(configure func(*Config)) func(*Config) {
		return func(c *Config) {
			configure(c)
			transformers, keys := &reloaded{}, keysOf(t, "k")
			transformers.transformer.Store(&keys)
			c.Transformers = transformers
		}
	}
	s := serve(t, prefixOf(t), encrypted(bootstrap))
	atReset := reset(t, s, in("aa"), "d-view")
	s.Destroy()
	s = serve(t, prefixOf(t), encrypted(sharing("d-view")))
	if got := getRole(t, s, in("aa"), "d-view"); got.ResourceVersion != atReset || got.Rules[0].Verbs[0] != "list" {
		t.Errorf("later there is %v, want what is shared then at resourceVersion %s", got, atReset)
	}
	wantRoles(t, s, everywhere())
	got, err := etcd.Client.Get(t.Context(), prefixOf(t)+"/clusterroles/aa/d-view")
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("there is %v, %v", got, err)
	}
	if value := got.Kvs[0].Value; !bytes.HasPrefix(value, []byte("k8s:enc:")) || bytes.HasSuffix(value, []byte(resetMark)) {
		t.Errorf("it is stored as %q", value)
	}
}

// TestResetOfWhatIsNotSharedAnyMore: who reset something gets nothing when there is no default any more, and can make his own.
func TestResetOfWhatIsNotSharedAnyMore(t *testing.T) {
	earlier := serve(t, prefixOf(t), bootstrap)
	for _, name := range []string{"b-admin", "d-view", "f-edit"} {
		reset(t, earlier, in("aa"), name)
	}
	s := serve(t, prefixOf(t), sharing("d-view"))
	rowsOnly := within(lc.Cluster{Name: "aa", Mirror: true})
	wantRoles(t, s, in("aa"), "aa/d-view")
	wantRoles(t, s, everywhere())
	wantRoles(t, s, rowsOnly)
	for _, ctx := range []context.Context{in("aa"), rowsOnly} {
		for _, rv := range []string{"", "0"} {
			if got, err := s.clusterRoles.Get(ctx, "f-edit", &metav1.GetOptions{ResourceVersion: rv}); !apierrors.IsNotFound(err) {
				t.Errorf("at resourceVersion %q there is %v, %v", rv, got, err)
			}
		}
		err := s.clusterRoles.Storage.Storage.Delete(ctx, "/clusterroles/f-edit", &rbac.ClusterRole{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		if !storage.IsNotFound(err) {
			t.Errorf("deleted: %v, want that there is none", err)
		}
		err = s.clusterRoles.Storage.Storage.GuaranteedUpdate(ctx, "/clusterroles/f-edit", &rbac.ClusterRole{}, false, nil,
			func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
				return input, nil, nil
			}, nil)
		if !storage.IsNotFound(err) {
			t.Errorf("updated: %v, want that there is none", err)
		}
	}

	w := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{})
	ofKind := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"kind": "shared"})})
	all := startWatch(t, s.clusterRoles, everywhere(), &metainternalversion.ListOptions{})
	wantEvents(t, w, "ADDED aa/d-view")
	wantEvents(t, ofKind, "ADDED aa/d-view")
	rewritten := prefixOf(t) + "/clusterroles/aa/b-admin"
	got, err := etcd.Client.Get(t.Context(), rewritten)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Client.Put(t.Context(), rewritten, string(got.Kvs[0].Value)); err != nil { // nobody is told
		t.Fatal(err)
	}
	// It is created anew, by POST and by PUT.
	own := create(t, s.clusterRoles, in("aa"), clusterRole("f-edit", map[string]string{"kind": "shared"}))
	if isReset(own) {
		t.Errorf("created with the mark: %v", own)
	}
	again, err := updateRole(t, s, in("aa"), "b-admin", func(r *rbac.ClusterRole) { r.Name, r.Labels = "b-admin", map[string]string{"kind": "shared"} })
	if err != nil || isReset(again) || len(again.Rules) > 0 {
		t.Errorf("created by an update: %v, %v", again, err)
	}
	wantEvents(t, w, "ADDED aa/f-edit", "ADDED aa/b-admin")
	wantEvents(t, ofKind, "ADDED aa/f-edit", "ADDED aa/b-admin")
	wantEvents(t, all, "ADDED aa/f-edit", "ADDED aa/b-admin")
	wantRoles(t, s, in("aa"), "aa/b-admin", "aa/d-view", "aa/f-edit")
	if _, err := s.clusterRoles.Create(in("aa"), clusterRole("f-edit", nil), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created once more: %v, want AlreadyExists", err)
	}

	// A server of the version that shares them may be beside this one still.
	w = startWatch(t, s.clusterRoles, in("bb"), &metainternalversion.ListOptions{})
	wantEvents(t, w, "ADDED bb/d-view")
	reset(t, earlier, in("bb"), "f-edit")
	wantEvents(t, w, "ADDED bb/f-edit", "DELETED bb/f-edit")
	wantEvents(t, all, "ADDED bb/f-edit", "DELETED bb/f-edit")
	inNamespace := startWatch(t, s.roles, in("bb", "kube-system"), &metainternalversion.ListOptions{})
	ctx := in("bb", "kube-system")
	if _, _, err := earlier.roles.Update(ctx, "leader", changed(func(r *rbac.Role) { r.Rules = nil }), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := earlier.roles.Delete(ctx, "leader", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, inNamespace, "ADDED bb/kube-system/leader", "DELETED bb/kube-system/leader")
}

// TestRowThatGoes, as when an earlier version deletes a shared object, or one is deleted in an etcd that is full: who selected what it said is
// told of that, and nobody of a mark.
func TestRowThatGoes(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	shared := getRole(t, s, in("aa"), "d-view")
	row, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.Rules, r.Labels["mine"] = nil, "yes" })
	if err != nil {
		t.Fatal(err)
	}
	mine := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"mine": "yes"})})
	ofOne := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "d-view")})
	wantEvents(t, mine, "ADDED aa/d-view")
	wantEvents(t, ofOne, "ADDED aa/d-view")
	remove := func() {
		t.Helper()
		if _, err := etcd.Client.Delete(t.Context(), prefixOf(t)+"/clusterroles/aa/d-view"); err != nil {
			t.Fatal(err)
		}
	}
	wantShared := func() {
		t.Helper()
		said, event := next(t, ofOne)
		got := roleOf(event)
		got.ResourceVersion = shared.ResourceVersion
		if diff := cmp.Diff(shared, got); said != "MODIFIED aa/d-view" || diff != "" {
			t.Errorf("%s, which is not what is shared: %s", said, diff)
		}
	}
	remove()
	said, event := next(t, mine)
	gone := roleOf(event)
	if order, err := resourceversion.CompareResourceVersion(gone.ResourceVersion, row.ResourceVersion); err != nil || order <= 0 {
		t.Errorf("gone at resourceVersion %s, %v; it was of %s", gone.ResourceVersion, err, row.ResourceVersion)
	}
	gone.ResourceVersion = row.ResourceVersion
	if diff := cmp.Diff(row, gone); said != "DELETED aa/d-view" || diff != "" {
		t.Errorf("%s, which is not what went: %s", said, diff)
	}
	wantShared()

	reset(t, s, in("aa"), "d-view")
	wantEvents(t, ofOne, "MODIFIED aa/d-view")
	wantShared()
	remove()
	wantShared()
}

// roleOf is a copy of the ClusterRole of an event.
func roleOf(event watch.Event) *rbac.ClusterRole {
	if cached, ok := event.Object.(runtime.CacheableObject); ok {
		return cached.GetObject().(*rbac.ClusterRole)
	}
	return event.Object.(*rbac.ClusterRole).DeepCopy()
}

// fullKV is an etcd that refuses what is put while it is full.
type fullKV struct {
	clientv3.KV
	is atomic.Bool
}

func (k *fullKV) Txn(ctx context.Context) clientv3.Txn { return &fullTxn{Txn: k.KV.Txn(ctx), kv: k} }

type fullTxn struct {
	clientv3.Txn
	kv   *fullKV
	puts bool
}

func (x *fullTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	x.Txn = x.Txn.If(conditions...)
	return x
}

func (x *fullTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	x.Txn, x.puts = x.Txn.Then(ops...), x.puts || slices.ContainsFunc(ops, clientv3.Op.IsPut)
	return x
}

func (x *fullTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	x.Txn, x.puts = x.Txn.Else(ops...), x.puts || slices.ContainsFunc(ops, clientv3.Op.IsPut)
	return x
}

func (x *fullTxn) Commit() (*clientv3.TxnResponse, error) {
	if x.kv.is.Load() && x.puts {
		return nil, rpctypes.ErrNoSpace
	}
	return x.Txn.Commit()
}

// TestResetInAFullEtcd: deletions go on in it, those of what every logical cluster has among them.
func TestResetInAFullEtcd(t *testing.T) {
	for name, limits := range map[string]Limits{"without limits": {}, "with limits": {Objects: 1000}} {
		t.Run(name, func(t *testing.T) {
			full := &fullKV{KV: etcd.Client.KV}
			client := clientv3.NewCtxClient(t.Context())
			client.Cluster, client.KV, client.Lease, client.Watcher = etcd.Client.Cluster, full, etcd.Client.Lease, etcd.Client.Watcher
			client.Auth, client.Maintenance = etcd.Client.Auth, etcd.Client.Maintenance
			s := serveOn(t, client, prefixOf(t), func(c *Config) {
				bootstrap(c)
				if limits != (Limits{}) {
					c.Limits = always(limits)
				}
			})
			ctx := as(in("aa"))
			shared := getRole(t, s, ctx, "d-view")
			marked := reset(t, s, ctx, "b-admin")
			empty := func(r *rbac.ClusterRole) { r.Rules = nil }
			for _, name := range []string{"d-view", "f-edit"} {
				if _, err := updateRole(t, s, ctx, name, empty); err != nil {
					t.Fatal(err)
				}
			}
			full.is.Store(true)
			if _, err := updateRole(t, s, ctx, "b-admin", empty); !isNoSpace(err) {
				t.Errorf("written to a full etcd: %v", err)
			}
			if err := deleteRole(t, s, ctx, "d-view", &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
				t.Errorf("delete with another UID: %v, want Conflict", err)
			}
			out, gone, err := s.clusterRoles.Delete(ctx, "d-view", rest.ValidateAllObjectFunc, metav1.NewPreconditionDeleteOptions(string(shared.UID)))
			if err != nil || !gone {
				t.Fatalf("delete: gone %v, error %v", gone, err)
			}
			if uid := out.(*metav1.Status).Details.UID; uid != "" {
				t.Errorf("the answer names UID %q", uid)
			}
			if diff := cmp.Diff(shared, getRole(t, s, ctx, "d-view")); diff != "" {
				t.Errorf("after it there is %s", diff)
			}
			// Somebody else deletes it at the same time.
			below := s.clusterRoles.Storage.Storage
			err = below.Delete(ctx, "/clusterroles/f-edit", &rbac.ClusterRole{}, nil, func(context.Context, runtime.Object) error {
				_, err := etcd.Client.Delete(t.Context(), prefixOf(t)+"/clusterroles/aa/f-edit")
				return err
			}, nil, storage.DeleteOptions{})
			if err != nil {
				t.Errorf("deleted by two: %v", err)
			}
			for _, name := range []string{"d-view", "b-admin"} { // there is nothing to do
				if err := deleteRole(t, s, ctx, name, &metav1.DeleteOptions{}); err != nil {
					t.Errorf("delete of %s once more: %v", name, err)
				}
			}
			if got := getRole(t, s, ctx, "b-admin").ResourceVersion; got != marked {
				t.Errorf("what was reset before is of resourceVersion %s, want %s", got, marked)
			}
			if diff := cmp.Diff([]string{"aa/b-admin"}, rows(t)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestResetRowIsWrittenAnew, as when the key of the encryption changes: who may write it is told of the resourceVersion, and nobody else of
// anything.
func TestResetRowIsWrittenAnew(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	reset(t, s, in("aa"), "d-view")
	w := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "d-view")})
	all := startWatch(t, s.clusterRoles, everywhere(), &metainternalversion.ListOptions{})
	wantEvents(t, w, "ADDED aa/d-view")
	key := prefixOf(t) + "/clusterroles/aa/d-view"
	got, err := etcd.Client.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Client.Put(t.Context(), key, string(got.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	said, event := next(t, w)
	if diff := cmp.Diff(getRole(t, s, in("aa"), "d-view"), event.Object); said != "MODIFIED aa/d-view" || diff != "" {
		t.Errorf("%s, which differs from what there is: %s", said, diff)
	}
	create(t, s.clusterRoles, in("aa"), clusterRole("own", nil))
	wantEvents(t, all, "ADDED aa/own")

	// One that cannot be read is not taken for anything.
	spoil(t, key)
	if got, err := s.clusterRoles.Get(in("aa"), "d-view", &metav1.GetOptions{}); err == nil {
		t.Errorf("there is %v", got)
	}
	below := s.clusterRoles.Storage.Storage
	if err := below.Delete(in("aa"), "/clusterroles/d-view", &rbac.ClusterRole{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err == nil {
		t.Error("it is deleted")
	}
}

// TestResetIsNotImported: an import has what is shared without a row, and the rest.
func TestResetIsNotImported(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	reset(t, s, in("aa"), "d-view")
	create(t, s.clusterRoles, in("aa"), clusterRole("own", nil))
	export, err := s.Export(t.Context(), "aa", nil)
	if err != nil {
		t.Fatal(err)
	}
	while := Row{Resource: schema.GroupResource{Resource: "configmaps"}, Cluster: "aa", Object: put(t, s, "aa", "while", "v")}
	err = export.Rows(t.Context(), func(row PlainRow) error {
		ready, err := s.Ready(t.Context(), "bb", row, nil, func(schema.GroupResource, runtime.Object) error { return nil })
		if err != nil {
			return err
		}
		if written, err := s.WriteReady(t.Context(), ready, while); err != nil || !written {
			t.Errorf("%s is written: %v, %v", row.Key, written, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"aa/d-view", "aa/own", "bb/own"}, rows(t)); diff != "" {
		t.Error(diff)
	}
	if got := getRole(t, s, in("bb"), "d-view"); got.ResourceVersion != "1" || len(got.Rules) != 1 {
		t.Errorf("there is %v", got)
	}
}

// TestMarkWhereNothingIsShared: a version that shares nothing of a resource has a row like others, and writes no mark.
func TestMarkWhereNothingIsShared(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	uid := getRole(t, s, in("aa"), "d-view").UID
	reset(t, s, in("aa"), "d-view")
	s.Destroy()
	s = serve(t, prefixOf(t), nil)
	wantRoles(t, s, everywhere(), "aa/d-view")
	if got := getRole(t, s, in("aa"), "d-view"); got.UID != uid {
		t.Errorf("there is %v, want it with the UID %q", got, uid)
	}
	if _, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.Rules[0].Verbs = []string{"watch"} }); err != nil {
		t.Fatal(err)
	}
	s.Destroy()
	s = serve(t, prefixOf(t), bootstrap)
	if got := getRole(t, s, in("aa"), "d-view"); got.UID != uid || got.Rules[0].Verbs[0] != "watch" {
		t.Errorf("what was written there is %v", got)
	}
}

// TestUIDsOfMemoryAreNotImported: a row that has one would be taken for something else.
func TestUIDsOfMemoryAreNotImported(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	codec := codecOfClusterRoles(t, runtime.ContentTypeProtobuf)
	for uid, refused := range map[types.UID]bool{"reset:u": true, fillerUID: true, unreadableUID: true, "u": false} {
		role := clusterRole("own", nil)
		role.UID = uid
		data, err := runtime.Encode(codec, role)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range []PlainRow{
			{Prefix: "/clusterroles", Key: "own", Value: data},
			{Prefix: "/example.com/widgets", Key: "own", Custom: true, Value: []byte(`{"metadata":{"name":"own","uid":"` + string(uid) + `"}}`)},
		} {
			_, err := s.Ready(t.Context(), "bb", row, nil, func(schema.GroupResource, runtime.Object) error { return nil })
			if got := err != nil && strings.Contains(err.Error(), "which no object has"); got != refused || err != nil && !refused {
				t.Errorf("%s with UID %q: %v", row.Prefix, uid, err)
			}
		}
	}
}

// TestPreconditionsOfWhatIsNotShared: they are of what a client sees.
func TestPreconditionsOfWhatIsNotShared(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	own := create(t, s.clusterRoles, in("aa"), clusterRole("own", nil))
	_, _, err := s.clusterRoles.Update(in("aa"), "own", ChangeOf("other", func(was runtime.Object) (runtime.Object, error) {
		changed := was.DeepCopyObject().(*rbac.ClusterRole)
		changed.Rules = nil
		return changed, nil
	}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if !apierrors.IsConflict(err) {
		t.Errorf("update with another UID: %v, want Conflict", err)
	}
	below := s.clusterRoles.Storage.Storage
	err = below.Delete(in("aa"), "/clusterroles/own", &rbac.ClusterRole{}, storage.NewUIDPreconditions("other"), storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	if !storage.IsInvalidObj(err) {
		t.Errorf("delete with another UID: %v, want that it is another", err)
	}
	if diff := cmp.Diff(own, getRole(t, s, in("aa"), "own")); diff != "" {
		t.Error(diff)
	}
}
