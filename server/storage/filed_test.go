package storage

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		change := changed(func(cm *api.ConfigMap) { cm.Labels[label] = value })
		if _, _, err := s.configMaps.Update(in(cluster, "default"), name, change, nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(selects string, looked float64, want ...string) {
		t.Helper()
		before := lookedAt(t, "configmaps")
		if diff := cmp.Diff(want, names(t, s.configMaps, everywhere(), selector(selects))); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", selects, diff)
		}
		if got := lookedAt(t, "configmaps") - before; got != looked {
			t.Errorf("%s: looked at %v objects, want %v", selects, got, looked)
		}
	}
	check(label+"=shop", 2, "aa/default/x", "bb/default/x")
	check(label+"=shop,"+label+"!=bank", 2, "aa/default/x", "bb/default/x")
	check(label+" in (bank)", 1, "bb/default/y")
	check(label+" in (bank,shop)", 53, "aa/default/x", "bb/default/x", "bb/default/y")
	relabel("bb", "y", "shop")
	check(label+"=shop", 3, "aa/default/x", "bb/default/x", "bb/default/y")
	relabel("aa", "x", "bank")
	check(label+"=shop", 2, "bb/default/x", "bb/default/y")
	if got := names(t, s.configMaps, in("bb", "default"), selector(label+"=shop")); len(got) != 2 {
		t.Errorf("in bb: %v, want 2", got)
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
