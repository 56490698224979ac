package storage

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/embedded-etcd/etcdtest"
)

// TestTwoServersOnOneEtcd: two Backends, each over a TLS connection of its own, write the same logical clusters at once,
// and their caches end up with the same.
func TestTwoServersOnOneEtcd(t *testing.T) {
	_, options := etcdtest.StartTLS(t)
	one, two := etcdtest.Connect(t, options), etcdtest.Connect(t, options)
	servers := []*served{serveOn(t, one.Client, "/registry", nil), serveOn(t, two.Client, "/registry", nil)}
	watches := map[string][2]chan string{}
	for _, c := range []string{"aa", "bb"} {
		var seen [2]chan string
		for i, s := range servers {
			w := startWatch(t, s.configMaps, in(c), &metainternalversion.ListOptions{})
			seen[i] = make(chan string, 1000)
			go func() {
				defer close(seen[i])
				for event := range w.ResultChan() {
					seen[i] <- string(event.Type) + " " + describe(event.Object)
				}
			}()
		}
		watches[c] = seen
	}

	// Each server creates its own and changes one object of both.
	for _, c := range []string{"aa", "bb"} {
		create(t, servers[0].configMaps, in(c, "default"), configMap("default", "both"))
	}
	var group sync.WaitGroup
	const each = 20
	for i, s := range servers {
		for _, c := range []string{"aa", "bb"} {
			group.Go(func() {
				for n := range each {
					put(t, s, c, fmt.Sprintf("s%d-%02d", i, n), "v")
					_, _, err := s.configMaps.Update(in(c, "default"), "both", changed(func(cm *api.ConfigMap) {
						if cm.Data == nil {
							cm.Data = map[string]string{}
						}
						cm.Data[fmt.Sprintf("s%d-%02d", i, n)] = "v"
					}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
					if err != nil {
						t.Errorf("update in %s by server %d: %v", c, i, err)
					}
				}
			})
		}
	}
	group.Wait()
	for _, c := range []string{"aa", "bb"} {
		first := names(t, servers[0].configMaps, in(c), nil)
		if len(first) != 2*each+1 {
			t.Errorf("%d objects in %s, want %d", len(first), c, 2*each+1)
		}
		if diff := cmp.Diff(first, names(t, servers[1].configMaps, in(c), nil)); diff != "" {
			t.Errorf("the servers differ in %s: %s", c, diff)
		}
		for i, s := range servers {
			got, err := s.configMaps.Get(in(c, "default"), "both", &metav1.GetOptions{ResourceVersion: "0"})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(got.(*api.ConfigMap).Data); n != 2*each {
				t.Errorf("server %d has %d of the %d changes to one object in %s", i, n, 2*each, c)
			}
		}
	}
	// One deletes, and watchers of the other see that last.
	if err := servers[1].DeleteClusterData(t.Context(), "aa", nil); err != nil {
		t.Fatal(err)
	}
	for i, s := range servers {
		if left := names(t, s.configMaps, everywhere(), nil); len(left) != 2*each+1 || !slices.Contains(left, "bb/default/both") {
			t.Errorf("server %d has %d objects after aa is gone", i, len(left))
		}
	}
	var histories [2][]string
	for i := range histories {
		for event := range watches["aa"][i] {
			histories[i] = append(histories[i], event)
			if gone := slices.IndexFunc(histories[i], func(e string) bool { return e == "DELETED aa/default/s1-19" }); gone >= 0 && len(histories[i]) == 1+2*each+2*each+2*each+1 {
				break
			}
		}
	}
	// Deletions of different rows may come in any order, but in the same one to everybody.
	if diff := cmp.Diff(histories[0], histories[1]); diff != "" {
		t.Errorf("watchers of the two servers saw different histories: %s", diff)
	}
}
