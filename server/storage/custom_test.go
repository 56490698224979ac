package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// putRow writes a row as nobody in this process would.
func putRow(t *testing.T, key string) {
	t.Helper()
	if _, err := etcd.Client.Put(t.Context(), key, "{}"); err != nil {
		t.Fatal(err)
	}
}

// revisionOf is that of the last change of a row.
func revisionOf(t *testing.T, key string) int64 {
	t.Helper()
	got, err := etcd.Client.Get(t.Context(), key)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("read %s: %v, %v", key, got, err)
	}
	return got.Kvs[0].ModRevision
}

// TestDeleteClusterDataOfCustomResources: objects go whether they are on record, or only their definition is there as it is
// in data of before there were records; records go with them, and nothing of another logical cluster.
func TestDeleteClusterDataOfCustomResources(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	aa, aab, bb := logicalName("custom-aa"), logicalName("custom-aab"), logicalName("custom-bb")
	group := strings.ToLower(t.Name()) + ".example"
	for _, cluster := range []string{aa.String(), aab.String(), bb.String()} {
		// The definition of gadgets is gone, that of widgets is from before.
		if err := s.RecordCustom(t.Context(), logicalName(cluster), schema.GroupResource{Group: group, Resource: "gadgets"}); err != nil {
			t.Fatal(err)
		}
		putRow(t, fmt.Sprintf("%s/%s/gadgets/%s/default/g", prefixOf(t), group, cluster))
		putRow(t, fmt.Sprintf("%s/%s/widgets/%s/w", prefixOf(t), group, cluster))
		putRow(t, fmt.Sprintf("%s/apiextensions.k8s.io/customresourcedefinitions/%s/widgets.%s", prefixOf(t), cluster, group))
	}
	// Nobody has opened a store of definitions.
	if err := s.rememberPrefix("/apiextensions.k8s.io/customresourcedefinitions"); err != nil {
		t.Fatal(err)
	}
	rows := func() []string {
		return slices.Concat(rowsBelow(t, prefixOf(t)+"/"), rowsBelow(t, customKey+"custom-"))
	}
	want := slices.DeleteFunc(rows(), func(k string) bool { return strings.Contains(k, "/custom-aa/") })
	if err := s.DeleteClusterData(t.Context(), aa, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, rows()); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if len(want) != 8 {
		t.Errorf("%d rows of the other logical clusters, want 3 and a record of each: %v", len(want), want)
	}
	for cluster, want := range map[logicalcluster.Name]bool{aa: false, aab: true} {
		if got, err := s.HasRows(t.Context(), cluster, schema.GroupResource{Group: group, Resource: "gadgets"}); err != nil || got != want {
			t.Errorf("%s has rows: %v, %v; want %v", cluster, got, err, want)
		}
	}
	// A server that is late, when another definition of the name has put itself on record, forgets nothing.
	definition := fmt.Sprintf("%s/apiextensions.k8s.io/customresourcedefinitions/%s/gadgets.%s", prefixOf(t), bb, group)
	putRow(t, definition)
	before := revisionOf(t, definition)
	putRow(t, definition)
	forget := func(revision int64, want bool) {
		t.Helper()
		if got, err := s.ForgetCustom(t.Context(), bb, schema.GroupResource{Group: group, Resource: "gadgets"}, revision); err != nil || got != want {
			t.Errorf("forget it at %d: %v, %v; want %v", revision, got, err, want)
		}
	}
	forget(before, false)
	if left := rowsBelow(t, customKey+"custom-bb/"); len(left) != 1 {
		t.Errorf("on record: %v, want what the other definition recorded", left)
	}
	forget(revisionOf(t, definition), true)
	if left := rowsBelow(t, customKey+"custom-bb/"); len(left) != 0 {
		t.Errorf("on record: %v, want nothing", left)
	}
}

// ranged counts the requests that have to do with rows of definitions, within transactions, too.
type ranged struct {
	clientv3.KV
	asked atomic.Int32
}

func (r *ranged) note(ops ...clientv3.Op) {
	for _, op := range ops {
		if strings.Contains(string(op.KeyBytes()), "/customresourcedefinitions/") {
			r.asked.Add(1)
		}
	}
}

func (r *ranged) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	r.note(clientv3.OpGet(key, opts...))
	return r.KV.Get(ctx, key, opts...)
}

func (r *ranged) Txn(ctx context.Context) clientv3.Txn { return rangedTxn{r.KV.Txn(ctx), r} }

type rangedTxn struct {
	clientv3.Txn
	of *ranged
}

func (t rangedTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	return rangedTxn{t.Txn.If(conditions...), t.of}
}

func (t rangedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.of.note(ops...)
	return rangedTxn{t.Txn.Then(ops...), t.of}
}

func (t rangedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.of.note(ops...)
	return rangedTxn{t.Txn.Else(ops...), t.of}
}

// serveCounting serves, and counts what is asked about definitions.
func serveCounting(t *testing.T) (*served, *ranged) {
	t.Helper()
	ranges, client := &ranged{KV: etcd.Client.KV}, clientv3.NewCtxClient(etcd.Client.Ctx())
	client.Cluster, client.KV, client.Lease, client.Watcher = etcd.Client.Cluster, ranges, etcd.Client.Lease, etcd.Client.Watcher
	return serveOn(t, client, prefixOf(t), nil), ranges
}

// TestCustomResources: a logical cluster may have objects of what is on record and of what it defines, which who asks does not
// record.
func TestCustomResources(t *testing.T) {
	s, ranges := serveCounting(t)
	aa, aab := logicalName("custom-resources-aa"), logicalName("custom-resources-aab")
	group := strings.ToLower(t.Name()) + ".example"
	resource := func(name string) schema.GroupResource { return schema.GroupResource{Group: group, Resource: name} }
	for cluster, names := range map[logicalcluster.Name][]string{aa: {"gadgets", "widgets"}, aab: {"others"}} {
		for _, name := range names {
			if err := s.RecordCustom(t.Context(), cluster, resource(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"widgets", "things"} {
		putRow(t, fmt.Sprintf("%s/apiextensions.k8s.io/customresourcedefinitions/%s/%s", prefixOf(t), aa, resource(name)))
	}
	ranges.asked.Store(0)
	got, err := s.CustomResources(t.Context(), aa, []schema.GroupResource{resource("widgets"), resource("things")})
	if n := ranges.asked.Load(); n > 0 {
		t.Errorf("definitions are read %d times, which etcd copies whole", n)
	}
	if want := []schema.GroupResource{resource("gadgets"), resource("things"), resource("widgets")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if records := rowsBelow(t, customRecord(aa, resource(""))); len(records) != 2 {
		t.Errorf("on record: %v, want the two of before", records)
	}
}

// TestCountRows: those of one namespace of one logical cluster, whatever begins like it.
func TestCountRows(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	aa, aab, bb := logicalName("custom-aa"), logicalName("custom-aab"), logicalName("custom-bb")
	group := strings.ToLower(t.Name()) + ".example"
	for _, row := range []string{
		"gadgets/" + aa.String() + "/ns/a", "gadgets/" + aa.String() + "/ns/b", "gadgets/" + aa.String() + "/ns", "gadgets/" + aa.String() + "/ns2/c",
		"gadgets/" + aab.String() + "/ns/d", "gadgets/" + bb.String() + "/ns/e", "gadgetsets/" + aa.String() + "/ns/f",
	} {
		putRow(t, prefixOf(t)+"/"+group+"/"+row)
	}
	for namespace, want := range map[string]int64{"ns": 2, "ns2": 1, "n": 0} {
		if got, err := s.CountRows(t.Context(), aa, schema.GroupResource{Group: group, Resource: "gadgets"}, namespace); err != nil || got != want {
			t.Errorf("in %s: %d, %v; want %d", namespace, got, err, want)
		}
	}
}

// TestCountCustom: those of a namespace that are on record, or of a definition without record, of however many, and of no other
// logical cluster.
func TestCountCustom(t *testing.T) {
	s, ranges := serveCounting(t)
	aa, aab := logicalName("count-aa"), logicalName("count-aab")
	group := strings.ToLower(t.Name()) + ".example"
	for i := range maxOps { // more than a transaction has operations, with the others
		if err := s.RecordCustom(t.Context(), aa, schema.GroupResource{Group: group, Resource: fmt.Sprintf("empty%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, resource := range []string{"gadgets", "zeppelins"} {
		for _, cluster := range []logicalcluster.Name{aa, aab} {
			if err := s.RecordCustom(t.Context(), cluster, schema.GroupResource{Group: group, Resource: resource}); err != nil {
				t.Fatal(err)
			}
		}
	}
	putRow(t, fmt.Sprintf("%s/apiextensions.k8s.io/customresourcedefinitions/%s/unrecorded.%s", prefixOf(t), aa, group))
	for _, row := range []string{
		"gadgets/" + aa.String() + "/ns/a", "gadgets/" + aa.String() + "/ns/b", "gadgets/" + aa.String() + "/ns", "gadgets/" + aa.String() + "/ns2/c",
		"zeppelins/" + aab.String() + "/ns/d", "zeppelins/" + aa.String() + "/ns/e", "unrecorded/" + aa.String() + "/ns/f", "others/" + aa.String() + "/ns/g",
	} {
		putRow(t, prefixOf(t)+"/"+group+"/"+row)
	}
	of := func(resource string) schema.GroupResource {
		return schema.GroupResource{Group: group, Resource: resource}
	}
	for namespace, want := range map[string]map[schema.GroupResource]int64{
		"ns": {of("gadgets"): 2, of("zeppelins"): 1, of("unrecorded"): 1}, "ns2": {of("gadgets"): 1}, "n": {},
	} {
		got, err := s.CountCustom(t.Context(), aa, namespace, []schema.GroupResource{of("unrecorded"), of("gadgets")})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("in %s (-want +got), %v:\n%s", namespace, err, diff)
		}
	}
	if n := ranges.asked.Load(); n > 0 {
		t.Errorf("definitions are read %d times, which etcd copies whole", n)
	}
}

// TestDeleteManyCustomResourcesOfBefore: a definition without record goes before the last of its many objects, which go all
// the same, also if the server ends between.
func TestDeleteManyCustomResourcesOfBefore(t *testing.T) {
	const n = deleteBatch + 2*maxPage + 1
	for name, remove := range map[string]func(s *served) error{
		"all": func(s *served) error { return s.DeleteClusterData(t.Context(), "aa", nil) },
		"what is not held": func(s *served) error {
			held, err := s.DeleteUnheldData(t.Context(), "aa", waitForAll)
			if !held.Empty() {
				return fmt.Errorf("held: %+v", held)
			}
			return errors.Join(err, s.DeleteClusterData(t.Context(), "aa", nil))
		},
		"after a pass that was the last": func(s *served) error {
			ctx, end := context.WithCancel(t.Context())
			if err := s.DeleteClusterData(ctx, "aa", func(int64) { end() }); err == nil {
				return errors.New("there was one pass only")
			}
			return s.DeleteClusterData(t.Context(), "aa", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, prefixOf(t), nil)
			const group = "before.example"
			if err := s.rememberPrefix("/apiextensions.k8s.io/customresourcedefinitions"); err != nil {
				t.Fatal(err)
			}
			putRow(t, fmt.Sprintf("%s/apiextensions.k8s.io/customresourcedefinitions/aa/widgets.%s", prefixOf(t), group))
			var puts []clientv3.Op
			for i := range n {
				puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s/%s/widgets/aa/w%d", prefixOf(t), group, i), "{}"))
			}
			for some := range slices.Chunk(puts, maxOps) {
				if _, err := etcd.Client.Txn(t.Context()).Then(some...).Commit(); err != nil {
					t.Fatal(err)
				}
			}
			if err := remove(s); err != nil {
				t.Fatal(err)
			}
			if left := rowsBelow(t, prefixOf(t)+"/"); len(left) != 0 {
				t.Errorf("%d rows left, such as %s", len(left), left[0])
			}
			if left := rowsBelow(t, customKey+"aa/"); len(left) != 0 {
				t.Errorf("on record: %v, want nothing", left)
			}
		})
	}
}

// TestPrefixesOfBefore: prefixes of custom resources, which were remembered for ever, are forgotten at a start that finds no
// rows below them; those with rows, and what is built in, stay, and are not written again.
func TestPrefixesOfBefore(t *testing.T) {
	group := strings.ToLower(t.Name()) + ".example"
	old := []string{group + "/empty", group + "/full", "nodots" + strings.ToLower(t.Name()) + "/empty", group + "/three/parts"}
	for _, prefix := range old {
		putRow(t, prefixesKey+prefix)
		t.Cleanup(func() {
			if _, err := etcd.Client.Delete(context.Background(), prefixesKey+prefix); err != nil {
				t.Log(err)
			}
		})
	}
	row := prefixOf(t) + "/" + group + "/full/aa/x"
	putRow(t, row)
	remembered := func() []string {
		return slices.DeleteFunc(rowsBelow(t, prefixesKey), func(k string) bool { return !strings.Contains(k, strings.ToLower(t.Name())) })
	}
	s := serve(t, prefixOf(t), nil)
	// No row is below it, and no store of it open here: it is another version's.
	const elsewhere = "/workload.kcp.io/synctargets"
	if err := s.rememberPrefix(elsewhere); err != nil {
		t.Fatal(err)
	}
	written := revisionOf(t, prefixesKey+elsewhere[1:])
	if err := s.ForgetEmptyPrefixes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{prefixesKey + old[2], prefixesKey + old[1], prefixesKey + old[3]}, sorted(remembered())); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	if slices.Contains(s.knownPrefixes(), "/"+old[0]) || !slices.Contains(s.knownPrefixes(), "/"+old[1]) {
		t.Errorf("known: %v", s.knownPrefixes())
	}
	if err := s.DeleteClusterData(t.Context(), "aa", nil); err != nil {
		t.Fatal(err)
	}
	if got, err := etcd.Client.Get(t.Context(), row, clientv3.WithCountOnly()); err != nil || got.Count != 0 {
		t.Errorf("%d rows below a prefix of before, %v; want none", got.Count, err)
	}
	again := serve(t, prefixOf(t), nil)
	if err := again.ForgetEmptyPrefixes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := revisionOf(t, prefixesKey+elsewhere[1:]); now != written {
		t.Errorf("what is built in was forgotten or written again by a start: revision %d, before %d", now, written)
	}
	if got := remembered(); slices.Contains(got, prefixesKey+old[1]) {
		t.Errorf("remembered, with no rows left: %v", got)
	}
}

func sorted(s []string) []string { slices.Sort(s); return s }
