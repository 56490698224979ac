package storage

import (
	"context"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	api "k8s.io/kubernetes/pkg/apis/core"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

var configMapsResource = schema.GroupResource{Resource: "configmaps"}

func waitForAll(_ context.Context, _ logicalcluster.Name, _ schema.GroupResource, finalizers []string) ([]string, error) {
	return finalizers, nil
}

func rowsOf(t *testing.T, cluster string) (n int) {
	t.Helper()
	all, err := etcd.Client.Get(t.Context(), prefixOf(t), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range all.Kvs {
		if in, err := clusterOf(prefixOf(t)+"/configmaps", string(kv.Key)); err == nil && in == cluster {
			n++
		}
	}
	return n
}

// One object among many that has a finalizer keeps all of them, whichever page it is on.
func TestDeleteUnheldData(t *testing.T) {
	for name, at := range map[string]int{"first": 0, "on a page": firstRows + 3, "last": deleteBatch + maxPage/2, "none": -1} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, prefixOf(t), nil)
			const n = deleteBatch + maxPage
			for i := range n {
				cm := configMap("default", fmt.Sprintf("cm-%05d", i))
				if i == at {
					cm.Finalizers = []string{"example.com/a", "example.com/b"}
				}
				create(t, s.configMaps, in("aa", "default"), cm)
			}
			others := []string{"aab", "bb"} // the keys of the first begin alike but for a slash
			for _, other := range others {
				cm := configMap("default", "other")
				cm.Finalizers = []string{"example.com/other"}
				create(t, s.configMaps, in(other, "default"), cm)
			}
			held, err := s.DeleteUnheldData(t.Context(), "aa", waitForAll)
			if err != nil {
				t.Fatal(err)
			}
			if at < 0 {
				if left := rowsOf(t, "aa"); !held.Empty() || left > 0 {
					t.Fatalf("held %+v, %d rows left", held, left)
				}
			} else {
				want := lc.Held{
					Unasked:    []lc.HeldObject{{Resource: configMapsResource.WithVersion(""), Namespace: "default", Name: fmt.Sprintf("cm-%05d", at)}},
					Objects:    map[schema.GroupResource]int{configMapsResource: 1},
					Finalizers: map[string]int{"example.com/a": 1, "example.com/b": 1},
				}
				if len(held.Unasked) == 1 && held.Unasked[0].UID != "" {
					want.Unasked[0].UID = held.Unasked[0].UID
				}
				if diff := cmp.Diff(want, held); diff != "" {
					t.Errorf("held (-want +got):\n%s", diff)
				}
				if left := rowsOf(t, "aa"); left != n {
					t.Errorf("%d rows left, want all %d", left, n)
				}
			}
			for _, other := range others {
				if left := rowsOf(t, other); left != 1 {
					t.Errorf("%d rows left of %s, want its one", left, other)
				}
			}
		})
	}
}

// An object that gets its finalizer after the look stays.
func TestDeleteUnheldDataMeetsAChange(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	put(t, s, "aa", "a", "x")
	put(t, s, "aa", "b", "x")
	pass, rows, complete, err := s.look(t.Context(), "aa", waitForAll, false, nil)
	if err != nil || !complete || !pass.held.Empty() || len(rows) != 1 || len(rows[0]) != 2 {
		t.Fatalf("a look at two objects: %v, %v, %v, %v", pass, rows, complete, err)
	}
	held := changed(func(cm *api.ConfigMap) { cm.Finalizers = []string{"example.com/a"} })
	if _, _, err := s.configMaps.Update(in("aa", "default"), "b", held, nil, nil, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.deleteAsSeen(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	if left := rowsOf(t, "aa"); left != 1 {
		t.Errorf("%d rows left, want the one that changed", left)
	}
	found, err := s.DeleteUnheldData(t.Context(), "aa", waitForAll)
	if err != nil || found.Objects[configMapsResource] != 1 {
		t.Errorf("held %+v, %v; want the one that changed", found, err)
	}
}

// Whatever else a row has, its finalizers count; and where nobody can say which these are, everything stays.
func TestDeleteUnheldDataReadsEveryRow(t *testing.T) {
	for _, tc := range []struct {
		reason, row string
		held        bool
		err         string
	}{
		{reason: "fields that are called like those of every object, but for case", held: true,
			row: `{"Kind":5,"APIVersion":{},"Metadata":[],"kind":"Widget","metadata":{"name":"w","Finalizers":7,"Name":1,"finalizers":["example.com/a"]}}`},
		{reason: "the same, in another order", held: true,
			row: `{"metadata":{"finalizers":["example.com/a"],"name":"w","finaliZers":[]},"kind":"Widget","Metadata":{},"KIND":5}`},
		{reason: "no object", row: "not an object", err: "/aa/w"},
		{reason: "no Protobuf", row: "k8s\x00\xff", err: "/aa/w"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s := serve(t, prefixOf(t), nil)
			resource := schema.GroupResource{Group: strings.ToLower(path.Base(t.Name())) + ".example", Resource: "widgets"}
			if err := s.RecordCustom(t.Context(), "aa", resource); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if _, err := s.ForgetCustom(context.Background(), "aa", resource, 0); err != nil {
					t.Error(err)
				}
			})
			key := prefixOf(t) + uncachedPrefix(resource) + "/aa/w"
			if _, err := etcd.Client.Put(t.Context(), key, tc.row); err != nil {
				t.Fatal(err)
			}
			held, err := s.DeleteUnheldData(t.Context(), "aa", waitForAll)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want one with %q", err, tc.err)
			}
			if got := held.Objects[resource] == 1; got != tc.held {
				t.Errorf("held %+v, want one of %s: %v", held, resource, tc.held)
			}
			if left := rowsBelow(t, key); len(left) != 1 {
				t.Errorf("rows left: %v, want the one", left)
			}
		})
	}
}

// Who has a lock is no object, and holds nothing.
func TestDeleteUnheldDataTakesLocks(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	if _, _, err := s.Exclusive(in("aa"), "nodeports/30080", "default/web"); err != nil {
		t.Fatal(err)
	}
	if held, err := s.DeleteUnheldData(t.Context(), "aa", waitForAll); err != nil || !held.Empty() {
		t.Errorf("held %+v, %v; want nothing", held, err)
	}
	if left := rowsBelow(t, prefixOf(t)+"/"); len(left) != 0 {
		t.Errorf("rows left: %v, want none", left)
	}
}

// Of a logical cluster that is gone nothing is known; while it is held, what was counted still holds.
func TestDeleteUnheldDataForgetsWhatWasCounted(t *testing.T) {
	s := serve(t, prefixOf(t), func(c *Config) { c.Limits = always(Limits{Objects: 100}) })
	aa := as(in("aa", "default"))
	cm := configMap("default", "a")
	cm.Finalizers = []string{"example.com/a"}
	mustPass(t, "a ConfigMap", tryCreate(s.configMaps, aa, cm))
	mustPass(t, "an Event", tryCreate(s.events, aa, event("default", "e")))
	for _, tc := range []struct {
		reason string
		hold   Hold
		held   bool
	}{
		{"finalizers hold it", waitForAll, true},
		{"it is gone", func(context.Context, logicalcluster.Name, schema.GroupResource, []string) ([]string, error) {
			return nil, nil
		}, false},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			held, err := s.DeleteUnheldData(t.Context(), "aa", tc.hold)
			if err != nil || held.Empty() == tc.held {
				t.Fatalf("held %+v, %v", held, err)
			}
			for _, prefix := range []string{"", "/events"} {
				if got := s.usage.knows(share{"aa", prefix}); got != tc.held {
					t.Errorf("it is counted (apart: %q): %v, want %v", prefix, got, tc.held)
				}
			}
		})
	}
}
