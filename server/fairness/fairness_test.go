package fairness

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"

	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Who lists all that wait for an attendant has the turns of the workspace that holds the type, and not those of all who do so.
func TestCharged(t *testing.T) {
	all, shop := lcctx.Cluster{Wildcard: true}, lcctx.Cluster{Name: "shop"}
	for _, tc := range []struct {
		reason    string
		cluster   lcctx.Cluster
		attendant attendance.Attendant
		want      logicalcluster.Name
	}{
		{"anybody's request in a workspace", shop, "", "shop"},
		{"an administrator's for all", all, "", ""},
		{"an attendant's for all that wait", all, "platform:team", "platform"},
		{"an attendant's in one of them", shop, "platform:team", "shop"},
	} {
		ctx := lcctx.WithCluster(context.Background(), tc.cluster)
		if tc.attendant != "" {
			ctx = attendance.With(ctx, attendance.As{Attendance: attendance.Initialization, Name: tc.attendant})
		}
		if got := charged(ctx); got.Name != tc.want {
			t.Errorf("%s is charged to %q, want %q", tc.reason, got.Name, tc.want)
		}
	}
}
