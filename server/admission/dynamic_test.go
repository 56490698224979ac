package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	lc "github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	"k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
	"atoll.dev/atoll/server/webhooks"
)

// webhookIn is a configuration of a logical cluster, as stored.
func webhookIn(cluster lc.Name, name, url string) *admissionregistration.ValidatingWebhookConfiguration {
	fail, none, equivalent := admissionregistration.Fail, admissionregistration.SideEffectClassNone, admissionregistration.Equivalent
	return &admissionregistration.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.Annotation: string(cluster)}},
		Webhooks: []admissionregistration.ValidatingWebhook{{
			Name: name + ".test", ClientConfig: admissionregistration.WebhookClientConfig{URL: &url},
			Rules: []admissionregistration.RuleWithOperations{{
				Operations: []admissionregistration.OperationType{admissionregistration.OperationAll},
				Rule:       admissionregistration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			FailurePolicy: &fail, SideEffects: &none, MatchPolicy: &equivalent,
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}, AdmissionReviewVersions: []string{"v1"},
		}},
	}
}

func validatingPluginOf(t *testing.T, configurations *Configurations, objects Objects, caller *webhooks.Caller) *dynamic {
	t.Helper()
	return newValidatingWebhooks(Config{
		Objects: objects, Configurations: configurations, Webhooks: caller,
		Terminating: func(name lc.Name) bool { return name == "going" },
	}, newOwnCalls())
}

var aConfigMap = what{resource: "configmaps", kind: "ConfigMap", namespace: "default", name: "c", operation: admission.Create, object: &core.ConfigMap{}}

// TestInstances: there is one for each logical cluster that has configurations, as long as they do not change, and nothing
// for the others; there are never more than so many, and none runs anything.
func TestInstances(t *testing.T) {
	configurations := configurationsOf(t, nil)
	store := &configurationStore{configurations, validatingWebhooks}
	d := validatingPluginOf(t, configurations, nil, webhooks.NewCaller(webhooks.Addresses{}))
	instance := func(cluster string) admission.Interface {
		t.Helper()
		ctx := logicalcluster.WithCluster(context.Background(), logicalcluster.Cluster{Name: lc.Name(cluster), Mirror: cluster == "east"})
		plugin, err := d.instance(ctx, aConfigMap.attributes())
		if err != nil {
			t.Fatalf("%s: %v", cluster, err)
		}
		return plugin
	}
	before := runtime.NumGoroutine()
	for i := range 1000 {
		if instance(fmt.Sprintf("idle%d", i)) != nil {
			t.Fatal("something is called for a logical cluster without configurations")
		}
	}
	if len(d.instances) != 0 {
		t.Errorf("%d instances of logical clusters without configurations", len(d.instances))
	}
	add := func(cluster lc.Name, name string) {
		t.Helper()
		if err := store.Add(webhookIn(cluster, name, "https://webhook.invalid/")); err != nil {
			t.Fatal(err)
		}
	}
	for _, cluster := range []lc.Name{"shop", "bank", "going", "east"} {
		add(cluster, "same")
	}
	shop := instance("shop")
	if shop == nil || instance("shop") != shop {
		t.Error("a logical cluster's instance is not used again")
	}
	if bank := instance("bank"); bank == nil || bank == shop {
		t.Error("two logical clusters have one instance")
	}
	if instance("going") != nil {
		t.Error("webhooks have a say in the deletion of a logical cluster")
	}
	ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
	if plugin, err := d.instance(ctx, what{group: "authentication.k8s.io", resource: "tokenreviews", operation: admission.Create}.attributes()); plugin != nil || err != nil {
		t.Errorf("webhooks see tokens of people (%v)", err)
	}
	if instance("east") != nil {
		t.Error("webhooks have a say in a mirror")
	}
	add("bank", "another")
	if instance("shop") != shop {
		t.Error("a change elsewhere makes an instance anew")
	}
	add("shop", "another")
	changed := instance("shop")
	if changed == shop {
		t.Error("an instance outlives a change")
	}
	for _, name := range []string{"same", "another"} {
		if err := store.Delete(webhookIn("shop", name, "")); err != nil {
			t.Fatal(err)
		}
	}
	if instance("shop") != nil {
		t.Error("webhooks are called that are gone")
	}
	if instance("bank") == nil {
		t.Error("webhooks of another logical cluster are gone, too")
	}

	const room = 20
	d.most = room * (instanceBytes + pluginBytes + webhookBytes)
	for i := range room + 10 {
		add(lc.Name(fmt.Sprintf("busy%d", i)), "same")
		instance(fmt.Sprintf("busy%d", i))
	}
	if len(d.instances) != room || d.bytes != d.most || d.instances["busy29"] == nil || d.instances["busy9"] != nil {
		t.Errorf("%d instances of %d bytes are kept, want the last %d of %d bytes", len(d.instances), d.bytes, room, d.most)
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
	// A list after a lost watch may be without what went meanwhile.
	if err := store.Replace([]any{webhookIn("bank", "same", "https://webhook.invalid/")}, "9"); err != nil {
		t.Fatal(err)
	}
	if instance("busy1") != nil || instance("bank") == nil {
		t.Error("a new list is not what there is")
	}
}

// What the server alone writes, no webhook hears of.
func TestSystemStateIsNotConfigured(t *testing.T) {
	for _, tc := range []struct {
		group, resource, subresource string
		want                         bool
	}{
		{"placement.atoll.dev", "placements", "", true},
		{"placement.atoll.dev", "placementpolicies", "", false},
		{"core.kcp.io", "logicalclusters", "", true},
		{"tenancy.kcp.io", "workspaces", "", false},
		{"tenancy.kcp.io", "workspaces", "status", true},
		{"workload.kcp.io", "synctargets", "status", true},
		{"apps", "deployments", "status", false},
	} {
		a := what{group: tc.group, resource: tc.resource, subresource: tc.subresource, operation: admission.Update}.attributes()
		if got := isSystemState(a); got != tc.want {
			t.Errorf("%s/%s/%s: %t, want %t", tc.group, tc.resource, tc.subresource, got, tc.want)
		}
	}
}

// What an administrator writes to objects of our own kinds, nobody in the workspace changes.
func TestAdministrationIsNotChanged(t *testing.T) {
	master := &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
	itself := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	for _, tc := range []struct {
		group, resource string
		who             user.Info
		want            bool
	}{
		{"tenancy.kcp.io", "workspaces", master, true},
		{"tenancy.kcp.io", "workspaces", itself, true},
		{"tenancy.kcp.io", "workspaces", alice, false},
		{"tenancy.kcp.io", "workspacetypes", master, true},
		{"core.kcp.io", "logicalclusters", master, true},
		{"workload.kcp.io", "synctargets", master, true},
		{"workload.kcp.io", "synctargets", alice, false},
		{"placement.atoll.dev", "placementpolicies", master, true},
		{"placement.atoll.dev", "placements", itself, true},
		{"", "configmaps", master, false},
		{"apps", "deployments", itself, false},
	} {
		a := what{group: tc.group, resource: tc.resource, operation: admission.Update, who: tc.who}.attributes()
		if got := isAdministration(a); got != tc.want {
			t.Errorf("%s/%s by %s: %t, want %t", tc.group, tc.resource, tc.who.GetName(), got, tc.want)
		}
	}
}

// policyIn is a policy of a logical cluster with its binding, as stored.
func policyIn(cluster lc.Name, name, expression string) (*admissionregistration.ValidatingAdmissionPolicy, *admissionregistration.ValidatingAdmissionPolicyBinding) {
	fail, equivalent := admissionregistration.Fail, admissionregistration.Equivalent
	meta := metav1.ObjectMeta{Name: name, UID: types.UID(string(cluster) + name), Annotations: map[string]string{logicalcluster.Annotation: string(cluster)}}
	return &admissionregistration.ValidatingAdmissionPolicy{
			ObjectMeta: meta,
			Spec: admissionregistration.ValidatingAdmissionPolicySpec{
				FailurePolicy: &fail,
				MatchConstraints: &admissionregistration.MatchResources{
					NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}, MatchPolicy: &equivalent,
					ResourceRules: []admissionregistration.NamedRuleWithOperations{{RuleWithOperations: admissionregistration.RuleWithOperations{
						Operations: []admissionregistration.OperationType{admissionregistration.Create},
						Rule:       admissionregistration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"namespaces"}},
					}}},
				},
				Validations: []admissionregistration.Validation{{Expression: expression}},
			},
		}, &admissionregistration.ValidatingAdmissionPolicyBinding{
			ObjectMeta: meta,
			Spec: admissionregistration.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionregistration.ValidationAction{admissionregistration.Deny},
			},
		}
}

// TestEqualPoliciesAreCompiledOnce: what has not changed is not compiled anew, nor is what another logical cluster has the same
// of; each is judged by its own all the same, and what nobody has any more is not kept.
func TestEqualPoliciesAreCompiledOnce(t *testing.T) {
	configurations := configurationsOf(t, nil)
	policies, bindings := &configurationStore{configurations, validatingPolicies}, &configurationStore{configurations, validatingPolicyBindings}
	d := newValidatingPolicies(Config{Configurations: configurations, Terminating: func(lc.Name) bool { return false }})
	add := func(cluster lc.Name, name, expression string) {
		t.Helper()
		policy, binding := policyIn(cluster, name, expression)
		if err := errors.Join(policies.Add(policy), bindings.Add(binding)); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(cluster lc.Name, name string) {
		t.Helper()
		policy, binding := policyIn(cluster, name, "")
		if err := errors.Join(policies.Delete(policy), bindings.Delete(binding)); err != nil {
			t.Fatal(err)
		}
	}
	evaluators := func(cluster lc.Name) map[string]validating.Validator {
		t.Helper()
		plugin, err := d.instance(logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: cluster}), aConfigMap.attributes())
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]validating.Validator{}
		for _, hook := range plugin.(validatingPlugin).hooks {
			if !strings.HasPrefix(string(hook.Policy.UID), string(cluster)) {
				t.Errorf("%s has %s", cluster, hook.Policy.UID)
			}
			all[hook.Policy.Name] = hook.Evaluator
		}
		return all
	}
	const yes, no = "true", "false"
	for _, cluster := range []lc.Name{"shop", "bank"} {
		add(cluster, "same", yes)
		add(cluster, "other", map[lc.Name]string{"shop": yes, "bank": no}[cluster])
	}
	shop, bank := evaluators("shop"), evaluators("bank")
	if shop["same"] != bank["same"] {
		t.Error("what two logical clusters have the same of is compiled twice")
	}
	if shop["other"] == bank["other"] || shop["other"] == shop["same"] {
		t.Error("what differs by name or expression is one")
	}
	if want := 3 * leastExpressions * expressionBytes; len(d.parts) != 3 || d.bytes < want || d.bytes > want+want/2 {
		t.Errorf("%d policies of %d bytes are kept compiled, want 3 of some %d", len(d.parts), d.bytes, want)
	}
	creates := what{resource: "namespaces", kind: "Namespace", name: "n", operation: admission.Create, object: &core.Namespace{}}
	for cluster, refused := range map[lc.Name]bool{"shop": false, "bank": true} {
		ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: cluster})
		if err := d.Validate(ctx, creates.attributes(), admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)); (err != nil) != refused {
			t.Errorf("%s: %v, want a refusal: %t", cluster, err, refused)
		}
	}

	add("shop", "other", no)
	if changed := evaluators("shop"); changed["same"] != shop["same"] || changed["other"] != bank["other"] || len(d.parts) != 2 {
		t.Errorf("after one changed to what another logical cluster has, %d are kept; the one that did not change is the same: %t, the other one is that one: %t",
			len(d.parts), changed["same"] == shop["same"], changed["other"] == bank["other"])
	}
	remove("bank", "other")
	evaluators("bank")
	remove("shop", "other")
	evaluators("shop")
	if len(d.parts) != 1 {
		t.Errorf("%d policies are kept compiled, want the one that is there", len(d.parts))
	}
	// One that nobody came to fill has what the one before had, for the next.
	d.of("shop", stamp{1 << 40})
	remade := d.of("shop", stamp{1 << 41})
	if len(d.parts) != 1 || len(remade.parts) != 1 {
		t.Errorf("%d policies are kept compiled while an instance is to be made anew, %d of them for it", len(d.parts), len(remade.parts))
	}
	d.mu.Lock()
	for range 2 {
		d.dropOldest()
	}
	d.mu.Unlock()
	if len(d.parts) != 0 || d.bytes != 0 {
		t.Errorf("%d policies, %d bytes are kept without an instance", len(d.parts), d.bytes)
	}
	d.fill(remade, logicalcluster.Cluster{Name: "shop"})
	if len(d.parts) != 0 || d.bytes != 0 {
		t.Errorf("%d policies, %d bytes are kept for an instance that is not", len(d.parts), d.bytes)
	}
}

// TestExpressionsAskAboutTheirLogicalCluster: upstream hands the authorizer a context without any.
func TestExpressionsAskAboutTheirLogicalCluster(t *testing.T) {
	policy, binding := policyIn("shop", "asks", `authorizer.group("").resource("secrets").check("list").allowed()`)
	configurations := configurationsOf(t, map[schema.GroupResource][]any{validatingPolicies: {policy}, validatingPolicyBindings: {binding}})
	var asked []string
	d := newValidatingPolicies(Config{
		Configurations: configurations, Terminating: func(lc.Name) bool { return false },
		Authorizer: authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			cluster, ok := logicalcluster.ClusterFrom(ctx)
			asked = append(asked, fmt.Sprintf("%s may %s %s in %q", a.GetUser().GetName(), a.GetVerb(), a.GetResource(), cluster.Name))
			if !ok {
				return authorizer.DecisionDeny, "", nil
			}
			return authorizer.DecisionAllow, "", nil
		}),
	})
	creates := what{resource: "namespaces", kind: "Namespace", name: "n", operation: admission.Create, object: &core.Namespace{}}
	for _, cluster := range []lc.Name{"shop", "bank"} {
		ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: cluster})
		if err := d.Validate(ctx, creates.attributes(), admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{`alice may list secrets in "shop"`}, asked); diff != "" {
		t.Errorf("the authorizer was asked (-want +got):\n%s", diff)
	}
}

// TestConnectionsToWebhooks: fifty logical clusters with a webhook each have a connection each, used again; and none where
// webhooks may not be.
func TestConnectionsToWebhooks(t *testing.T) {
	var calls, connections atomic.Int64
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		calls.Add(1)
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	hook.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	hook.StartTLS()
	defer hook.Close()
	const clusters, times = 50, 3
	configurations := configurationsOf(t, nil)
	store := &configurationStore{configurations, validatingWebhooks}
	loopback := webhooks.NewCaller(webhooks.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	o := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	for _, tc := range []struct {
		caller             *webhooks.Caller
		calls, connections int64
	}{
		{webhooks.NewCaller(webhooks.Addresses{}), 0, 0},
		{loopback, clusters * times, clusters},
	} {
		d := validatingPluginOf(t, configurations, nil, tc.caller)
		for i := range clusters {
			cluster := lc.Name(fmt.Sprintf("busy%d", i))
			configuration := webhookIn(cluster, "same", hook.URL)
			configuration.Webhooks[0].ClientConfig.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
			if err := store.Add(configuration); err != nil {
				t.Fatal(err)
			}
			for range times {
				ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: cluster})
				if err := d.Validate(ctx, aConfigMap.attributes(), o); (err == nil) != (tc.calls > 0) {
					t.Fatal(err)
				}
			}
		}
		if calls.Load() != tc.calls || connections.Load() != tc.connections {
			t.Errorf("%d calls by %d connections, want %d by %d", calls.Load(), connections.Load(), tc.calls, tc.connections)
		}
	}
}

// What a webhook answers that would take too much memory is no answer, as the webhook's failure policy has it.
func TestAnswersThatTakeTooMuch(t *testing.T) {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"response":{"status":{"details":{"causes":[`+strings.Repeat("{},", 340_000)+`{}]}}}}`) // the client may have had enough
	}))
	defer hook.Close()
	caller := webhooks.NewCaller(webhooks.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	o := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	for policy, refused := range map[admissionregistration.FailurePolicyType]bool{admissionregistration.Fail: true, admissionregistration.Ignore: false} {
		in := webhookIn("shop", "long", hook.URL)
		in.Webhooks[0].FailurePolicy = &policy
		in.Webhooks[0].ClientConfig.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
		d := validatingPluginOf(t, configurationsOf(t, map[schema.GroupResource][]any{validatingWebhooks: {in}}), nil, caller)
		ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
		err := d.Validate(ctx, aConfigMap.attributes(), o)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "more than 64 MiB of memory") {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

// So many compiled policies are kept for all, and a logical cluster that has too many is told, and can mend it.
func TestPoliciesAreBounded(t *testing.T) {
	d := validatingPluginOf(t, configurationsOf(t, nil), nil, nil)
	d.make = func(cluster logicalcluster.Cluster, _ [][]kuberuntime.Object, _ func(string) any) (made, error) {
		return made{plugin: NewUnsupported(nil, nil), whole: true, bytes: 10, parts: []part{{"everybody's", nil, maxKept / 3}, {string(cluster.Name), nil, maxKept / 3}}}, nil
	}
	for i := range 10 {
		cluster := lc.Name(fmt.Sprintf("busy%d", i))
		d.fill(d.of(cluster, stamp{1}), logicalcluster.Cluster{Name: cluster})
	}
	if _, kept := d.instances["busy9"]; len(d.instances) != 1 || len(d.parts) != 2 || !kept {
		t.Errorf("%d instances with %d bytes are kept, the last one: %t", len(d.instances), d.bytes, kept)
	}

	var policies, bindings []kuberuntime.Object
	try := func() error {
		_, err := bind(policies, bindings, func(b *admissionregistration.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName }, expressionsOfValidation)
		return err
	}
	for i := range maxPolicies + 1 {
		if err := try(); err != nil {
			t.Fatal(err)
		}
		policy, binding := policyIn("shop", fmt.Sprint("p", i), "true")
		policies, bindings = append(policies, policy), append(bindings, binding)
	}
	if try() == nil {
		t.Errorf("%d policies are compiled for one logical cluster", len(policies))
	}

	policies = policies[:1]
	if bindings = slices.Repeat(bindings[:1], maxBindingsOfPolicy); try() != nil {
		t.Errorf("one policy with %d bindings: %v", len(bindings), try())
	}
	if bindings = slices.Repeat(bindings[:1], maxBindingsOfPolicy+1); try() == nil {
		t.Errorf("one policy is evaluated for %d bindings", len(bindings))
	}
	_, unbound := policyIn("shop", "nobody's", "")
	if bindings = slices.Repeat([]kuberuntime.Object{unbound}, maxBindings); try() != nil {
		t.Errorf("%d bindings: %v", len(bindings), try())
	}
	if bindings = append(bindings, unbound); try() == nil {
		t.Errorf("%d bindings are looked at", len(bindings))
	}

	policy, binding := policyIn("shop", "p", "true")
	policies, bindings = []kuberuntime.Object{policy}, []kuberuntime.Object{binding}
	policy.Spec.Validations = make([]admissionregistration.Validation, maxExpressions/2)
	if err := try(); err != nil {
		t.Errorf("one policy with %d expressions: %v", maxExpressions, err)
	}
	policy.Spec.Variables = make([]admissionregistration.Variable, 1)
	if try() == nil {
		t.Errorf("%d expressions of one policy are compiled", maxExpressions+1)
	}

	configurations := configurationsOf(t, map[schema.GroupResource][]any{validatingWebhooks: {webhookIn("shop", "same", "https://webhook.invalid/")}})
	d = validatingPluginOf(t, configurations, nil, nil)
	d.make = func(logicalcluster.Cluster, [][]kuberuntime.Object, func(string) any) (made, error) {
		return made{}, errAway
	}
	ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
	if err := d.Validate(ctx, aConfigMap.attributes(), nil); err == nil {
		t.Error("let through although nobody knows what the logical cluster admits")
	}
	mends := what{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicybindings", name: "b", operation: admission.Delete}
	if err := d.Validate(ctx, mends.attributes(), nil); err != nil {
		t.Errorf("nobody can mend it: %v", err)
	}
}

// TestTooManyAreNotCopied: who has more configurations than he may is told so at the cost of counting them, once, until he has others;
// and he can delete them, which does not even count them.
func TestTooManyAreNotCopied(t *testing.T) {
	const policies, bindings, few, most = 2000, 8000, 3, 4 << 20 // bytes
	synctest.Test(t, func(t *testing.T) {
		objects := map[schema.GroupResource][]any{}
		for i := range bindings {
			policy, binding := policyIn("shop", fmt.Sprint("p", i), "true")
			hooks := webhookIn("shop", fmt.Sprint("h", i), "https://webhook.invalid/")
			if i < policies {
				objects[validatingPolicies] = append(objects[validatingPolicies], policy)
				objects[mutatingPolicies] = append(objects[mutatingPolicies], &admissionregistration.MutatingAdmissionPolicy{ObjectMeta: policy.ObjectMeta})
			}
			objects[validatingPolicyBindings] = append(objects[validatingPolicyBindings], binding)
			objects[mutatingPolicyBindings] = append(objects[mutatingPolicyBindings], &admissionregistration.MutatingAdmissionPolicyBinding{
				ObjectMeta: binding.ObjectMeta, Spec: admissionregistration.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name},
			})
			objects[validatingWebhooks] = append(objects[validatingWebhooks], hooks)
			objects[mutatingWebhooks] = append(objects[mutatingWebhooks], &admissionregistration.MutatingWebhookConfiguration{
				ObjectMeta: hooks.ObjectMeta, Webhooks: make([]admissionregistration.MutatingWebhook, 1),
			})
		}
		c := Config{
			Configurations: configurationsOf(t, objects), Webhooks: webhooks.NewCaller(webhooks.Addresses{}), Terminating: func(lc.Name) bool { return false },
		}
		ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
		for _, tc := range []struct {
			*dynamic
			bindings schema.GroupResource // or webhooks: what is deleted until few are left
		}{
			{newValidatingPolicies(c), validatingPolicyBindings},
			{newMutatingPolicies(c), mutatingPolicyBindings},
			{newValidatingWebhooks(c, newOwnCalls()), validatingWebhooks},
			{newMutatingWebhooks(c, newOwnCalls()), mutatingWebhooks},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			times, makes := 0, tc.make
			tc.make = func(cluster logicalcluster.Cluster, objects [][]kuberuntime.Object, kept func(string) any) (made, error) {
				times++
				return makes(cluster, objects, kept)
			}
			for _, kind := range []string{
				"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
				"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration",
			} {
				resource := strings.ReplaceAll(strings.ToLower(kind)+"s", "policys", "policies")
				deletes := what{group: mutatingWebhooks.Group, resource: resource, kind: kind, name: "p0", operation: admission.Delete}
				counts := times
				if _, err := tc.instance(ctx, deletes.attributes()); err != nil {
					t.Errorf("%s: a %s cannot be deleted: %v", tc.name, kind, err)
				}
				judged := len(tc.resources) == 2 && strings.HasSuffix(kind, "WebhookConfiguration") // which policies may be about
				if times != counts && !judged {
					t.Errorf("%s: an instance is made to delete a %s", tc.name, kind)
				}
			}
			for range 5 {
				if _, err := tc.instance(ctx, aConfigMap.attributes()); err == nil || !strings.Contains(err.Error(), "delete some") {
					t.Errorf("%s: %v, want to hear what to do", tc.name, err)
				}
				time.Sleep(2 * tryAgain)
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > most {
				t.Errorf("%s: took %d bytes, want at most %d", tc.name, took, most)
			}
			if times != 1 {
				t.Errorf("%s: made %d times, want once: nothing has changed", tc.name, times)
			}
			if err := (&configurationStore{c.Configurations, tc.bindings}).Replace(objects[tc.bindings][:few], "2"); err != nil {
				t.Fatal(err)
			}
			if _, err := tc.instance(ctx, aConfigMap.attributes()); err != nil {
				t.Errorf("%s: when few are left: %v", tc.name, err)
			}
			clear(tc.instances)
		}
		time.Sleep(2 * idleFor) // the sweeps end
	})
}

// So many webhooks and no more are called for one request, and who has more is told, and can mend it.
func TestWebhooksAreBounded(t *testing.T) {
	for _, tc := range []struct {
		webhooks, conditions int
		refused              string
	}{
		{maxWebhooks, maxExpressions / maxWebhooks, ""},
		{maxWebhooks + 1, 0, "101 webhooks"},
		{maxWebhooks, maxExpressions/maxWebhooks + 1, "1100 match conditions"},
	} {
		in := webhookIn("shop", "many", "https://webhook.invalid/")
		one := in.Webhooks[0]
		for i := range tc.conditions {
			one.MatchConditions = append(one.MatchConditions, admissionregistration.MatchCondition{Name: fmt.Sprint("c", i), Expression: "false"})
		}
		in.Webhooks = nil
		for i := range tc.webhooks {
			one.Name = fmt.Sprintf("w%d.many.test", i)
			in.Webhooks = append(in.Webhooks, one)
		}
		d := validatingPluginOf(t, configurationsOf(t, map[schema.GroupResource][]any{validatingWebhooks: {in}}), nil, webhooks.NewCaller(webhooks.Addresses{}))
		ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
		_, err := d.instance(ctx, aConfigMap.attributes())
		if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%d webhooks with %d conditions each: %v, want %q", tc.webhooks, tc.conditions, err, tc.refused)
		}
		if err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%d webhooks with %d conditions each are the server's fault: %v", tc.webhooks, tc.conditions, err)
		}
		// Upstream compiles each condition, as those of policies, and keeps it with the webhook.
		if want := tc.webhooks*webhookBytes + tc.webhooks*tc.conditions*expressionBytes; err == nil && (d.bytes < want || d.bytes > want+2*pluginBytes) {
			t.Errorf("%d webhooks with %d conditions each count for %d bytes, want some %d", tc.webhooks, tc.conditions, d.bytes, want)
		}
		mends := what{group: "admissionregistration.k8s.io", resource: "validatingwebhookconfigurations", name: "many", operation: admission.Delete}
		if _, err := d.instance(ctx, mends.attributes()); err != nil {
			t.Errorf("nobody can mend it: %v", err)
		}
	}
}

// TestLongExpressionsCount: what a policy, or a webhook's match condition, compiles to counts by its length, too.
func TestLongExpressionsCount(t *testing.T) {
	long := "[" + strings.Repeat("object,", 10_000) + "object].size() > 0"
	in := webhookIn("shop", "long", "https://webhook.invalid/")
	in.Webhooks[0].MatchConditions = []admissionregistration.MatchCondition{{Name: "long", Expression: long}}
	policy, binding := policyIn("shop", "long", long)
	c := configurationsOf(t, map[schema.GroupResource][]any{validatingWebhooks: {in}, validatingPolicies: {policy}, validatingPolicyBindings: {binding}})
	ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
	creates := what{resource: "namespaces", kind: "Namespace", name: "n", operation: admission.Create, object: &core.Namespace{}}
	for name, d := range map[string]*dynamic{
		"a webhook": validatingPluginOf(t, c, nil, webhooks.NewCaller(webhooks.Addresses{})),
		"a policy":  newValidatingPolicies(Config{Configurations: c, Terminating: func(lc.Name) bool { return false }, paramBudget: newParamBudget()}),
	} {
		if _, err := d.instance(ctx, creates.attributes()); err != nil {
			t.Fatal(name, err)
		}
		if least := int(customresources.Compiled(1, len(long))); d.bytes < least {
			t.Errorf("%s of %d bytes counts for %d, want %d at least", name, len(long), d.bytes, least)
		}
	}
}

// TestPanicLetsNothingThrough: whose instance could not be made because something panics, which the server survives, is not
// without webhooks and policies from then on; and it is made when that is over.
func TestPanicLetsNothingThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		configurations := configurationsOf(t, map[schema.GroupResource][]any{validatingWebhooks: {webhookIn("shop", "same", "https://webhook.invalid/")}})
		d := validatingPluginOf(t, configurations, nil, nil)
		times := 0
		d.make = func(logicalcluster.Cluster, [][]kuberuntime.Object, func(string) any) (made, error) {
			if times++; times == 1 {
				panic("of the test")
			}
			return made{plugin: NewUnsupported(nil, nil), whole: true}, nil
		}
		ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
		validate := func() (panicked any, err error) {
			defer func() { panicked = recover() }() // as the server does for every request
			return nil, d.Validate(ctx, aConfigMap.attributes(), nil)
		}
		if panicked, _ := validate(); panicked == nil {
			t.Fatal("the test's panic did not happen")
		}
		for range 3 {
			if panicked, err := validate(); err == nil || panicked != nil {
				t.Errorf("the next request: %v, panicked: %v, want an error", err, panicked)
			}
		}
		if times != 1 {
			t.Errorf("tried %d times at once", times)
		}
		time.Sleep(tryAgain)
		if panicked, err := validate(); err != nil || panicked != nil || times != 2 {
			t.Errorf("later: %v, panicked: %v, made %d times, want it made anew", err, panicked, times)
		}
		d.instances = map[lc.Name]*instanceOf{}
		time.Sleep(2 * idleFor) // the sweep ends
	})
}

// An instance that no request needs any more goes, one that some need stays, and in the end no timer is left.
func TestIdleInstancesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := validatingPluginOf(t, configurationsOf(t, nil), nil, nil)
		idle, busy := d.of("idle", stamp{1}), d.of("busy", stamp{1})
		for range 5 {
			time.Sleep(idleFor / 2)
			if d.of("busy", stamp{1}) != busy {
				t.Fatal("one that is needed is made anew")
			}
		}
		if len(d.instances) != 1 {
			t.Errorf("%d instances, want the one that is needed", len(d.instances))
		}
		if d.of("idle", stamp{1}) == idle {
			t.Error("an idle one was kept")
		}
		time.Sleep(3 * idleFor)
		synctest.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.instances) != 0 || d.sweeps {
			t.Errorf("%d instances that nobody needs; sweeping: %t", len(d.instances), d.sweeps)
		}
	})
}

// What was made of the configurations of a logical cluster goes with the last of them, and so when that is deleted: nobody would ask for it.
func TestInstancesGoWithTheirConfigurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shop, bank := webhookIn("shop", "same", "https://webhook.invalid/"), webhookIn("bank", "same", "https://webhook.invalid/")
		configurations := configurationsOf(t, map[schema.GroupResource][]any{validatingWebhooks: {shop, bank}})
		d := validatingPluginOf(t, configurations, nil, webhooks.NewCaller(webhooks.Addresses{}))
		wants := func(when string, names ...lc.Name) {
			t.Helper()
			if got := slices.Sorted(maps.Keys(d.instances)); !slices.Equal(got, names) || (d.bytes > 0) != (len(names) > 0) {
				t.Errorf("%s: instances of %v, %d bytes, want of %v", when, got, d.bytes, names)
			}
		}
		for _, cluster := range []lc.Name{"shop", "bank"} {
			if _, err := d.instance(logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: cluster}), aConfigMap.attributes()); err != nil {
				t.Fatal(err)
			}
		}
		wants("with configurations", "bank", "shop")
		store := &configurationStore{configurations, validatingWebhooks}
		if err := store.Delete(shop); err != nil {
			t.Fatal(err)
		}
		wants("one has none any more", "bank")
		if err := store.Replace(nil, "2"); err != nil { // the watch was away
			t.Fatal(err)
		}
		wants("nobody has any")
		time.Sleep(2 * idleFor) // the sweep ends
	})
}
