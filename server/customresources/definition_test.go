package customresources

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

func established(c *apiextensionsv1.CustomResourceDefinition) {
	c.Status.AcceptedNames = c.Spec.Names
	c.Status.Conditions = []condition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
}

// known is what definitions know of a cluster: name@version, and + if it is served.
func known(d *Definitions, cluster logicalcluster.Name) []string {
	all := []string{}
	for _, def := range d.ofGroup(cluster, "shop.example") {
		s := def.Name + "@" + def.ResourceVersion
		if slices.ContainsFunc(d.Served(cluster), func(s Definition) bool { return s.Name == def.Name }) {
			s += "+"
		}
		all = append(all, s)
	}
	slices.Sort(all)
	return all
}

// What is read, decided and told comes in any order; what is known is the newest of it, and nothing that is gone.
func TestDefinitionsKnowTheNewest(t *testing.T) {
	type step func(*testing.T, *Definitions)
	at := func(version string, source source, change func(*apiextensionsv1.CustomResourceDefinition)) step {
		return func(t *testing.T, d *Definitions) { d.put(defined(t, &d.specs, "a", version, change), source) }
	}
	gone := func(version uint64) step {
		return func(_ *testing.T, d *Definitions) { d.drop("a", "widgets.shop.example", version) }
	}
	for _, tc := range []struct {
		reason string
		steps  []step
		want   []string
	}{
		{"told", []step{at("5", told, nil)}, []string{"widgets.shop.example@5"}},
		{"read before it is told", []step{at("5", read, established)}, []string{"widgets.shop.example@5+"}},
		{"read, and told later", []step{at("5", read, established), at("4", told, nil), at("5", told, established)}, []string{"widgets.shop.example@5+"}},
		{"read of what the watch knows to be gone", []step{at("5", told, nil), gone(7), at("5", read, established)}, []string{}},
		{"read of one made since", []step{at("5", told, nil), gone(7), at("8", read, established)}, []string{"widgets.shop.example@8+"}},
		{"it is told to be gone before a newer one is", []step{at("8", read, established), gone(7)}, []string{"widgets.shop.example@8+"}},
		{"decided", []step{at("5", told, nil), at("5", decided, established)}, []string{"widgets.shop.example@5+"}},
		{"decided, and what it was decided from told later", []step{at("5", read, nil), at("5", decided, established), at("5", told, nil)}, []string{"widgets.shop.example@5+"}},
		{"decided, not written, and changed", []step{at("5", told, nil), at("5", decided, established), at("6", told, nil)}, []string{"widgets.shop.example@6"}},
		{"decided on what is gone", []step{at("5", told, nil), gone(7), at("5", decided, established)}, []string{}},
		{"decided on something older", []step{at("6", told, nil), at("5", decided, established)}, []string{"widgets.shop.example@6"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			d := newDefinitions(nil, Names{})
			for _, step := range tc.steps {
				step(t, d)
			}
			if diff := cmp.Diff(tc.want, known(d, "a")); diff != "" {
				t.Errorf("known (-want +got):\n%s", diff)
			}
		})
	}
}

// Who listens is told whenever a resource begins or ends to be served in namespaces, and of nothing else.
func TestDefinitionsTellWhatIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDefinitions(nil, Names{})
		ctx, end := context.WithCancel(t.Context())
		defer end()
		var heard []string
		d.OnNamespaced(ctx, func(cluster logicalcluster.Name, resource schema.GroupResource) {
			heard = append(heard, fmt.Sprintf("%s %s %v", cluster, resource, d.HasNamespaced(cluster, resource)))
		})
		hears := func(reason string, want ...string) {
			t.Helper()
			if !slices.Equal(heard, want) {
				t.Errorf("heard %q, want %q: %s", heard, want, reason)
			}
			heard = nil
		}
		put := func(cluster, version string, source source, change func(*apiextensionsv1.CustomResourceDefinition)) {
			t.Helper()
			d.put(defined(t, &d.specs, cluster, version, change), source)
		}
		put("a", "1", told, nil)
		hears("it is not established")
		put("a", "1", decided, established)
		hears("it is served before anybody is told", "a widgets.shop.example true")
		put("a", "2", told, established)
		hears("nothing new")
		put("b", "3", read, established)
		hears("each logical cluster has its own", "b widgets.shop.example true")
		put("a", "4", told, nil)
		hears("established no more", "a widgets.shop.example false")
		d.drop("a", "widgets.shop.example", 5)
		hears("it was not served")
		d.drop("b", "widgets.shop.example", 6)
		hears("gone", "b widgets.shop.example false")
		put("a", "7", told, func(c *apiextensionsv1.CustomResourceDefinition) {
			established(c)
			c.Spec.Scope = apiextensionsv1.ClusterScoped
		})
		hears("in no namespace")
		end()
		synctest.Wait()
		put("b", "8", told, established)
		hears("nobody listens")
		if len(d.listeners) != 0 {
			t.Errorf("%d listeners are kept", len(d.listeners))
		}
	})
}

// Who listens is told of each kind that begins to be served, in its version, and of nothing else; and whether other resources are
// defined is told when they are.
func TestDefinitionsTellOfKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDefinitions(nil, Names{})
		ctx, end := context.WithCancel(t.Context())
		defer end()
		var heard []string
		d.OnServed(ctx, func(cluster logicalcluster.Name, kind schema.GroupVersionKind) {
			if def, ok := d.OfKind(cluster, kind); !ok || def.Name != "widgets.shop.example" {
				t.Errorf("told of %s in %s, which is not served", kind, cluster)
			}
			heard = append(heard, fmt.Sprintf("%s %s", cluster, kind.Version))
		})
		_, others := d.Resources()
		hears := func(reason string, otherResources bool, want ...string) {
			t.Helper()
			if !slices.Equal(heard, want) {
				t.Errorf("heard %q, want %q: %s", heard, want, reason)
			}
			heard = nil
			told := false
			select {
			case <-others:
				told = true
				_, others = d.Resources()
			default:
			}
			if told != otherResources {
				t.Errorf("told of other resources: %v, want %v: %s", told, otherResources, reason)
			}
		}
		put := func(cluster, version string, changes ...func(*apiextensionsv1.CustomResourceDefinition)) {
			t.Helper()
			d.put(defined(t, &d.specs, cluster, version, func(c *apiextensionsv1.CustomResourceDefinition) {
				for _, change := range changes {
					change(c)
				}
			}), told)
		}
		v2 := func(c *apiextensionsv1.CustomResourceDefinition) {
			v := *c.Spec.Versions[0].DeepCopy()
			v.Name, v.Storage = "v2", false
			c.Spec.Versions = append(c.Spec.Versions, v)
		}
		put("a", "1")
		hears("it is not established", true)
		put("a", "2", established)
		hears("it is", false, "a v1")
		put("a", "3", established)
		hears("nothing new", false)
		put("b", "4", established)
		hears("each logical cluster has its own", false, "b v1")
		put("a", "5", v2, established)
		hears("another version", false, "a v2")
		put("a", "6", v2, established, func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Scope = apiextensionsv1.ClusterScoped })
		hears("another scope", false, "a v1", "a v2")
		put("a", "7", v2)
		hears("not any more", false)
		if _, ok := d.OfKind("a", schema.GroupVersionKind{Group: "shop.example", Version: "v1", Kind: "Widget"}); ok {
			t.Error("the kind of what is not established is served")
		}
		d.drop("a", "widgets.shop.example", 8)
		hears("b has it", false)
		d.drop("b", "widgets.shop.example", 9)
		hears("nobody has", true)
		end()
		synctest.Wait()
		put("b", "10", established)
		hears("nobody listens", true)
		if len(d.kindListeners) != 0 {
			t.Errorf("%d listeners are kept", len(d.kindListeners))
		}
	})
}

// A list after a gap brings what is new, and what is gone goes.
func TestDefinitionsAfterAGap(t *testing.T) {
	d := newDefinitions(nil, Names{})
	s := &store{Definitions: d}
	named := func(name string) func(*apiextensionsv1.CustomResourceDefinition) {
		return func(c *apiextensionsv1.CustomResourceDefinition) { c.Name = name }
	}
	list := func(version string, defs ...*Definition) {
		t.Helper()
		objs := make([]any, len(defs))
		for i, def := range defs {
			objs[i] = def
		}
		if err := s.Replace(objs, version); err != nil {
			t.Fatal(err)
		}
	}
	list("10", defined(t, &d.specs, "a", "3", named("stays")), defined(t, &d.specs, "a", "4", named("goes")), defined(t, &d.specs, "b", "5", named("goes")))
	select {
	case <-d.synced:
	default:
		t.Error("not synced after the first list")
	}
	d.put(defined(t, &d.specs, "a", "25", named("since")), read)
	list("20", defined(t, &d.specs, "a", "3", named("stays")), defined(t, &d.specs, "a", "12", named("new")))
	if diff := cmp.Diff([]string{"new@12", "since@25", "stays@3"}, known(d, "a")); diff != "" {
		t.Errorf("known of a (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{}, known(d, "b")); diff != "" {
		t.Errorf("known of b (-want +got):\n%s", diff)
	}
	if len(d.clusters) != 1 {
		t.Errorf("logical clusters without definitions are kept: %v", d.clusters)
	}
}

// Definitions that are served alike have one hash and one spec, and nothing is kept of what nobody has.
func TestDefinitionsAreShared(t *testing.T) {
	d := newDefinitions(nil, Names{})
	var unheld []string
	d.unheld = func(hash string) { unheld = append(unheld, hash) }
	for i := range 100 {
		cluster := fmt.Sprintf("c%d", i)
		d.put(defined(t, &d.specs, cluster, fmt.Sprint(i+1), func(c *apiextensionsv1.CustomResourceDefinition) {
			established(c)
			c.Labels = map[string]string{"of": cluster}
			c.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = "everything again"
			c.Annotations["kept"] = "yes"
		}), told)
	}
	one, other := d.Served("c1")[0], d.Served("c2")[0]
	if one.Hash != other.Hash || &one.Spec.Versions[0] != &other.Spec.Versions[0] || one.shared != other.shared {
		t.Error("two definitions that are alike share nothing")
	}
	if one.Labels["of"] != "c1" || one.Annotations["kept"] != "yes" || len(one.Annotations) != 2 {
		t.Errorf("metadata: %v", one.ObjectMeta)
	}
	d.put(defined(t, &d.specs, "c1", "200", func(c *apiextensionsv1.CustomResourceDefinition) {
		established(c)
		c.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "another"
	}), told)
	if changed := d.Served("c1")[0]; changed.Hash == one.Hash {
		t.Error("definitions with different schemas have one hash")
	}
	renamed := defined(t, &d.specs, "c3", "201", func(c *apiextensionsv1.CustomResourceDefinition) {
		established(c)
		c.Status.AcceptedNames.ShortNames = nil
	})
	if renamed.Hash == one.Hash {
		t.Error("definitions with different names have one hash")
	}
	for i := range 100 {
		if len(unheld) > 0 && i < 99 && slices.Contains(unheld, one.Hash) {
			t.Fatalf("after %d of 100 are gone the hash is said to be unheld", i)
		}
		d.drop(logicalcluster.Name(fmt.Sprintf("c%d", i)), "widgets.shop.example", 300)
	}
	if !slices.Contains(unheld, one.Hash) || len(d.held) > 0 || len(d.clusters) > 0 {
		t.Errorf("kept when all are gone: %v, %v; unheld %v", d.held, d.clusters, unheld)
	}
	hash := one.shared.hash
	one, other, renamed = Definition{}, Definition{}, nil
	for range 100 {
		runtime.GC()
		d.specs.mu.Lock()
		left := d.specs.byHash[hash].Value()
		d.specs.mu.Unlock()
		if left == nil {
			return
		}
	}
	t.Error("a spec is kept that no definition has")
}

// A watch ends when its definition changes or goes, and with its request.
func TestWatchesEndWithTheirDefinition(t *testing.T) {
	d := newDefinitions(nil, Names{})
	put := func(version string, change func(*apiextensionsv1.CustomResourceDefinition)) *Definition {
		def := defined(t, &d.specs, "a", version, change)
		d.put(def, told)
		return def
	}
	def := put("1", established)
	watching, cancel := d.whileAlike(context.Background(), "a", def)
	defer cancel()
	put("2", func(c *apiextensionsv1.CustomResourceDefinition) {
		established(c)
		c.Labels = map[string]string{"x": "y"}
	})
	if watching.Err() != nil {
		t.Fatal("the watch ended although its schema did not change")
	}
	d.put(defined(t, &d.specs, "b", "3", established), told)
	d.drop("b", def.Name, 4)
	if watching.Err() != nil {
		t.Fatal("the watch ended with another logical cluster's definition")
	}
	put("5", func(c *apiextensionsv1.CustomResourceDefinition) {
		established(c)
		c.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "another"
	})
	<-watching.Done() // a second goroutine cancels it

	if late, cancel := d.whileAlike(context.Background(), "a", def); late.Err() == nil {
		t.Error("a watch began with a definition that is not the current one")
	} else {
		cancel()
	}
	now := put("6", established)
	watching, cancel = d.whileAlike(context.Background(), "a", now)
	defer cancel()
	d.drop("a", def.Name, 7)
	<-watching.Done()
}

// Who may write the status of a definition could accept any name for it. Objects would be stored under that name, and requests
// be authorised by the definition's own.
func TestOnlyOwnNamesAreServed(t *testing.T) {
	d := newDefinitions(nil, Names{"shop.example": {plurals: sets.New("carts")}})
	for _, tc := range []struct {
		reason string
		change func(*apiextensionsv1.CustomResourceDefinition)
		want   bool
	}{
		{"established", established, true},
		{"not established", nil, false},
		{"somebody else's plural was accepted", func(c *apiextensionsv1.CustomResourceDefinition) {
			established(c)
			c.Status.AcceptedNames.Plural = "gadgets"
		}, false},
		{"a built-in resource's plural was accepted", func(c *apiextensionsv1.CustomResourceDefinition) {
			established(c)
			c.Status.AcceptedNames.Plural = "carts"
		}, false},
		{"it is a built-in resource, established before there was one", func(c *apiextensionsv1.CustomResourceDefinition) {
			c.Name, c.Spec.Names.Plural = "carts.shop.example", "carts"
			established(c)
		}, false},
	} {
		if got := d.isServed(defined(t, &d.specs, "a", "1", tc.change)); got != tc.want {
			t.Errorf("%s: served %v, want %v", tc.reason, got, tc.want)
		}
	}
}

// A definition costs each further logical cluster its metadata and status, whatever the size of its schema.
func TestDefinitionsCostLittle(t *testing.T) {
	const clusters, most = 200, 8 << 10 // bytes for each
	d := newDefinitions(nil, Names{})
	put := func(i int) {
		d.put(defined(t, &d.specs, fmt.Sprintf("cluster%d", i), fmt.Sprint(i+1), func(c *apiextensionsv1.CustomResourceDefinition) {
			established(c)
			c.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = strings.Repeat("everything again ", 5000)
			properties := map[string]apiextensionsv1.JSONSchemaProps{}
			for n := range 300 {
				properties[fmt.Sprintf("p%d", n)] = apiextensionsv1.JSONSchemaProps{Type: "string", Description: strings.Repeat("what this is for; ", 10)}
			}
			c.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties = properties
		}), told)
	}
	none := heap()
	put(0)
	one := heap()
	for i := range clusters {
		put(i + 1)
	}
	many := heap()
	t.Logf("the first definition takes %d bytes, each further one %d", one-none, (many-one)/clusters)
	if each := (many - one) / clusters; each > most {
		t.Errorf("each further definition takes %d bytes, want at most %d", each, most)
	}
	runtime.KeepAlive(d)
}
