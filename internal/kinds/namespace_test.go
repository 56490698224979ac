package kinds

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestDownstreamNamespace(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := map[string]struct {
		reason    string
		namespace string
		dedicated bool
		prefix    string // of a mapped name; the whole name otherwise
		mapped    bool
	}{
		"Shared":           {"shared clusters map every namespace", "shop", false, "shop-", true},
		"Dedicated":        {"a dedicated cluster keeps names", "shop", true, "shop", false},
		"Default":          {"default is the cluster's own", "default", true, "default-", true},
		"KubeSystem":       {"kube-* is the cluster's own, and so is the prefix", "kube-system", true, "ws-kube-system-", true},
		"KubeShared":       {"the same without dedication", "kube-x", false, "ws-kube-x-", true},
		"Syncer":           {"the syncer's own namespace", "atoll-system", true, "ws-atoll-system-", true},
		"NotQuiteDefault":  {"only the very name is reserved", "default2", true, "default2", false},
		"Long":             {"the longest name is cut", long, false, long[:52] + "-", true},
		"CutBeforeHyphens": {"no two hyphens where it is cut", strings.Repeat("a", 51) + "--b", false, strings.Repeat("a", 51) + "-", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := DownstreamNamespace("root", tc.namespace, tc.dedicated)
			if !tc.mapped && got != tc.prefix || tc.mapped && (!strings.HasPrefix(got, tc.prefix) || len(got) != len(tc.prefix)+namespaceHashLength) {
				t.Errorf("%s: DownstreamNamespace(%q) = %q, want %q", tc.reason, tc.namespace, got, tc.prefix)
			}
			if errs := validation.IsDNS1123Label(got); len(errs) > 0 {
				t.Errorf("%s: %q is no name of a namespace: %v", tc.reason, got, errs)
			}
		})
	}
}

// TestDownstreamNamespaceKeepsApart: names that are equal in one workspace, or after they are cut, or when workspace and
// namespace are put together, stay different.
func TestDownstreamNamespaceKeepsApart(t *testing.T) {
	seen := map[string]string{}
	long := strings.Repeat("a", 60)
	for i := range 20000 {
		for _, ns := range []string{"shop", long + "x", long + "y"} {
			workspace := logicalcluster.Name(fmt.Sprintf("ws%d", i))
			name, what := DownstreamNamespace(workspace, ns, false), workspace.String()+"/"+ns
			if other, ok := seen[name]; ok {
				t.Fatalf("%s and %s are both %q", other, what, name)
			}
			seen[name] = what
		}
	}
	// It must never change between versions: what runs below is found by it.
	if got, want := DownstreamNamespace("a", "b", false), "b-rhp1g3yd5d"; got != want {
		t.Errorf("the namespace of a/b is %q, want %q as ever", got, want)
	}
}
