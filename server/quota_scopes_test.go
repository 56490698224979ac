package server

import (
	"fmt"
	"strings"
	"testing"
)

// TestQuotaScopeOfVolumeAttributes: of the claims of a workspace a ResourceQuota counts and refuses those of its VolumeAttributesClass, and no
// others.
func TestQuotaScopeOfVolumeAttributes(t *testing.T) {
	r := startServer(t, nil)
	r.countQuotas(t)
	in := r.place(t, shop)
	in.namespace(t, "ns", nil, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: gold}, spec: {hard: {persistentvolumeclaims: "1", requests.storage: 3Gi},
  scopeSelector: {matchExpressions: [{scopeName: VolumeAttributesClass, operator: In, values: [gold]}]}}}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: none}, spec: {hard: {persistentvolumeclaims: "2"},
  scopeSelector: {matchExpressions: [{scopeName: VolumeAttributesClass, operator: DoesNotExist}]}}}`)
	in.waitUsed(t, "ns", "gold", "persistentvolumeclaims 0/1, requests.storage 0/3Gi")
	in.waitUsed(t, "ns", "none", "persistentvolumeclaims 0/2")
	for _, step := range []struct{ name, class, size, refused string }{
		{"a", "", "5Gi", ""},
		{"b", "gold", "5Gi", "exceeded quota: gold"},
		{"c", "gold", "2Gi", ""},
		{"d", "gold", "1Gi", "exceeded quota: gold"},
		{"e", "silver", "5Gi", ""},
		{"f", "", "5Gi", ""},
		{"g", "", "1Gi", "exceeded quota: none"},
	} {
		class := ""
		if step.class != "" {
			class = "volumeAttributesClassName: " + step.class + ", "
		}
		_, err := in.apply(t, "ns", fmt.Sprintf("{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: %s}, spec: {%saccessModes: [ReadWriteOnce], resources: {requests: {storage: %s}}}}",
			step.name, class, step.size))
		if step.refused == "" && err != nil || step.refused != "" && (err == nil || !strings.Contains(err.Error(), step.refused)) {
			t.Errorf("claim %s of class %q: %v, want %q", step.name, step.class, err, step.refused)
		}
	}
	in.waitUsed(t, "ns", "gold", "persistentvolumeclaims 1/1, requests.storage 2Gi/3Gi")
	in.waitUsed(t, "ns", "none", "persistentvolumeclaims 2/2")
}
