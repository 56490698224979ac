package server

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestExpressionsThatTakeTooMuch: whoever may write policies, webhooks and definitions in a workspace may not take the server's memory
// or a processor for ever with a short expression in any of them.
func TestExpressionsThatTakeTooMuch(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	p, c := r.place(t, shop), r.custom(t, shop)
	const exceeded = "operation cancelled: actual cost limit exceeded: a call of "
	const match = `
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
`
	doubled := "variables.d30.map(x, [x, x])" + strings.Repeat(".map(x, [x, x])", 14)
	variables := `
  variables:
  - {name: d15, expression: '[1].map(x, [x, x])` + strings.Repeat(".map(x, [x, x])", 14) + `'}
  - {name: d30, expression: 'variables.d15.map(x, [x, x])` + strings.Repeat(".map(x, [x, x])", 14) + `'}
`
	validates := func(expression string) func(name string) {
		return func(name string) {
			p.bind(t, "metadata: {name: "+name+"}\nspec:"+match+variables+"  validations: [{expression: '"+expression+"'}]\n",
				"metadata: {name: "+name+"}\nspec: {policyName: "+name+", validationActions: [Deny]}")
		}
	}
	mutates := func(mutation string) func(name string) {
		return func(name string) {
			p.bindMutating(t, "metadata: {name: "+name+"}\nspec:\n  reinvocationPolicy: Never"+match+variables+"  mutations:\n  - "+mutation)
		}
	}
	policies := p.AdmissionregistrationV1()
	for name, tc := range map[string]struct {
		make func(name string)
		want string
	}{
		"validates":        {validates("lists.range(50000000).size() > 0"), exceeded + "lists.range would cost more than the 1000000 that an expression may"},
		"validates-deep":   {validates(doubled + " == " + doubled), exceeded + "_==_ would"},
		"validates-passed": {validates("[1, 2].exists(i, lists.range(50000000).size() > i || true)"), exceeded + "lists.range would"},
		"mutates": {mutates(`{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: "add", path: "/data", value: ` + doubled + `}]'}}`),
			"the result of the expression has more than 1000000 values"},
		"applies": {mutates(`{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{data: Object.data{a: ` + doubled + `}}'}}`),
			"the result of the expression has more than 1000000 values"},
		"asks": {func(name string) {
			hook := validatingBy("ask.webhooks.test", admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/")}, rule("", "configmaps", admissionregistrationv1.Create))
			hook.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "long", Expression: "lists.range(50000000).size() > 0"}}
			_, err := policies.ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.ValidatingWebhook{hook},
			}, metav1.CreateOptions{})
			must(t, err)
		}, exceeded + "lists.range would"},
	} {
		t.Run(name, func(t *testing.T) {
			r.takesLittle(t, func() {
				tc.make(name)
				p.waitRefusal(t, "any", tc.want)
			})
			for _, err := range []error{
				policies.ValidatingAdmissionPolicyBindings().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
				policies.MutatingAdmissionPolicyBindings().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
				policies.ValidatingWebhookConfigurations().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
			} {
				must(t, err)
			}
			p.waitRefusal(t, "any", "")
		})
	}

	// Kubernetes estimates rules of definitions when they are written, and lets this one pass: what is compared is short.
	const text = `{"type":"string","maxLength":300000}`
	c.define(t, widgets(`{"texts":{"type":"object","properties":{"a":`+text+`,"b":`+text+`},"x-kubernetes-validations":[{"rule":"self.a.replace('',self.b).size() > 0"}]}}`))
	long := strings.Repeat("x", 300_000)
	r.takesLittle(t, func() {
		_, err := c.objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), widget("w", map[string]any{"texts": map[string]any{"a": long, "b": long}}), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "cost") {
			t.Errorf("a rule that makes 90 GB of an object ends with %v", err)
		}
		t.Log(err)
	})
}

// takesLittle is that what is done has the server make no more than is collected without being noticed.
func (r *running) takesLittle(t *testing.T, do func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	do()
	runtime.ReadMemStats(&after)
	took := fmt.Sprintf("%v and %d MiB", time.Since(began).Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20)
	t.Log(took)
	if after.TotalAlloc-before.TotalAlloc > 1<<30 {
		t.Errorf("it takes %s", took)
	}
}
