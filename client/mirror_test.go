package client

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func TestMirrorOf(t *testing.T) {
	for said, tc := range map[string]struct {
		want   logicalcluster.Name
		reason string
	}{
		"":                 {"", "not made yet"},
		"abcdefghijklmno1": {"abcdefghijklmno1", "the form of those that are made"},
		"root":             {"", "a workspace"},
		"system:admin":     {"", "the server's own"},
		"abcdefgh/../root": {"", "a path"},
	} {
		target := &workloadv1alpha1.SyncTarget{Status: workloadv1alpha1.SyncTargetStatus{Mirror: said}}
		if got := MirrorOf(target); got != tc.want {
			t.Errorf("%s: MirrorOf(%q) = %q, want %q", tc.reason, said, got, tc.want)
		}
	}
}
