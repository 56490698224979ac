package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nothings is a list of so many schemas that say nothing, of three bytes each.
func nothings(n int) string { return "[" + strings.Repeat("{},", n-1) + "{}]" }

// definitionOf is a definition of widgets.shop.example, as it is sent, and as it is stored if it says that it is established.
func definitionOf(plural, schema, status string) string {
	return fmt.Sprintf(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"%[1]s.shop.example"%[3]s
"spec":{"group":"shop.example","names":{"plural":"%[1]s","singular":"%[1]s","kind":"K%[1]s","listKind":"K%[1]sList"},"scope":"Namespaced","conversion":{"strategy":"None"},"versions":[
{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"%[2]s}}}]}}`, plural, schema, status)
}

// TestDefinitionsThatWeighMuch: a definition that takes too much of the server's memory is refused with the numbers, however it
// is written; so is one that is too much for its workspace.
func TestDefinitionsThatWeighMuch(t *testing.T) {
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) { tokens(o); o.MaxDefinitionBytesPerWorkspace = 4 << 20 })
	r.makeAdmin(t, shop, "alice")
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	at := clustersPrefix + string(shop) + path
	large := `,"properties":{"spec":{"type":"object","allOf":` + nothings(60_000) + `}}`
	ruled := `,"x-kubernetes-validations":[` + strings.Repeat(`{"rule":"1<2"},`, 1000) + `{"rule":"1<3"}]`
	small := definitionOf("widgets", "", "},")
	if got := r.ask(t, asked{method: http.MethodPost, path: at, token: alice, body: small}); got.code != http.StatusCreated {
		t.Fatalf("a small one: %d %s", got.code, got.body)
	}
	for _, test := range []struct {
		reason string
		asked  asked
		says   string
	}{
		{"a large one", asked{method: http.MethodPost, path: at, body: definitionOf("larges", large, "},")}, "decoded: one may take 16 MiB of memory"},
		{"of an administrator", asked{method: http.MethodPost, path: at, token: root, body: definitionOf("larges", large, "},")}, "decoded: one may take 16 MiB of memory"},
		{"a dry run", asked{method: http.MethodPost, path: at + "?dryRun=All", body: definitionOf("larges", large, "},")}, "decoded: one may take 16 MiB of memory"},
		{"it becomes one", asked{method: http.MethodPatch, path: at + "/widgets.shop.example", header: map[string]string{"Content-Type": string(types.JSONPatchType)},
			body: `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/allOf","value":` + nothings(60_000) + `}]`}, "decoded: one may take 16 MiB of memory"},
		{"applied", asked{method: http.MethodPatch, path: at + "/larges.shop.example?fieldManager=test", header: map[string]string{"Content-Type": string(types.ApplyYAMLPatchType)},
			body: definitionOf("larges", large, "},")}, "decoded: one may take 16 MiB of memory"},
		{"too many expressions", asked{method: http.MethodPost, path: at, body: definitionOf("ruled", ruled, "},")}, "1001 expressions in x-kubernetes-validations: one may have 1000"},
		{"a long regular expression", asked{method: http.MethodPost, path: at, body: definitionOf("patterns", `,"properties":{"spec":{"type":"string","pattern":"(([a-z]0123456789012345){31}){32}"}}`, "},")},
			`the regular expression \"(([a-z]0123456789012345){31}){32}\", which takes 2 MiB of memory, compiled: one may take 1 MiB`},
		{"too much for the workspace", asked{method: http.MethodPost, path: at, body: definitionOf("others", `,"allOf":`+nothings(9_000), "},")}, `workspace \"root:shop\" would take 5 MiB of memory, and may take 4 MiB`},
		{"too many expressions for it", asked{method: http.MethodPost, path: at, body: definitionOf("others", strings.Replace(ruled, strings.Repeat(`{"rule":"1<2"},`, 800), "", 1), "},")}, `and may take 4 MiB`},
	} {
		if test.asked.token == "" {
			test.asked.token = alice
		}
		if got := r.ask(t, test.asked); got.code != http.StatusForbidden || !strings.Contains(got.body, test.says) {
			t.Errorf("%s: %d %.600s, want 403 and %q", test.reason, got.code, got.body, test.says)
		}
	}
	if got := r.ask(t, asked{method: http.MethodPost, path: at, token: root, body: definitionOf("others", `,"allOf":`+nothings(9_000), "},")}); got.code != http.StatusCreated {
		t.Errorf("more than the workspace may have, by an administrator: %d %.600s", got.code, got.body)
	}
	if got := r.ask(t, asked{method: http.MethodPatch, path: at + "/others.shop.example", token: alice, header: map[string]string{"Content-Type": string(types.MergePatchType)},
		body: `{"metadata":{"labels":{"a":"b"}},"spec":{"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","allOf":` + nothings(8_000) + `}}}]}}`}); got.code != http.StatusOK {
		t.Errorf("it becomes less, and all are still too much: %d %.600s", got.code, got.body)
	}
}

// TestDefinitionsAreWeighedFirst: what is too large is refused before a policy of the workspace has copies made of it.
func TestDefinitionsAreWeighedFirst(t *testing.T) {
	tokens := withTokens(t)
	r := startServer(t, tokens)
	r.makeAdmin(t, shop, "alice")
	p := r.place(t, shop)
	p.bindMutating(t, `
metadata: {name: fails}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [apiextensions.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [customresourcedefinitions]}]}
  mutations:
  - {patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: "remove", path: "/spec/missing"}]'}}
`)
	post := func(n int) answer {
		return r.ask(t, asked{method: http.MethodPost, path: clustersPrefix + string(shop) + definitionsPath + "?dryRun=All", token: alice, body: definitionOf("widgets", `,"allOf":`+nothings(n), "},")})
	}
	waitFor(t, 10*time.Second, "the policy is asked of a small one", func() (string, bool) {
		got := post(1)
		return fmt.Sprint(got), got.code >= 400 && strings.Contains(got.body, "'fails'")
	})
	if got := post(60_000); got.code != http.StatusForbidden || !strings.Contains(got.body, "decoded: one may take 16 MiB of memory") || strings.Contains(got.body, "'fails'") {
		t.Errorf("a large one: %d %.300s, want that the policy was not asked", got.code, got.body)
	}
}

// TestDefinitionsThatWereTooLarge: what etcd holds of before there was a limit does not keep a server from starting. It is not
// served, says why, and is deleted with its objects, or written anew.
func TestDefinitionsThatWereTooLarge(t *testing.T) {
	etcd := startEtcd(t)
	const prefix = "/registry/apiextensions.k8s.io/customresourcedefinitions/"
	was := `,"uid":"%s","creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"finalizers":["customresourcecleanup.apiextensions.k8s.io"]},
"status":{"conditions":[{"type":"Established","status":"True","lastTransitionTime":null,"reason":"InitialNamesAccepted","message":""}],"storedVersions":["v1"],
"acceptedNames":{"plural":"%[2]s","singular":"%[2]s","kind":"K%[2]s","listKind":"K%[2]sList"}},`
	for i := range 30 { // 3 GB, decoded, in two pages of the first list
		plural := fmt.Sprintf("larges%d", i)
		row := definitionOf(plural, `,"properties":{"spec":{"type":"object","allOf":`+nothings(100_000)+`}}`, fmt.Sprintf(was, fmt.Sprintf("a%d", i), plural))
		_, err := etcd.Put(t.Context(), prefix+string(shop)+"/"+plural+".shop.example", row)
		must(t, err)
	}
	const object = "/registry/shop.example/larges0/" + string(shop) + "/default/w"
	_, err := etcd.Put(t.Context(), object, `{"kind":"Klarges0","apiVersion":"shop.example/v1","metadata":{"name":"w","namespace":"default","uid":"w","creationTimestamp":"2026-01-01T00:00:00Z"}}`)
	must(t, err)

	r := serveOn(t, etcd, few{}, nil)
	c := r.custom(t, shop)
	api := c.definitions.ApiextensionsV1().CustomResourceDefinitions()
	all, err := api.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(all.Items) != 30 {
		t.Errorf("%d definitions are listed, want 30", len(all.Items))
	}
	for i := range all.Items {
		crd := &all.Items[i]
		if says := crd.Status.Conditions; len(says) != 1 || says[0].Status != apiextensionsv1.ConditionFalse || !strings.Contains(says[0].Message, "it has 100002 schemas") {
			t.Errorf("%s says %+v", crd.Name, says)
		}
	}
	objects := c.objects.Resource(widgetsV1.GroupVersion().WithResource("larges0"))
	if _, err := objects.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its objects: %v, want that there is no such resource", err)
	}
	first := "larges0.shop.example"
	_, err = api.Patch(t.Context(), first, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "would lose its schemas") {
		t.Errorf("a label: %v, want 403", err)
	}
	seen, err := api.Get(t.Context(), first, metav1.GetOptions{})
	must(t, err)
	must(t, api.Delete(t.Context(), first, metav1.DeleteOptions{}))
	c.awaitGone(t, seen)
	if left, err := etcd.Get(t.Context(), object); err != nil || left.Count != 0 {
		t.Errorf("an object is left of it: %v", err)
	}
	second, err := api.Get(t.Context(), "larges1.shop.example", metav1.GetOptions{})
	must(t, err)
	second.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object"}
	second, err = api.Update(t.Context(), second, metav1.UpdateOptions{})
	must(t, err)
	c.await(t, second, apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
	if _, err := c.objects.Resource(widgetsV1.GroupVersion().WithResource("larges1")).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("written anew it is not served: %v", err)
	}
	third := definitionOf("larges2", "", "},")
	applies := metav1.PatchOptions{FieldManager: "somebody"}
	if _, err := api.Patch(t.Context(), "larges2.shop.example", types.ApplyPatchType, []byte(third), applies); !apierrors.IsConflict(err) {
		t.Errorf("applied server-side: %v, want a conflict, of which its condition says what to do", err)
	}
	applies.Force = new(true)
	applied, err := api.Patch(t.Context(), "larges2.shop.example", types.ApplyPatchType, []byte(third), applies)
	must(t, err)
	c.await(t, applied, apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
}
