package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestHomeWorkspaces: who is in a group of --home-workspaces has a workspace of his own, made when he first enters it, whose
// admin he is and which no other user sees; nobody else has one, and nobody by another's word.
func TestHomeWorkspaces(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	rows := "ann-token,ann,1,staff\nben-token,oidc:ben@shop.example,2,staff\ncarl-token,carl,3\n"
	if err := os.WriteFile(tokens, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	atoll := framework.StartAtoll(t, "--token-auth-file="+tokens, "--home-workspaces=staff")
	ann, ben := person(t, atoll, "ann-token"), person(t, atoll, "ben-token")
	const stranger = "there is no such workspace, or you have no access to it"
	homes := map[*framework.Atoll]string{}
	for _, who := range []*framework.Atoll{ann, ben} {
		who.MustRun("workspace", "use")
		homes[who] = strings.TrimSpace(who.MustRun("workspace", "current", "--short"))
		if !strings.HasPrefix(homes[who], "root:users:") {
			t.Errorf("the home is %q", homes[who])
		}
		who.MustRun("kubectl", "create", "configmap", "mine")
		who.MustRun("workspace", "create", "below")
	}
	if homes[ann] == homes[ben] {
		t.Fatalf("both are at home in %s", homes[ann])
	}
	for who, other := range map[*framework.Atoll]*framework.Atoll{ann: ben, ben: ann} {
		for _, path := range []string{homes[other], homes[other] + ":below", "root:users"} {
			refused(t, who, stranger, "workspace", "use", path)
			refused(t, who, stranger, "kubectl", "--server="+atoll.URL+"/clusters/"+path, "get", "--raw", "/api/v1/configmaps")
		}
	}

	// The same again is the same: by kubectl as in kcp, in whatever form.
	ann.MustRun("workspace", "use", "~")
	if again := strings.TrimSpace(ann.MustRun("workspace", "current", "--short")); again != homes[ann] {
		t.Errorf("ann is at home in %s and in %s", homes[ann], again)
	}
	server := "--server=" + atoll.URL + "/clusters/root"
	table := ann.MustRun("kubectl", server, "get", "workspaces.tenancy.kcp.io", "~")
	if !strings.Contains(table, "PHASE") || !strings.Contains(table, "Ready") || !strings.Contains(table, atoll.URL+"/clusters/"+homes[ann]) {
		t.Errorf("kubectl get workspace ~:\n%s", table)
	}
	clients := atoll.Clients()
	all := &tenancyv1alpha1.WorkspaceList{}
	if err := clients.Objects.List(client.In(t.Context(), "root:users"), all); err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, w := range all.Items {
		owners["root:users:"+w.Name] = tenancyv1alpha1.OwnerOf(&w)
	}
	if len(owners) != 2 || owners[homes[ann]] != "ann" || owners[homes[ben]] != "oidc:ben@shop.example" {
		t.Errorf("root:users holds %v, want the two homes", owners)
	}

	// Who else asks has none, and nothing is made.
	refused(t, person(t, atoll, "carl-token"), "no home workspace is made for you", "workspace", "use")
	refused(t, atoll, "an administrator of the server has no home workspace", "workspace", "use", "~")
	config := rest.CopyConfig(atoll.Config())
	config.Impersonate = rest.ImpersonationConfig{UserName: "dora", Groups: []string{"staff", "system:authenticated"}}
	dora, err := client.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := dora.Objects.Get(client.In(t.Context(), "root"), types.NamespacedName{Name: "~"}, &tenancyv1alpha1.Workspace{}); !apierrors.IsForbidden(err) {
		t.Errorf("an administrator makes a home in another's name: %v", err)
	}
	if err := clients.Objects.List(client.In(t.Context(), "root:users"), all); err != nil || len(all.Items) != 2 {
		t.Errorf("root:users holds %d workspaces, want 2; %v", len(all.Items), err)
	}
}

// person is the server with the kubeconfig of somebody with a token.
func person(t *testing.T, atoll *framework.Atoll, token string) *framework.Atoll {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["atoll"] = &clientcmdapi.Cluster{Server: atoll.URL + "/clusters/root", CertificateAuthorityData: atoll.Config().CAData}
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["atoll"] = &clientcmdapi.Context{Cluster: "atoll", AuthInfo: "me"}
	config.CurrentContext = "atoll"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return &framework.Atoll{Process: atoll.Process, URL: atoll.URL, Kubeconfig: file}
}

// refused wants a command to fail with words.
func refused(t *testing.T, who *framework.Atoll, words string, args ...string) {
	t.Helper()
	if out, err := who.Run(args...); err == nil || !strings.Contains(out, words) {
		t.Errorf("atoll %s: %v, want a refusal with %q:\n%s", strings.Join(args, " "), err, words, out)
	}
}
