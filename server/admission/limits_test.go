package admission

import (
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// TestLimits: who may set which limits of a workspace.
func TestLimits(t *testing.T) {
	master := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	with := func(annotations map[string]string) *corev1alpha1.LogicalCluster {
		c := &corev1alpha1.LogicalCluster{}
		c.Name, c.Annotations = corev1alpha1.LogicalClusterName, annotations
		return c
	}
	few := map[string]string{"limits.atoll.dev/objects": "5"}
	for name, test := range map[string]struct {
		reason      string
		who         user.Info
		mirror      bool
		before      map[string]string
		now         map[string]string
		refusedWith string
	}{
		"another annotation":     {reason: "wishes for placement are annotations here", who: alice, before: few, now: map[string]string{"limits.atoll.dev/objects": "5", "a": "b"}},
		"set":                    {reason: "the owner would have no limit", who: alice, now: few, refusedWith: "only administrators of the server"},
		"raise":                  {reason: "the owner would have no limit", who: alice, before: few, now: map[string]string{"limits.atoll.dev/objects": "6"}, refusedWith: "only administrators of the server"},
		"take away":              {reason: "the flag's may be higher", who: alice, before: few, refusedWith: "only administrators of the server"},
		"administrator sets":     {who: master, now: map[string]string{"limits.atoll.dev/objects": "0", "limits.atoll.dev/bytes": "512Mi", "limits.atoll.dev/watches": "1", "limits.atoll.dev/definitions": "0"}},
		"administrator removes":  {who: master, before: few},
		"no number":              {who: master, now: map[string]string{"limits.atoll.dev/objects": "many"}, refusedWith: `"many" is no number`},
		"negative":               {who: master, now: map[string]string{"limits.atoll.dev/bytes": "-1"}, refusedWith: "at least 0"},
		"a part":                 {who: master, now: map[string]string{"limits.atoll.dev/bytes": "500m"}, refusedWith: "whole number"},
		"no watches":             {who: master, now: map[string]string{"limits.atoll.dev/watches": "0"}, refusedWith: "at least 1"},
		"misspelt":               {reason: "it would be ignored", who: master, now: map[string]string{"limits.atoll.dev/object": "5"}, refusedWith: "want one of limits.atoll.dev/objects"},
		"of a mirror":            {reason: "it would be ignored", who: master, mirror: true, now: few, refusedWith: "a mirror has no limits"},
		"not changed and no use": {reason: "an older version let it pass, and other changes have to", who: alice, before: map[string]string{"limits.atoll.dev/old": "x"}, now: map[string]string{"limits.atoll.dev/old": "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, _ := in(logicalcluster.Cluster{Name: "shop", Mirror: test.mirror})
			w := what{
				group: logicalClusters.Group, resource: logicalClusters.Resource, kind: "LogicalCluster", name: "cluster",
				operation: admission.Update, who: test.who, old: with(test.before), object: with(test.now),
			}
			err := NewLimits().Validate(ctx, w.attributes(), nil)
			if test.refusedWith == "" && err != nil || test.refusedWith != "" && (err == nil || !strings.Contains(err.Error(), test.refusedWith)) {
				t.Errorf("%v, want %q: %s", err, test.refusedWith, test.reason)
			}
		})
	}
	// On a Workspace, where somebody may look for them first, they do nothing.
	ctx, warned := in(logicalcluster.Cluster{Name: "root"})
	w := &tenancyv1alpha1.Workspace{}
	w.Annotations = few
	made := what{group: workspaces.Group, resource: workspaces.Resource, kind: "Workspace", name: "shop", operation: admission.Create, who: alice, object: w}
	if err := NewLimits().Validate(ctx, made.attributes(), nil); err != nil {
		t.Errorf("on a Workspace: %v", err)
	}
	if got := strings.Join(*warned, "\n"); !strings.Contains(got, "annotations of the LogicalCluster") {
		t.Errorf("warned %q, want where the limits are", got)
	}
}
