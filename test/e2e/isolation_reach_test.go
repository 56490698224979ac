package e2e

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	// reachNamespace holds what acts upon requests. Walks do not look into it.
	reachNamespace = "reach"
	// refusedName is refused by a policy of a, in these words.
	refusedName, refusedWords = "walk-7", "a policy of a refuses it"
	// ofTheWalk says in CEL whether a request is one of the walk: whoever is not an administrator, or the server.
	ofTheWalk = "request.userInfo.username == 'alice' || request.userInfo.username.startsWith('system:serviceaccount:" + reachNamespace + ":')"
)

// reach is what acts upon the requests of each workspace.
type reach struct {
	url           string // of the webhooks, which stand at the paths of their letters
	bundle        []byte
	robot, forged string // a's ServiceAccount's token, and the same with b as its issuer
	// asked is how often the webhooks of a and b were asked.
	asked [2]atomic.Int64
}

// act gives both workspaces custom resources of one name, with a default in b; a cluster-admin that is a ServiceAccount; and webhooks
// and policies for all requests. Those of b refuse and change what they see of the walk, which is nothing.
func (r *reach) act(t *testing.T, w *isoWorld) {
	t.Helper()
	custom := isoResource{
		GroupVersionResource: schema.GroupVersionResource{Group: "iso.example", Version: "v1", Resource: "isos"}, kind: "Iso", namespaced: true,
		manifest: &unstructured.Unstructured{Object: map[string]any{"apiVersion": "iso.example/v1", "kind": "Iso", "metadata": map[string]any{"name": "iso"}}},
	}
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	schemaOfB := `[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema","value":{"type":"object","properties":{"secret":{"type":"string","default":"` + canary + `"}}}}]`
	if _, err := w.clients.Dynamic.Resource(definitions).Patch(client.In(t.Context(), w.b), "isos.iso.example", types.JSONPatchType, []byte(schemaOfB), metav1.PatchOptions{}); err != nil {
		t.Fatalf("give isos of b a default: %v", err)
	}
	w.resources = append(w.resources, custom)
	for letter, cluster := range map[string]logicalcluster.Name{"a": w.a, "b": w.b} {
		ctx := client.In(t.Context(), cluster)
		framework.Eventually(t, patience, "isos are made in "+letter, func() string {
			made, err := w.in(custom).Create(ctx, w.object(custom, letter), metav1.CreateOptions{})
			if err != nil {
				return err.Error()
			}
			if _, ok := made.Object["secret"]; ok == (letter == "b") {
				return ""
			}
			if err := w.in(custom).Delete(ctx, made.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("made with the schema of before: %v", made.Object)
		})
		r.arm(t, w, letter, cluster)
	}
	r.tokens(t, w)
	r.stands(t, w)
}

// stands waits until what acts upon the requests of each workspace does: at the start, and at the end of a walk still.
func (r *reach) stands(t *testing.T, w *isoWorld) {
	t.Helper()
	for i, cluster := range []logicalcluster.Name{w.a, w.b} {
		before := r.asked[i].Load()
		try := func(name string) error {
			tried := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: reachNamespace, Name: name}}
			return w.clients.Objects.Create(client.In(t.Context(), cluster), tried, ctrlclient.DryRunAll)
		}
		framework.Eventually(t, patience, "webhooks and policies act in "+cluster.String(), func() string {
			if err := try("tried"); err != nil || r.asked[i].Load() == before {
				return fmt.Sprintf("the webhook was asked %d times: %v", r.asked[i].Load()-before, err)
			}
			err := try(refusedName)
			if refused := err != nil && strings.Contains(err.Error(), refusedWords); refused != (i == 0) {
				return fmt.Sprintf("the policy of a refuses it: %t: %v", refused, err)
			}
			return ""
		})
	}
}

// newReach starts the webhooks of a and b. It is called before the world is made, so that they end after it: whose controllers ask them
// until their server has stopped.
func newReach(t *testing.T) *reach {
	t.Helper()
	r := &reach{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Logf("who asked the webhook has gone: %v", err)
			return // a server that is stopped, in the middle of its question
		}
		var review struct {
			APIVersion, Kind string
			Request          struct {
				UID      types.UID
				UserInfo authenticationv1.UserInfo
			}
		}
		if err := json.Unmarshal(body, &review); err != nil {
			t.Errorf("the webhook is asked %s: %v", body, err)
		}
		ofWalk := review.Request.UserInfo.Username == "alice" || strings.HasPrefix(review.Request.UserInfo.Username, "system:serviceaccount:"+reachNamespace+":")
		switch req.URL.Path {
		case "/a":
			r.asked[0].Add(1)
			if strings.Contains(string(body), canary) {
				t.Errorf("the webhook of a is shown an object of b: %s", body)
			}
		default:
			r.asked[1].Add(1)
			if ofWalk {
				t.Errorf("the webhook of b is asked about a request of a: %s", body)
			}
		}
		if _, err := fmt.Fprintf(rw, `{"apiVersion":%q,"kind":%q,"response":{"uid":%q,"allowed":true}}`, review.APIVersion, review.Kind, review.Request.UID); err != nil {
			t.Errorf("answer: %v", err)
		}
	}))
	t.Cleanup(server.Close)
	r.url, r.bundle = server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return r
}

// arm gives a workspace a webhook, and policies.
func (r *reach) arm(t *testing.T, w *isoWorld, letter string, cluster logicalcluster.Name) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: reachNamespace}
	every := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
	}
	constraints := &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: every}}}
	refuses, words := "object == null || object.metadata.?name.orValue('') != '"+refusedName+"'", refusedWords
	if letter == "b" {
		meta.Annotations = map[string]string{"example.invalid/canary": canary}
		refuses, words = "!("+ofTheWalk+")", canary
	}
	objects := []ctrlclient.Object{
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "reach.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new(r.url + "/" + letter), CABundle: r.bundle},
			Rules: []admissionregistrationv1.RuleWithOperations{every}, AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
		}}},
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: constraints, Validations: []admissionregistrationv1.Validation{{Expression: refuses, Message: words}},
		}},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: reachNamespace, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		}},
	}
	if letter == "b" {
		writes := admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: *every.DeepCopy()}
		writes.Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
		objects = append(objects,
			&admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints:   &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{writes}},
				MatchConditions:    []admissionregistrationv1.MatchCondition{{Name: "walk", Expression: ofTheWalk}},
				ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
				Mutations: []admissionregistrationv1.Mutation{{
					PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
						Expression: "Object{metadata: Object.metadata{labels: {'canary': '" + canary + "'}}}",
					},
				}},
			}},
			&admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: reachNamespace}},
		)
	}
	for _, object := range objects {
		if err := w.clients.Objects.Create(client.In(t.Context(), cluster), object); err != nil {
			t.Fatalf("create %T in %s: %v", object, letter, err)
		}
	}
}

// tokens makes a ServiceAccount that is cluster-admin in a, and one of the same name in b; and forges a token of b's from that of a's.
func (r *reach) tokens(t *testing.T, w *isoWorld) {
	t.Helper()
	issuers := map[logicalcluster.Name]string{}
	for _, cluster := range []logicalcluster.Name{w.b, w.a} {
		ctx := client.In(t.Context(), cluster)
		for _, object := range []ctrlclient.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: reachNamespace}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: reachNamespace, Name: "robot"}},
			&rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "robot"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
				Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: reachNamespace, Name: "robot"}},
			},
		} {
			if err := w.clients.Objects.Create(ctx, object); err != nil {
				t.Fatalf("create %T in %s: %v", object, cluster, err)
			}
		}
		asked := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 60 * 60))}}
		got, err := w.clients.Kube.CoreV1().ServiceAccounts(reachNamespace).CreateToken(ctx, "robot", asked, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("ask for a token in %s: %v", cluster, err)
		}
		r.robot = got.Status.Token // of a in the end
		issuers[cluster] = claims(t, r.robot)["iss"].(string)
	}
	header, rest, _ := strings.Cut(r.robot, ".")
	_, signature, _ := strings.Cut(rest, ".")
	payload := claims(t, r.robot)
	payload["iss"] = issuers[w.b]
	r.forged = header + "." + base64.RawURLEncoding.EncodeToString(mustJSON(t, payload)) + "." + signature
	framework.Eventually(t, patience, "the robot of a may do everything there", func() string {
		got := w.do(t, request{path: "/clusters/" + w.a.String() + "/api/v1/secrets", token: r.robot})
		if got.code != http.StatusOK {
			return fmt.Sprintf("%d %.300s", got.code, got.body)
		}
		return ""
	})
}

// claims are what a token says.
func claims(t *testing.T, token string) map[string]any {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("a token of %d parts", len(parts))
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatalf("decode a token's claims: %v", err)
	}
	var said map[string]any
	if err := json.Unmarshal(data, &said); err != nil {
		t.Fatalf("read a token's claims: %v", err)
	}
	return said
}
