package storage

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// spoil overwrites a row with what no codec and no key can read.
func spoil(t testing.TB, key string) {
	t.Helper()
	if _, err := etcd.Client.Put(t.Context(), key, "not an object"); err != nil {
		t.Fatal(err)
	}
}

func TestUnreadableRowConcernsItsClusterOnly(t *testing.T) {
	for name, uncached := range map[string]bool{"cached": false, "uncached": true} {
		t.Run(name, func(t *testing.T) {
			configure := func(c *Config) {
				c.Uncached = func(gr schema.GroupResource) bool { return uncached || DefaultUncached(gr) }
			}
			s := serve(t, prefixOf(t), configure)
			for _, c := range []string{"aa", "bb"} {
				put(t, s, c, "good", "v")
				put(t, s, c, "spoilt", "v")
			}
			spoil(t, prefixOf(t)+"/configmaps/aa/default/spoilt")
			want := []string{"aa/default/good", "bb/default/good", "bb/default/spoilt"}
			prefix := prefixOf(t)

			check := func(t *testing.T, s *served) {
				t.Helper()
				for _, opts := range []*metainternalversion.ListOptions{nil, {ResourceVersion: "0"}} {
					if got, err := s.configMaps.List(in("aa"), opts); err == nil {
						t.Errorf("a list of aa with %v pretends that the object is gone: %v", opts, got)
					}
					if diff := cmp.Diff(want[1:], names(t, s.configMaps, in("bb"), opts)); diff != "" {
						t.Errorf("bb with %v: %s", opts, diff)
					}
					if diff := cmp.Diff(want, names(t, s.configMaps, everywhere(), opts)); diff != "" {
						t.Errorf("everywhere with %v: %s", opts, diff)
					}
				}
				for _, rv := range []string{"", "0"} {
					if got, err := s.configMaps.Get(in("aa", "default"), "spoilt", &metav1.GetOptions{ResourceVersion: rv}); err == nil {
						t.Errorf("get at %q: %v", rv, got)
					} else if status := responsewriters.ErrorToAPIStatus(err); status.Code != http.StatusInternalServerError || status.Reason == metav1.StatusReasonServerTimeout {
						t.Errorf("get at %q: %+v, want what the splitter takes for an unreadable row", rv, status)
					}
					if _, err := s.configMaps.Get(in("aa", "default"), "good", &metav1.GetOptions{ResourceVersion: rv}); err != nil {
						t.Errorf("get of another at %q: %v", rv, err)
					}
				}
				destroys := map[string]func() error{
					"update": func() error {
						_, _, err := s.configMaps.Update(in("aa", "default"), "spoilt", changed(func(cm *api.ConfigMap) { cm.Data = nil }),
							rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
						return err
					},
					"delete": func() error {
						_, _, err := s.configMaps.Delete(in("aa", "default"), "spoilt", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
						return err
					},
					"delete below the registry": func() error {
						r, _ := s.Resource(schema.GroupResource{Resource: "configmaps"})
						return r.Storage.Delete(in("aa"), r.Key("default", "spoilt"), r.New(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
					},
					"update below the registry": func() error {
						r, _ := s.Resource(schema.GroupResource{Resource: "configmaps"})
						return r.Storage.GuaranteedUpdate(in("aa"), r.Key("default", "spoilt"), r.New(), false, nil,
							func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
								return input, nil, nil
							}, nil)
					},
				}
				for verb, do := range destroys {
					if err := do(); err == nil {
						t.Errorf("%s of a row that cannot be read was done", verb)
					}
				}
				w := startWatch(t, s.configMaps, everywhere(), &metainternalversion.ListOptions{ResourceVersion: "0"})
				wantEvents(t, w, "ADDED "+want[0], "ADDED "+want[1], "ADDED "+want[2])
			}

			t.Run("live", func(t *testing.T) {
				// The cache has seen the row when it has seen a later one.
				put(t, s, "bb", "later", "v")
				names(t, s.configMaps, in("bb"), nil)
				remove(t, s.configMaps, "bb", "later")
				names(t, s.configMaps, in("bb"), nil)
				check(t, s)
			})
			s.Destroy()
			t.Run("after a restart", func(t *testing.T) {
				s := serve(t, prefix, configure)
				check(t, s)
				// Whoever may delete rows gets rid of it.
				if err := s.DeleteClusterData(t.Context(), "aa", nil); err != nil {
					t.Fatal(err)
				}
				if got := names(t, s.configMaps, in("aa"), nil); len(got) != 0 {
					t.Errorf("left: %v", got)
				}
			})
		})
	}
}

func remove(t testing.TB, store *genericregistry.Store, cluster, name string) {
	t.Helper()
	if _, _, err := store.Delete(in(cluster, "default"), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestUnreadableRowAndWatchers(t *testing.T) {
	s := serve(t, prefixOf(t), nil)
	put(t, s, "aa", "x", "v")
	own := startWatch(t, s.configMaps, in("aa"), &metainternalversion.ListOptions{})
	foreign := startWatch(t, s.configMaps, in("bb"), &metainternalversion.ListOptions{})
	all := startWatch(t, s.configMaps, everywhere(), &metainternalversion.ListOptions{})
	wantEvents(t, own, "ADDED aa/default/x")
	wantEvents(t, all, "ADDED aa/default/x")
	spoil(t, prefixOf(t)+"/configmaps/aa/default/x")
	put(t, s, "bb", "y", "v")
	// No watcher ends, and none sees a placeholder.
	wantEvents(t, foreign, "ADDED bb/default/y")
	wantEvents(t, all, "DELETED aa/default/x", "ADDED bb/default/y")
	wantEvents(t, own, "DELETED aa/default/x")
}
