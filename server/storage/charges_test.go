package storage

import (
	"context"
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// once demands that a row is there, and makes it after so many refusals.
type once struct {
	key            string
	refusals, seen int
	finally        error // instead
	with           int   // responses that it was told
}

func (o *once) demand(schema.GroupResource) (conditions []clientv3.Cmp, with, otherwise []clientv3.Op) {
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(o.key), ">", 0)}, tokenOf(o.key + "-with"), []clientv3.Op{clientv3.OpGet(o.key)}
}

func (o *once) done(with []*pb.ResponseOp) { o.with += len(with) }

func (o *once) refused(ctx context.Context, otherwise []*pb.ResponseOp) error {
	o.seen += len(otherwise)
	if o.refusals--; o.refusals > 0 {
		return nil
	}
	if o.finally != nil {
		return o.finally
	}
	_, err := etcd.Client.Put(ctx, o.key, "")
	return err
}

// TestBesideAWrite: what a request demands besides is in the transaction of the write, is asked again for when it does not hold, and is
// of no matter where the write is refused for itself, or puts nothing.
func TestBesideAWrite(t *testing.T) {
	prefix := prefixOf(t)
	never := errors.New("never")
	for name, test := range map[string]struct {
		once
		there            bool // the row already, as another one
		deletes          bool
		succeeded, tired bool
		err              error
		with, refused    int
	}{
		"at the first":            {once: once{refusals: 1}, succeeded: true, with: 2, refused: 1},
		"at the third":            {once: once{refusals: 3}, succeeded: true, with: 2, refused: 3},
		"never":                   {once: once{refusals: 2, finally: never}, err: never, refused: 2},
		"too often":               {once: once{refusals: 1000}, tired: true, refused: rewrites},
		"the row is another":      {once: once{refusals: 1}, there: true},
		"the row is to go":        {once: once{refusals: 1}, there: true, deletes: true, succeeded: true},
		"the row is gone already": {once: once{refusals: 1}, deletes: true},
	} {
		t.Run(name, func(t *testing.T) {
			row := prefix + "/rows/" + name
			test.key = prefix + "/demanded/" + name
			var revision int64
			if test.there {
				put, err := etcd.Client.Put(t.Context(), row, "before")
				if err != nil {
					t.Fatal(err)
				}
				revision = put.Header.Revision
			}
			o := test.once
			kv := &besideKV{KV: etcd.Client}
			txn := kv.Txn(context.WithValue(t.Context(), besideKey{}, beside(&o)))
			if test.deletes {
				txn = txn.If(clientv3.Compare(clientv3.ModRevision(row), "=", max(revision, 1))).Then(clientv3.OpDelete(row))
			} else {
				txn = txn.If(clientv3.Compare(clientv3.ModRevision(row), "=", 0)).Then(clientv3.OpPut(row, "after"))
			}
			got, err := txn.Else(clientv3.OpGet(row)).Commit()
			if !test.tired && !errors.Is(err, test.err) || apierrors.IsTooManyRequests(err) != test.tired {
				t.Fatalf("%v, want %v, too often %v", err, test.err, test.tired)
			}
			if o.with != test.with || o.seen != test.refused {
				t.Errorf("told of %d responses and %d refusals, want %d and %d", o.with, o.seen, test.with, test.refused)
			}
			if err != nil {
				return
			}
			if got.Succeeded != test.succeeded || len(got.Responses) != 1 || got.Header.Revision < revision {
				t.Errorf("answer %v, want one response, succeeded %v", got, test.succeeded)
			}
		})
	}
}

// TestDeleteClusterDataOfCharges: nothing is left of a logical cluster beside its rows, and of others everything.
func TestDeleteClusterDataOfCharges(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	keys := func(cluster string) []string {
		return []string{chargesKey + s.prefix + "/" + cluster + "/ns/q", limitsKey + s.prefix + "/" + cluster + "/ns/q"}
	}
	for _, cluster := range []string{"shop", "shop2"} {
		for _, key := range keys(cluster) {
			if _, err := etcd.Client.Put(t.Context(), key, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.DeleteClusterData(t.Context(), "shop", nil); err != nil {
		t.Fatal(err)
	}
	for cluster, want := range map[string]int64{"shop": 0, "shop2": 1} {
		for _, key := range keys(cluster) {
			got, err := etcd.Client.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if got.Count != want {
				t.Errorf("%s: %d rows, want %d", key, got.Count, want)
			}
		}
	}
}
