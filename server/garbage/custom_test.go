package garbage_test

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/server/garbage"
)

// resource is the client of a custom resource, or of definitions, whose plural is its kind and an s.
func (p *place) resource(obj *unstructured.Unstructured) dynamic.ResourceInterface {
	gvk := obj.GroupVersionKind()
	of := p.clients.Dynamic.Resource(gvk.GroupVersion().WithResource(strings.ToLower(gvk.Kind) + "s"))
	if obj.GetNamespace() == "" {
		return of
	}
	return of.Namespace(obj.GetNamespace())
}

// define defines a kind, and waits until it is served.
func (p *place) define(kind string, scope apiextensionsv1.ResourceScope) *unstructured.Unstructured {
	p.t.Helper()
	plural := strings.ToLower(kind) + "s"
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".shop.example"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "shop.example", Scope: scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	must(p.t, err)
	delete(raw, "status")
	u := &unstructured.Unstructured{Object: raw}
	made, err := p.resource(u).Create(p.ctx(), u, metav1.CreateOptions{})
	must(p.t, err)
	p.until(kind+" is served", func() (bool, string) {
		_, err := p.resource(thing(kind)).List(p.ctx(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		return true, ""
	})
	return made
}

func thing(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("shop.example/v1")
	u.SetKind(kind)
	return u
}

// custom makes an object of a kind that was defined.
func (p *place) custom(kind, name, namespace string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	p.t.Helper()
	return p.heldCustom(kind, name, namespace, nil, owners...)
}

// heldCustom makes one with finalizers, which goes only when they are let go.
func (p *place) heldCustom(kind, name, namespace string, finalizers []string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	p.t.Helper()
	u := thing(kind)
	u.SetName(name)
	u.SetNamespace(namespace)
	u.SetFinalizers(finalizers)
	u.SetOwnerReferences(owners)
	made, err := p.resource(u).Create(p.ctx(), u, metav1.CreateOptions{})
	must(p.t, err)
	return made
}

// TestNothingIsLeftOfDefinitions: of custom resources that nobody defines any more no store is open, nothing is followed, and
// what their objects owned goes all the same.
func TestNothingIsLeftOfDefinitions(t *testing.T) {
	h := start(t, t.TempDir(), true)
	p := h.at(t, shop, "ns")
	custom, ok := h.kinds.(*garbage.Custom)
	if !ok {
		t.Fatalf("the kinds are %T", h.kinds)
	}
	state := func() string {
		return fmt.Sprintf("%d stores are open, %d resources followed, %d objects kept", custom.Open(), h.collector.Followed(), h.collector.Nodes())
	}
	p.stay()
	p.until("only what is always defined is followed", func() (bool, string) { return h.collector.Nodes() == 0 && custom.Open() == 1, state() })
	before, goroutines := state(), goruntime.NumGoroutine()
	const n = 20
	var owned, definitions []ctrlclient.Object
	for i := range n {
		kind := fmt.Sprintf("Widget%c", 'a'+i)
		definitions = append(definitions, p.define(kind, apiextensionsv1.NamespaceScoped))
		owned = append(owned, p.configMap(fmt.Sprintf("d%d", i), p.owner(p.custom(kind, "o", "ns"))))
	}
	p.until("all are followed", func() (bool, string) { return custom.Open() == n+1 && h.collector.Nodes() == 2*n, state() })
	t.Logf("%.1f goroutines for each", float64(goruntime.NumGoroutine()-goroutines)/n)
	for _, definition := range definitions {
		p.delete(definition, background)
	}
	p.goes(definitions...)
	p.goes(owned...)
	p.until("nothing is left of them", func() (bool, string) {
		now := state()
		return now == before, now + "; before them " + before
	})
}

// TestCollectsCustomResources: what a logical cluster defines for itself owns and is owned like all else.
func TestCollectsCustomResources(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, true)
	p, other := h.at(t, shop, "ns"), h.at(t, bank, "ns")
	early := p.configMap("early", metav1.OwnerReference{APIVersion: "shop.example/v1", Kind: "Widget", Name: "x", UID: "x"})
	p.stay(early) // nobody can tell
	definition := p.define("Widget", apiextensionsv1.NamespaceScoped)
	p.goes(early)
	other.define("Widget", apiextensionsv1.ClusterScoped)

	t.Run("background", func(t *testing.T) {
		o := p.custom("Widget", "o", "ns")
		d, e := p.configMap("d", p.owner(o)), p.custom("Widget", "e", "ns", p.owner(o))
		f := p.custom("Widget", "f", "ns", p.owner(d))
		elsewhere := other.custom("Widget", "o", "")
		ofElsewhere := other.configMap("d", other.owner(elsewhere))
		p.delete(o, background)
		p.goes(o, d, e, f)
		other.stay(ofElsewhere)
		if _, there := other.get(elsewhere); !there {
			t.Error("the object of that name in another logical cluster is gone")
		}
		other.delete(elsewhere, background)
		other.goes(elsewhere, ofElsewhere)
	})
	t.Run("foreground", func(t *testing.T) {
		o := p.custom("Widget", "o", "ns")
		d := p.held("d", p.owner(o, blocking))
		p.delete(o, foreground)
		p.becomes(d, true, "o", hold)
		p.becomes(o, true, "", foregroundFinalizer)
		p.release(d)
		p.goes(d, o)
	})
	t.Run("orphan", func(t *testing.T) {
		o := p.configMap("o")
		d := p.custom("Widget", "d", "ns", p.owner(o))
		p.delete(o, orphan)
		p.goes(o)
		p.becomes(d, false, "", "")
		p.delete(d, orphan)
		p.goes(d)
	})
	t.Run("after a restart", func(*testing.T) {
		o := p.custom("Widget", "o", "ns")
		d, e := p.configMap("d", p.owner(o)), p.held("e", p.owner(o, blocking))
		p.delete(o, foreground)
		p.goes(d)
		h.stop()
		h = start(t, dir, true)
		p.hub, other.hub = h, h
		p.becomes(o, true, "", foregroundFinalizer)
		p.release(e)
		p.goes(e, o)
	})
	t.Run("the definition goes", func(t *testing.T) {
		o := p.custom("Widget", "o", "ns")
		d := newObject(p, &corev1.Secret{}, "d", p.owner(o))
		kept := other.custom("Widget", "kept", "")
		ofKept := other.configMap("of-kept", other.owner(kept))
		// What the collector hears of when its owner's kind is not served any more, it keeps: it has to have heard of d. It has when
		// it collected what came after.
		p.goes(newObject(p, &corev1.Secret{}, "after-d", metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "x", UID: "x"}))
		p.delete(definition, foreground)
		p.goes(definition, d)
		other.stay(ofKept)
		if _, there := other.get(kept); !there {
			t.Error("an object of another logical cluster's definition is gone")
		}
	})
}
