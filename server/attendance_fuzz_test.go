package server

import (
	"net/url"
	"strings"
	"testing"

	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// FuzzAttendantRequest: a request below the path of an attendance leads to the one logical cluster that it names and to no other, to
// all of them by the one segment that says so, and to the attendant that it names; a proxy before us, which may look at the
// escaped path, sees the same ones. Nobody is authenticated yet.
func FuzzAttendantRequest(f *testing.F) {
	for _, rest := range []string{
		"root:team/clusters/*", "root:team/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters", "root:team/clusters/shopname/api/v1/pods?watch=1", "root:team/clusters/shopname", "root:team/clusters/shopname/",
		"root:team/clusters/shopname/api/v1/a%2Fb", "root:team/clusters/root:shop/api", "root:team/clusters/", "root:team/clusters", "root:team/api", "team/clusters/*", "root:/clusters/*", ":team/clusters/*",
		"root:org:team/clusters/*", "system:admin:team/clusters/*", "root:team%2Fclusters/shopname/clusters/*", "root:team/clusters/%2A/api", "root:team/clusters/shopname%2F..%2Fbankname/api",
		"root:team/clusters/../bankname/api", "root:team/../root:other/clusters/bankname", "root%3Ateam/clusters/shop%6eame", "root:team/clusters/**", "root:team/clusters/system:admin/api", "/root:team/clusters/shopname",
		"root:team//clusters/shopname", "root:team/clusters//shopname", "root:team/%63lusters/shopname/a%2Fb", "root:te am/clusters/shopname", "root:team/clusters/SHOPNAME", "root:team/clusters/shopname%00/api",
	} {
		f.Add(rest)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		for _, a := range attendance.All {
			u, err := url.ParseRequestURI(a.Path + rest)
			if err != nil {
				return
			}
			asked, cluster, path, err := attendantRequest(a, u)
			if err != nil {
				if asked != nil || cluster != (lcctx.Cluster{}) || path != "" {
					t.Errorf("%q is refused, and leads to %s of %s for %+v", rest, path, cluster, asked)
				}
				continue
			}
			if cluster.Wildcard && cluster.Name != "" || !cluster.Wildcard && lcctx.ValidateName(string(cluster.Name)) != nil {
				t.Errorf("%q leads to %+v", rest, cluster)
			}
			if asked.Attendance != a || lcctx.ValidateName(string(asked.holder)) != nil || strings.ContainsAny(asked.typeName, ":/") || attendance.Name(string(asked.holder), asked.typeName) != asked.Name {
				t.Errorf("%q asks for %+v", rest, asked)
			}
			// Put together again it is the path that came, and nothing of it is escaped but what is passed on.
			border := a.Path + string(asked.Name) + "/clusters/" + cluster.String()
			if u.Path != border+path && (path != "/" || u.Path != border) {
				t.Errorf("%q leads to %q of %s for %s", rest, path, cluster, asked.Name)
			}
			seen := strings.Split(u.EscapedPath(), "/")
			for i, want := range []string{3: string(asked.Name), 4: "clusters", 5: cluster.String()} {
				if got, err := url.PathUnescape(seen[i]); i >= 3 && (err != nil || got != want) {
					t.Errorf("%q leads to %q where who does not unescape sees %q", rest, want, seen[i])
				}
			}
		}
	})
}
