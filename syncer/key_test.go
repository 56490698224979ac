package syncer

import (
	"testing"

	"atoll.dev/atoll/internal/queue"
)

// TestKeysAreOfTenants: a namespace waits for its turn as what is in it does.
func TestKeysAreOfTenants(t *testing.T) {
	for _, k := range []key{{namespacesGVR, "", "shop-1"}, {configMapsGVR, "shop-1", "settings"}} {
		if got := queue.Tenanted(k).Tenant(); got != "shop-1" {
			t.Errorf("%s is of %q, want shop-1", k, got)
		}
	}
}
