package v1alpha1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNameFor(t *testing.T) {
	long := strings.Repeat("a", 253)
	tests := map[string]struct {
		object *PlacedObject
		want   string
		reason string
	}{
		"namespace": {want: "front", reason: "its own name"},
		"object":    {object: &PlacedObject{Resource: "services", Name: "db.v1"}, want: "front.services.db.v1", reason: "dots are fine: a namespace has none"},
		"longest":   {object: &PlacedObject{Resource: "services", Name: long[:253-len("front.services.")]}, want: "front.services." + long[:253-len("front.services.")], reason: "253 fits"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := NameFor("front", tc.object); got != tc.want {
				t.Errorf("%s: got %q", tc.reason, got)
			}
		})
	}
	seen := map[string]bool{}
	for i := range 20 {
		// The cut falls on every character of ".-.": what stays has to be a name.
		object := &PlacedObject{Resource: "deployments", Name: long[:210+i] + ".b-" + long[:39-i]}
		name := NameFor("front", object)
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 || seen[name] {
			t.Errorf("NameFor(%d characters) = %q: %v, seen before: %v", len(object.Name), name, errs, seen[name])
		}
		seen[name] = true
	}
}
