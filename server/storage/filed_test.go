package storage

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// TestFiledBy: a list of all logical clusters by one value of a label looks at what has that alone, wherever that is, and is as of the
// last write.
func TestFiledBy(t *testing.T) {
	const label = "test.atoll.dev/of"
	s := serve(t, prefixOf(t), func(c *Config) {
		c.FiledBy = func(gr schema.GroupResource) string {
			if gr.Resource == "configmaps" {
				return label
			}
			return ""
		}
	})
	labelled := func(cluster, name, value string) {
		cm := configMap("default", name)
		cm.Labels = map[string]string{label: value}
		create(t, s.configMaps, in(cluster, "default"), cm)
	}
	labelled("aa", "x", "shop")
	labelled("bb", "x", "shop")
	labelled("bb", "y", "bank")
	for i := range 50 {
		labelled("cc", fmt.Sprint("other-", i), "other")
	}
	selector := func(text string) *metainternalversion.ListOptions {
		l, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return &metainternalversion.ListOptions{LabelSelector: l}
	}
	relabel := func(cluster, name, value string) {
		change := changed(func(cm *api.ConfigMap) { cm.Labels = map[string]string{label: value} })
		if _, _, err := s.configMaps.Update(in(cluster, "default"), name, change, nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	checkNamed := func(selects, name string, looked float64, want ...string) {
		t.Helper()
		o, before := selector(selects), lookedAt(t, "configmaps")
		if name != "" {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name)
		}
		if diff := cmp.Diff(want, names(t, s.configMaps, everywhere(), o), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s %s: -want, +got:\n%s", selects, name, diff)
		}
		if got := lookedAt(t, "configmaps") - before; got != looked {
			t.Errorf("%s %s: looked at %v objects, want %v", selects, name, got, looked)
		}
	}
	check := func(selects string, looked float64, want ...string) {
		t.Helper()
		checkNamed(selects, "", looked, want...)
	}
	check(label+"=shop", 2, "aa/default/x", "bb/default/x")
	check(label+"=shop,"+label+"!=bank", 2, "aa/default/x", "bb/default/x")
	check(label+" in (bank)", 1, "bb/default/y")
	check(label+" in (bank,shop)", 53, "aa/default/x", "bb/default/x", "bb/default/y")
	relabel("bb", "y", "shop")
	check(label+"=shop", 3, "aa/default/x", "bb/default/x", "bb/default/y")
	checkNamed(label+"=shop", "x", 3, "aa/default/x", "bb/default/x")
	relabel("aa", "x", "bank")
	check(label+"=shop", 2, "bb/default/x", "bb/default/y")
	remove(t, s.configMaps, "bb", "y")
	check(label+"=shop", 1, "bb/default/x")
	unlabel := changed(func(cm *api.ConfigMap) { delete(cm.Labels, label) })
	if _, _, err := s.configMaps.Update(in("bb", "default"), "x", unlabel, nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	put(t, s, "aa", "without", "v")
	check(label+"=shop", 0)
	relabel("bb", "x", "shop")
	labelled("bb", "y", "shop")
	if got := names(t, s.configMaps, in("bb", "default"), selector(label+"=shop")); len(got) != 2 {
		t.Errorf("in bb: %v, want 2", got)
	}
}

// TestUnreadableRowMayBeFiled: a list by one value of the label fails where a row cannot be read that may have it, in words; it is not left out.
func TestUnreadableRowMayBeFiled(t *testing.T) {
	const label = "test.atoll.dev/of"
	for name, uncached := range map[string]bool{"cached": false, "uncached": true} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, prefixOf(t), func(c *Config) {
				c.FiledBy = func(schema.GroupResource) string { return label }
				c.Uncached = func(gr schema.GroupResource) bool { return uncached || DefaultUncached(gr) }
			})
			for _, object := range []string{"x", "y"} {
				cm := configMap("default", object)
				cm.Labels = map[string]string{label: "shop"}
				create(t, s.configMaps, in("aa", "default"), cm)
			}
			selects := func(label, field string) *metainternalversion.ListOptions {
				t.Helper()
				l, err := labels.Parse(label)
				if err != nil {
					t.Fatal(err)
				}
				f, err := fields.ParseSelector(field)
				if err != nil {
					t.Fatal(err)
				}
				return &metainternalversion.ListOptions{LabelSelector: l, FieldSelector: f}
			}
			both := []string{"aa/default/x", "aa/default/y"}
			if diff := cmp.Diff(both, names(t, s.configMaps, everywhere(), selects(label+"=shop", ""))); diff != "" {
				t.Fatal(diff)
			}
			spoil(t, prefixOf(t)+"/configmaps/aa/default/x")
			put(t, s, "bb", "later", "v")
			for _, tc := range []struct {
				label, field string
				fails        bool
				want         []string
			}{
				{label + "=shop", "", true, nil},
				{label + "=bank", "", true, nil},
				{label + "=shop", "metadata.name=x", true, nil},
				{label + "=shop", "metadata.name=y", false, both[1:]},
				{label + "=bank", "metadata.name=y", false, nil},
				{label + "=shop", "metadata.name=x,metadata.namespace=default", true, nil},
				{label + "=shop", "metadata.name=x,metadata.namespace=other", false, nil}, // as of namespaces of others
				{label, "", false, both[1:]},                                              // watched: one row would take the resource away from all
				{"", "", false, []string{both[1], "bb/default/later"}},
			} {
				if !tc.fails {
					if diff := cmp.Diff(tc.want, names(t, s.configMaps, everywhere(), selects(tc.label, tc.field)), cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("%q %q: -want, +got:\n%s", tc.label, tc.field, diff)
					}
					continue
				}
				_, err := s.configMaps.List(everywhere(), selects(tc.label, tc.field))
				if err == nil || !strings.Contains(err.Error(), `"default/x" of logical cluster "aa" cannot be read`) {
					t.Errorf("%q %q: error %v, want that the row cannot be read", tc.label, tc.field, err)
				}
			}
			named := selects(label+"=shop", "metadata.name=x")
			if _, err := s.configMaps.List(everywhere("default"), named); err == nil {
				t.Error("a list of its namespace pretends that the object is gone")
			}
			if diff := cmp.Diff([]string(nil), names(t, s.configMaps, everywhere("other"), named), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("in another namespace: -want, +got:\n%s", diff)
			}
			if _, err := etcd.Client.Delete(t.Context(), prefixOf(t)+"/configmaps/aa/default/x"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(both[1:], names(t, s.configMaps, everywhere(), selects(label+"=shop", ""))); diff != "" {
				t.Errorf("without the row: -want, +got:\n%s", diff)
			}
		})
	}
}

// lookedAt is how many objects of a resource lists from the watch cache have looked at.
func lookedAt(t *testing.T, resource string) (objects float64) {
	t.Helper()
	cachermetrics.Register()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "apiserver_cache_list_fetched_objects_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "resource" && l.GetValue() == resource {
					objects += m.GetCounter().GetValue()
				}
			}
		}
	}
	return objects
}
