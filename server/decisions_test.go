package server

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
)

// Placements are written by the server alone, whoever asks and however. Administrators of the server may delete one.
func TestDecisionsAreTheServers(t *testing.T) {
	r := startServer(t, withTokens(t))
	token := r.makeRobot(t, shop)
	r.makeAdmin(t, shop, "alice")
	r.makeAdmin(t, shop, robotUser)
	clients, err := client.New(r.LoopbackConfig())
	must(t, err)
	inShop := client.In(t.Context(), shop)
	placement := func(name, cluster string) *placementv1alpha1.Placement {
		return &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: placementv1alpha1.PlacementSpec{
			Namespace: "default", Clusters: []placementv1alpha1.PlacedCluster{{Name: cluster, UID: "1", Workspace: "root", Mirror: "m", Weight: 1}},
		}}
	}
	decided := placement("default", "east")
	must(t, clients.Objects.Create(inShop, decided))

	const (
		path   = "/clusters/shopname/apis/placement.atoll.dev/v1alpha1/placements"
		itself = path + "/default"
		spec   = `"spec":{"namespace":"default","clusters":[{"name":"west","uid":"2","workspace":"root","mirror":"n","weight":1}]}`
		status = `"status":{"clusters":[{"name":"east","phase":"Ready"}]}`
		kind   = `"apiVersion":"placement.atoll.dev/v1alpha1","kind":"Placement"`
	)
	whole := func(name, more string) string {
		return `{` + kind + `,"metadata":{"name":"` + name + `","resourceVersion":"` + decided.ResourceVersion + `"},` + spec + more + `}`
	}
	patch := func(kind string) map[string]string { return map[string]string{"Content-Type": "application/" + kind} }
	writes := map[string]asked{
		"create":              {method: http.MethodPost, path: path, body: `{` + kind + `,"metadata":{"name":"mine"},` + spec + `}`},
		"create, dry":         {method: http.MethodPost, path: path + "?dryRun=All", body: `{` + kind + `,"metadata":{"name":"mine"},` + spec + `}`},
		"apply what is not":   {method: http.MethodPatch, path: path + "/mine?fieldManager=x", header: patch("apply-patch+yaml"), body: `{` + kind + `,"metadata":{"name":"mine"},` + spec + `}`},
		"update":              {method: http.MethodPut, path: itself, body: whole("default", "")},
		"merge patch":         {method: http.MethodPatch, path: itself, header: patch("merge-patch+json"), body: `{` + spec + `}`},
		"JSON patch":          {method: http.MethodPatch, path: itself, header: patch("json-patch+json"), body: `[{"op":"replace","path":"/spec/clusters/0/name","value":"west"}]`},
		"patch of metadata":   {method: http.MethodPatch, path: itself, header: patch("merge-patch+json"), body: `{"metadata":{"finalizers":["a.example/b"]}}`},
		"apply":               {method: http.MethodPatch, path: itself + "?fieldManager=x&force=true", header: patch("apply-patch+yaml"), body: `{` + kind + `,` + spec + `}`},
		"update of status":    {method: http.MethodPut, path: itself + "/status", body: whole("default", ","+status)},
		"patch of status":     {method: http.MethodPatch, path: itself + "/status", header: patch("merge-patch+json"), body: `{` + status + `}`},
		"apply of the status": {method: http.MethodPatch, path: itself + "/status?fieldManager=x&force=true", header: patch("apply-patch+yaml"), body: `{` + kind + `,` + status + `}`},
	}
	as := func(name string) map[string]string {
		return map[string]string{authenticationv1.ImpersonateUserHeader: name, authenticationv1.ImpersonateGroupHeader: "system:masters"}
	}
	const tells = "placement.atoll.dev/clusters"
	for who, by := range map[string]struct {
		token  string
		header map[string]string
		told   string
	}{
		"an administrator of the server": {root, nil, tells},
		"one who says to be another":     {root, as("somebody"), tells},
		"one who says to be the server":  {root, as("system:apiserver"), "cannot be impersonated"},
		"an admin of the workspace":      {alice, nil, "annotate"},
		"a ServiceAccount that is admin": {token, nil, "annotate"},
	} {
		for what, write := range writes {
			write.token, write.header = by.token, maps.Clone(write.header)
			if write.header == nil {
				write.header = map[string]string{}
			}
			maps.Copy(write.header, by.header)
			if got := r.ask(t, write); got.code != http.StatusForbidden || !strings.Contains(got.body, by.told) {
				t.Errorf("%s by %s: %d %s, want 403 and %q", what, who, got.code, got.body, by.told)
			}
		}
	}
	all := &placementv1alpha1.PlacementList{}
	must(t, clients.Objects.List(inShop, all))
	if diff := cmp.Diff([]placementv1alpha1.Placement{*decided}, all.Items); diff != "" {
		t.Errorf("after what was refused (-want +got):\n%s", diff)
	}

	// The server goes on to decide, and to tell what comes of it.
	reported := decided.DeepCopy()
	reported.Spec.Clusters = nil
	must(t, clients.Objects.Update(inShop, reported))
	reported.Status.Clusters = []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: placementv1alpha1.PhaseReady}}
	must(t, clients.Objects.Status().Update(inShop, reported))

	// To delete one has the server decide anew. In a workspace nobody has a say in when it does.
	one := asked{method: http.MethodDelete, path: itself}
	every := asked{method: http.MethodDelete, path: path}
	for _, deletes := range []asked{one, every} {
		for _, deletes.token = range []string{alice, token} {
			if got := r.ask(t, deletes); got.code != http.StatusForbidden {
				t.Errorf("DELETE %s in the workspace: %d %s, want 403", deletes.path, got.code, got.body)
			}
		}
		deletes.token = root
		must(t, ctrlclient.IgnoreAlreadyExists(clients.Objects.Create(inShop, placement("default", "east"))))
		if got := r.ask(t, deletes); got.code != http.StatusOK {
			t.Errorf("DELETE %s by an administrator of the server: %d %s, want 200", deletes.path, got.code, got.body)
		}
		if err := clients.Objects.Get(inShop, types.NamespacedName{Name: "default"}, &placementv1alpha1.Placement{}); ctrlclient.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("after DELETE %s: %v, want NotFound", deletes.path, err)
		}
	}
}
