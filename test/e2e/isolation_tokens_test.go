package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/client"
)

// TestI1_NoBleed_ContinueTokens takes continue tokens of b to a, and forges others: none leads out of a.
func TestI1_NoBleed_ContinueTokens(t *testing.T) {
	t.Parallel()
	w := newIsoWorld(t)
	for _, r := range w.resources {
		t.Run(r.Resource+"."+r.Group, func(t *testing.T) {
			// A second object in b, so that there is a second page.
			inB := client.In(t.Context(), w.b)
			if second := w.second(t, r, "b"); second != nil {
				if _, err := w.in(r).Create(inB, second, metav1.CreateOptions{}); err != nil {
					t.Fatalf("create a second in b: %v", err)
				}
			}
			scopes := []string{""}
			if r.namespaced {
				scopes = append(scopes, isoNamespace)
			}
			for _, namespace := range scopes {
				w.foreignTokens(t, r, namespace)
			}
		})
	}
}

func (w *isoWorld) foreignTokens(t *testing.T, r isoResource, namespace string) {
	t.Helper()
	tokens := map[string]string{}
	first := w.do(t, request{path: r.path(w.b.String(), namespace, "") + "?limit=1", token: tokenB})
	var list metav1.List
	if err := json.Unmarshal([]byte(first.body), &list); err != nil || first.code != http.StatusOK {
		t.Fatalf("first page in b: %d %v %s", first.code, err, first.body)
	}
	if list.Continue != "" {
		tokens["b's own"] = list.Continue
		if text, err := base64.RawURLEncoding.DecodeString(list.Continue); err != nil || strings.Contains(string(text), w.b.String()) {
			t.Errorf("b's token names its logical cluster: %s, %v", text, err)
		}
	} else if w.second(t, r, "b") != nil {
		t.Errorf("b has no second page of %s", r.Resource)
	}
	a, b := w.a.String(), w.b.String()
	for _, start := range []string{
		"", "/", "//", "..", "../", "../" + b, "../" + b + "/", "/../" + b + "/", "/" + b + "/", b + "/", b,
		"../" + b + "/" + isoNamespace + "/", "../../" + b + "/" + isoNamespace + "/", "../../../secrets/" + b + "/",
		"x/../../" + b + "/", "./../" + b + "/", "/registry/" + r.Resource + "/" + b + "/", "registry/secrets/" + b + "/",
		"\x00", "\xff\xff", strings.Repeat("~", 300), isoNamespace + "/", a + "/../" + b + "/",
	} {
		rvs := []int64{0, -1, 1}
		if start == "/" && r.Resource == "configmaps" {
			rvs = append(rvs, 1<<62) // the server waits 3 s for each
		}
		for _, rv := range rvs {
			token, err := json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": rv, "start": start})
			if err != nil {
				t.Fatal(err)
			}
			tokens[fmt.Sprintf("start %.40q at %d", start, rv)] = base64.RawURLEncoding.EncodeToString(token)
		}
	}
	tokens["no base64"] = "%%%"
	tokens["no JSON"] = base64.RawURLEncoding.EncodeToString([]byte(b))
	tokens["another version"] = base64.RawURLEncoding.EncodeToString([]byte(`{"v":"v2","rv":1,"start":"` + b + `/"}`))
	for what, token := range tokens {
		for _, limit := range []string{"", "&limit=1"} {
			got := w.do(t, request{path: r.path(a, namespace, "") + "?continue=" + url.QueryEscape(token) + limit, token: tokenA})
			switch got.code {
			case http.StatusOK:
				w.mine(t, "list from the token "+what, got.items(t)...)
			case http.StatusBadRequest, http.StatusGone, http.StatusGatewayTimeout: // the last: a resourceVersion to come
			default:
				t.Errorf("list in a with the token %s%s: %d %s", what, limit, got.code, got.message())
			}
			// The start of a token is the caller's own words, and may come back in an error; what b holds may not.
			if strings.Contains(got.body, canary) {
				t.Errorf("list in a with the token %s%s shows b's canary: %s", what, limit, got.body)
			}
		}
	}
}
