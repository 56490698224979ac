package server

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applyv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// decode reads YAML.
func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	must(t, yaml.UnmarshalStrict([]byte(text), out))
	return out
}

const checkedNames = `
metadata: {name: names}
spec:
  failurePolicy: Fail
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}
  matchConditions:
  - {name: not-the-parameter, expression: 'object.metadata.name != "allowed"'}
  variables:
  - {name: prefix, expression: 'params.data.prefix'}
  - {name: place, expression: 'namespaceObject.metadata.labels["kubernetes.io/metadata.name"]'}
  validations:
  - expression: object.metadata.name.startsWith(variables.prefix)
    messageExpression: '"names in " + variables.place + " begin with " + variables.prefix'
  - expression: 'authorizer.group("").resource("configmaps").namespace("default").check("create").allowed()'
    message: who creates may create
  auditAnnotations:
  - {key: checked, valueExpression: '"name " + object.metadata.name'}
`

const boundNames = `
metadata: {name: names}
spec:
  policyName: names
  paramRef: {name: allowed, namespace: default, parameterNotFoundAction: Deny}
  validationActions: [Deny]
`

// bindMutating makes a mutating policy and a binding of the same name.
func (p place) bindMutating(t *testing.T, policy string) {
	t.Helper()
	api := p.AdmissionregistrationV1()
	made, err := api.MutatingAdmissionPolicies().Create(t.Context(), decode[admissionregistrationv1.MutatingAdmissionPolicy](t, policy), metav1.CreateOptions{})
	must(t, err)
	_, err = api.MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: made.Name}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: made.Name},
	}, metav1.CreateOptions{})
	must(t, err)
}

func (p place) bind(t *testing.T, policy, binding string) {
	t.Helper()
	api := p.AdmissionregistrationV1()
	_, err := api.ValidatingAdmissionPolicies().Create(t.Context(), decode[admissionregistrationv1.ValidatingAdmissionPolicy](t, policy), metav1.CreateOptions{})
	must(t, err)
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), decode[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, binding), metav1.CreateOptions{})
	must(t, err)
}

// refusal is what creating a ConfigMap without keeping it is refused with, and "" if it is not.
func (p place) refusal(t *testing.T, namespace, name string) string {
	t.Helper()
	_, err := p.CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap(name, nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return ""
	}
	return err.Error()
}

func (p place) waitRefusal(t *testing.T, name, part string) {
	t.Helper()
	waitFor(t, 10*time.Second, fmt.Sprintf("%s is refused with %q", name, part), func() (string, bool) {
		got := p.refusal(t, "default", name)
		return got, strings.Contains(got, part) && (got == "") == (part == "")
	})
}

func TestValidatingAdmissionPolicies(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	policyFile := filepath.Join(t.TempDir(), "audit.yaml")
	mustWrite(t, policyFile, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, resources: [{group: '', resources: [configmaps]}]}]\n")
	r := startServer(t, func(o *Options) { o.Audit.PolicyFile, o.Audit.LogOptions.Path = policyFile, log })
	for _, cluster := range []logicalcluster.Name{shop, bank, east} {
		r.makeNamespace(t, cluster, "default")
	}
	a, b := r.place(t, shop), r.place(t, bank)

	for p, prefix := range map[*place]string{&a: "shop-", &b: "bank-"} {
		_, err := p.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "allowed"}, Data: map[string]string{"prefix": prefix}}, metav1.CreateOptions{})
		must(t, err)
	}
	a.bind(t, checkedNames, boundNames)
	a.waitRefusal(t, "any", `ValidatingAdmissionPolicy 'names' with binding 'names' denied request: names in default begin with shop-`)
	a.waitRefusal(t, "shop-any", "")
	for where, p := range map[string]place{"a workspace without": b, "a mirror": r.place(t, east)} {
		if got := p.refusal(t, "default", "any"); got != "" {
			t.Errorf("refused in %s: %s", where, got)
		}
	}
	b.bind(t, checkedNames, boundNames)
	b.waitRefusal(t, "shop-any", "names in default begin with bank-")
	a.waitRefusal(t, "bank-any", "names in default begin with shop-")
	waitFor(t, 10*time.Second, "the audit log has the policy's annotation", func() (string, bool) {
		content, err := os.ReadFile(log)
		return fmt.Sprintf("%v, %d bytes", err, len(content)), strings.Contains(string(content), `"names/checked":"name shop-any"`)
	})

	// The status says what does not fit the types.
	misfit := decode[admissionregistrationv1.ValidatingAdmissionPolicy](t, `
metadata: {name: misfit}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]
  validations:
  - {expression: object.spec.replicas > 1}
  - {expression: object.spec.replicas > "1"}
`)
	_, err := a.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), misfit, metav1.CreateOptions{})
	must(t, err)
	waitFor(t, 20*time.Second, "the types are checked", func() (string, bool) {
		got, err := a.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "misfit", metav1.GetOptions{})
		must(t, err)
		types := got.Status.TypeChecking
		return fmt.Sprintf("%+v", got.Status), types != nil && len(types.ExpressionWarnings) == 1 && types.ExpressionWarnings[0].FieldRef == "spec.validations[1].expression" &&
			strings.Contains(types.ExpressionWarnings[0].Warning, "found no matching overload for '_>_'")
	})

	// Warn instead of refusing; then nothing.
	bindings := b.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	bound, err := bindings.Get(t.Context(), "names", metav1.GetOptions{})
	must(t, err)
	bound.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn, admissionregistrationv1.Audit}
	_, err = bindings.Update(t.Context(), bound, metav1.UpdateOptions{})
	must(t, err)
	b.waitRefusal(t, "shop-any", "")
	b.told.take()
	if got := b.refusal(t, "default", "shop-any"); got != "" || !b.told.containing("Validation failed for ValidatingAdmissionPolicy 'names' with binding 'names': names in default begin with bank-") {
		t.Errorf("a binding that warns refuses %q, or does not warn", got)
	}
	must(t, bindings.Delete(t.Context(), "names", metav1.DeleteOptions{}))
	waitFor(t, 10*time.Second, "nobody warns", func() (string, bool) {
		got := b.refusal(t, "default", "shop-any")
		return got, !b.told.containing("Validation failed")
	})
	a.waitRefusal(t, "bank-any", "names in default begin with shop-")
}

// TestParametersOfNoOtherWorkspace: whatever namespace a binding names, its policy is given nothing of another workspace, where the
// server itself may read everything.
func TestParametersOfNoOtherWorkspace(t *testing.T) {
	r := startServer(t, nil)
	said := map[logicalcluster.Name]string{shop: "what shop has", bank: "what bank has"}
	for cluster, text := range said {
		r.makeNamespace(t, cluster, "default")
		_, err := r.place(t, cluster).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "token", Labels: map[string]string{"is": "read"}}, StringData: map[string]string{"text": text},
		}, metav1.CreateOptions{})
		must(t, err)
		said[cluster] = base64.StdEncoding.EncodeToString([]byte(text)) // as it is in what policies are given
	}
	p := r.place(t, shop)
	p.bind(t, `
metadata: {name: tells}
spec:
  failurePolicy: Fail
  paramKind: {apiVersion: v1, kind: Secret}
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  validations:
  - {expression: "false", messageExpression: string(params.data.text)}
`, `
metadata: {name: tells}
spec: {policyName: tells, paramRef: {name: token, namespace: default, parameterNotFoundAction: Deny}, validationActions: [Deny]}
`)
	p.waitRefusal(t, "any", said[shop])
	bindings := p.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	for _, namespace := range []string{
		"../../../../" + string(bank) + "/api/v1/namespaces/default",
		"default/../../../../../" + string(bank) + "/api/v1/namespaces/default",
		"../../../clusters/" + string(bank) + "/api/v1/namespaces/default",
		"../../../../*/api/v1",
		"../../../../" + string(bank) + "/api/v1",
		"..%2f..%2f..%2f..%2f" + string(bank) + "%2fapi%2fv1%2fnamespaces%2fdefault",
		"default/../default", "..", ".",
	} {
		for _, selects := range []bool{false, true} {
			bound, err := bindings.Get(t.Context(), "tells", metav1.GetOptions{})
			must(t, err)
			ref := &admissionregistrationv1.ParamRef{Name: "token", Namespace: namespace, ParameterNotFoundAction: bound.Spec.ParamRef.ParameterNotFoundAction}
			if selects {
				ref.Name, ref.Selector = "", &metav1.LabelSelector{MatchLabels: map[string]string{"is": "read"}}
			}
			bound.Spec.ParamRef = ref
			_, err = bindings.Update(t.Context(), bound, metav1.UpdateOptions{})
			must(t, err)
			waitFor(t, 10*time.Second, fmt.Sprintf("%q is no namespace, with a selector: %t", namespace, selects), func() (string, bool) {
				got := p.refusal(t, "default", "any")
				if strings.Contains(got, said[bank]) {
					t.Fatalf("%q, with a selector: %t: shop is told %s", namespace, selects, got)
				}
				return got, strings.Contains(got, fmt.Sprintf("%q in a path", namespace))
			})
		}
		// What was refused of the one before says nothing of the next.
		bound, err := bindings.Get(t.Context(), "tells", metav1.GetOptions{})
		must(t, err)
		bound.Spec.ParamRef = &admissionregistrationv1.ParamRef{Name: "token", Namespace: "default", ParameterNotFoundAction: bound.Spec.ParamRef.ParameterNotFoundAction}
		_, err = bindings.Update(t.Context(), bound, metav1.UpdateOptions{})
		must(t, err)
		p.waitRefusal(t, "any", said[shop])
	}
}

// TestAdmissionPoliciesWithCustomResources: as what is checked and as parameters, of a kind that comes after the policy.
func TestAdmissionPoliciesWithCustomResources(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	p, c := r.place(t, shop), r.custom(t, shop)
	p.bind(t, strings.Replace(strings.Replace(checkedNames, "{apiVersion: v1, kind: ConfigMap}", "{apiVersion: shop.example/v1, kind: Widget}", 1), "params.data.prefix", "params.spec.prefix", 1),
		strings.Replace(boundNames, "{name: allowed, namespace: default,", "{selector: {matchLabels: {for: names}},", 1))
	p.waitRefusal(t, "any", "failed to configure policy: failed to find resource referenced by paramKind: 'shop.example/v1, Kind=Widget'")
	c.define(t, widgets(`{"prefix":{"type":"string"},"note":{"type":"string"}}`))
	p.waitRefusal(t, "any", "no params found")
	param := widget("param", map[string]any{"prefix": "w-"})
	param.SetLabels(map[string]string{"for": "names"})
	_, err := c.objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), param, metav1.CreateOptions{})
	must(t, err)
	p.waitRefusal(t, "any", "names in default begin with w-")
	p.waitRefusal(t, "w-any", "")
}

// TestMutatingAdmissionPolicies: objects, built-in and custom, are changed in the workspace that says so.
func TestMutatingAdmissionPolicies(t *testing.T) {
	r := startServer(t, nil)
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		r.makeNamespace(t, cluster, "default")
		r.custom(t, cluster).define(t, widgets(`{"note":{"type":"string"}}`))
	}
	a, b := r.place(t, shop), r.place(t, bank)
	const policy = `
metadata: {name: notes}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: ["", "shop.example"], apiVersions: ["*"], operations: [CREATE], resources: [configmaps, widgets]}
  variables:
  - {name: custom, expression: 'request.kind.group == "shop.example"'}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: '[JSONPatch{op: "add", path: "/metadata/labels", value: {"patched": "yes"}}]'
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{metadata: Object.metadata{annotations: {"applied": request.namespace}}}'
`
	a.bindMutating(t, policy)
	waitFor(t, 10*time.Second, "ConfigMaps are changed", func() (string, bool) {
		made, err := a.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("c", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return fmt.Sprint(made.Labels, made.Annotations, err), made.Labels["patched"] == "yes" && made.Annotations["applied"] == "default"
	})
	made, err := r.custom(t, shop).objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), widget("w", nil), metav1.CreateOptions{})
	must(t, err)
	if made.GetLabels()["patched"] != "yes" || made.GetAnnotations()["applied"] != "default" {
		t.Errorf("a custom resource is not changed: %v", made.Object)
	}
	other, err := b.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("c", nil), metav1.CreateOptions{})
	must(t, err)
	widgetOfB, err := r.custom(t, bank).objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), widget("w", nil), metav1.CreateOptions{})
	must(t, err)
	for _, o := range []metav1.Object{other, widgetOfB} {
		if diff := cmp.Diff("", o.GetLabels()["patched"]+o.GetAnnotations()["applied"]); diff != "" {
			t.Errorf("%s of another workspace is changed:\n%s", o.GetName(), diff)
		}
	}
}

// TestMutatingAdmissionPoliciesAreAskedAgain: one that wants it sees what a later one changed, and one that does not want it does not.
func TestMutatingAdmissionPoliciesAreAskedAgain(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	p := r.place(t, shop)
	policy := func(name, again, when, label string) string {
		return `
metadata: {name: ` + name + `}
spec:
  reinvocationPolicy: ` + again + `
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: ["*"], operations: [CREATE], resources: [configmaps]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: '` + when + ` ? Object{metadata: Object.metadata{labels: {"` + label + `": "yes"}}} : Object{}'
`
	}
	const late = `has(object.metadata.labels) && "late" in object.metadata.labels`
	p.bindMutating(t, policy("a-again", "IfNeeded", late, "again"))
	p.bindMutating(t, policy("a-once", "Never", late, "once"))
	p.bindMutating(t, policy("b-late", "Never", "true", "late"))
	waitFor(t, 10*time.Second, "a policy is asked again", func() (string, bool) {
		made, err := p.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("c", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return fmt.Sprint(made.Labels, err), err == nil && made.Labels["late"] == "yes" && made.Labels["again"] == "yes"
	})
	// What finds the label at once is asked, whatever its policy: only so the next says something.
	labelled := configMap("c", nil)
	labelled.Labels = map[string]string{"late": "yes"}
	waitFor(t, 10*time.Second, "the other policy is asked at all", func() (string, bool) {
		made, err := p.CoreV1().ConfigMaps("default").Create(t.Context(), labelled, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return fmt.Sprint(made.Labels, err), err == nil && made.Labels["once"] == "yes"
	})
	made, err := p.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("c", nil), metav1.CreateOptions{})
	must(t, err)
	if made.Labels["again"] != "yes" || made.Labels["once"] != "" {
		t.Errorf("labels %v, want what is asked again alone", made.Labels)
	}
}

// TestMutatingAdmissionPoliciesWithParameters: a policy changes objects by parameters, of a built-in kind or a custom one, of its own
// workspace alone, as they are now.
func TestMutatingAdmissionPoliciesWithParameters(t *testing.T) {
	r := startServer(t, nil)
	in := map[logicalcluster.Name]place{}
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		in[cluster] = r.place(t, cluster)
		r.makeNamespace(t, cluster, "default")
		r.custom(t, cluster).define(t, widgets(`{"note":{"type":"string"}}`))
	}
	for _, params := range []struct {
		kind, field string
		resource    schema.GroupVersionResource
	}{
		{"{apiVersion: v1, kind: ConfigMap}", "data", corev1.SchemeGroupVersion.WithResource("configmaps")},
		{"{apiVersion: shop.example/v1, kind: Widget}", "spec", widgetsV1},
	} {
		name := params.resource.Resource
		policy := fmt.Sprintf(`
metadata: {name: %[1]s}
spec:
  reinvocationPolicy: Never
  paramKind: %[2]s
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: 'Object{metadata: Object.metadata{annotations: {"%[1]s": params.%[3]s.note}}}'}
`, name, params.kind, params.field)
		binding := fmt.Sprintf("metadata: {name: %[1]s}\nspec: {policyName: %[1]s, paramRef: {name: param, namespace: default, parameterNotFoundAction: Deny}}", name)
		// noted is what a Secret that would be made in a workspace is told, or why it is refused.
		noted := func(cluster logicalcluster.Name) string {
			made, err := in[cluster].CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "any"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return err.Error()
			}
			return made.Annotations[name]
		}
		wait := func(when, shops, banks string) {
			t.Helper()
			for cluster, want := range map[logicalcluster.Name]string{shop: shops, bank: banks} {
				waitFor(t, time.Minute, fmt.Sprintf("%s: %s in %s says %q", when, name, cluster, want), func() (string, bool) {
					got := noted(cluster)
					return got, strings.Contains(got, want) && (got == "") == (want == "")
				})
			}
		}
		write := func(cluster logicalcluster.Name, note string) {
			t.Helper()
			param := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "param"}, params.field: map[string]any{"note": note}}}
			kind := decode[admissionregistrationv1.ParamKind](t, params.kind)
			param.SetAPIVersion(kind.APIVersion)
			param.SetKind(kind.Kind)
			_, err := in[cluster].objects.Resource(params.resource).Namespace("default").Apply(t.Context(), "param", param, metav1.ApplyOptions{FieldManager: "test"})
			must(t, err)
		}
		for _, p := range in {
			api := p.AdmissionregistrationV1()
			_, err := api.MutatingAdmissionPolicies().Create(t.Context(), decode[admissionregistrationv1.MutatingAdmissionPolicy](t, policy), metav1.CreateOptions{})
			must(t, err)
			_, err = api.MutatingAdmissionPolicyBindings().Create(t.Context(), decode[admissionregistrationv1.MutatingAdmissionPolicyBinding](t, binding), metav1.CreateOptions{})
			must(t, err)
		}
		const missing = "no params found"
		wait("without parameters", missing, missing)
		write(bank, "of bank")
		wait("with bank's", missing, "of bank")
		write(shop, "of shop")
		wait("with both", "of shop", "of bank")
		write(shop, "changed")
		wait("when shop's has changed", "changed", "of bank")
		must(t, in[shop].objects.Resource(params.resource).Namespace("default").Delete(t.Context(), "param", metav1.DeleteOptions{}))
		wait("when shop's is gone", missing, "of bank")
		for _, p := range in {
			must(t, p.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}))
		}
		wait("unbound", "", "")
	}
}

// TestMutatingAdmissionPoliciesAtOnce: many first objects of a version are changed at the same time. Each asks what the types are
// while nobody knows yet, and no object may be merged with what another answer described.
func TestMutatingAdmissionPoliciesAtOnce(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	a := r.place(t, shop)
	const policy = `
metadata: {name: notes}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: ["", apps, batch, coordination.k8s.io], apiVersions: ["*"], operations: [CREATE], resources: [configmaps, controllerrevisions, jobs, leases]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{metadata: Object.metadata{annotations: {"applied": request.namespace}}}'
`
	a.bindMutating(t, policy)
	waitFor(t, 10*time.Second, "ConfigMaps are changed", func() (string, bool) {
		made, err := a.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("c", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return fmt.Sprint(made.Annotations, err), made.Annotations["applied"] == "default"
	})
	for kind, create := range map[string]func(name metav1.ObjectMeta) (metav1.Object, error){
		"ControllerRevision": func(meta metav1.ObjectMeta) (metav1.Object, error) {
			return a.AppsV1().ControllerRevisions("default").Create(t.Context(), &appsv1.ControllerRevision{ObjectMeta: meta, Data: runtime.RawExtension{Raw: []byte(`{}`)}}, metav1.CreateOptions{})
		},
		"Job": func(meta metav1.ObjectMeta) (metav1.Object, error) {
			job := &batchv1.Job{ObjectMeta: meta}
			job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			job.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "example.invalid/c"}}
			return a.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{})
		},
		"Lease": func(meta metav1.ObjectMeta) (metav1.Object, error) {
			return a.CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: meta}, metav1.CreateOptions{})
		},
	} {
		var made sync.WaitGroup
		for i := range 8 {
			made.Go(func() {
				got, err := create(metav1.ObjectMeta{Name: fmt.Sprintf("at-once-%d", i)})
				if err != nil || got.GetAnnotations()["applied"] != "default" {
					t.Errorf("%s %d: annotations %v, %v; want it changed", kind, i, got.GetAnnotations(), err)
				}
			})
		}
		made.Wait()
	}
}

// TestAdministrationIsNotChanged: what an administrator of the server writes to an object of Atoll's kinds is what he wrote,
// whatever mutating webhooks and policies the workspace has. They change what its people write, and other kinds.
func TestAdministrationIsNotChanged(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.describe(t, rootCluster, "root", "")
	r.describe(t, shop, "root:shop", "root:universal")
	r.describe(t, SystemAdminCluster, "", "")
	r.bindAdmin(t, "alice", shop)
	r.makeNamespace(t, shop, "default")
	p := r.place(t, shop)
	p.bindMutating(t, `
metadata: {name: turn}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [configmaps, workspaces, workspacetypes, synctargets, placementpolicies, logicalclusters]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{metadata: Object.metadata{annotations: {"policy": "was here"}}}'
`)
	h := newHook(t, func(string, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		kind := admissionv1.PatchTypeJSONPatch
		return &admissionv1.AdmissionResponse{Allowed: true, PatchType: &kind, Patch: []byte(`[{"op":"add","path":"/metadata/labels","value":{"webhook":"was-here"}}]`)}
	})
	p.mutate(t, h, "turn", admissionregistrationv1.MutatingWebhook{
		Name: "turn.webhooks.test", ClientConfig: h.at("/turn"), AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
		Rules: append(rule("*", "workspaces", admissionregistrationv1.OperationAll), rule("*", "synctargets", admissionregistrationv1.OperationAll)...),
	})
	waitFor(t, 10*time.Second, "the policy changes what an administrator writes to other kinds", func() (string, bool) {
		made, err := p.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("c", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return fmt.Sprint(made.Annotations, err), made.Annotations["policy"] != ""
	})

	const patched = `{"metadata":{"annotations":{"mine":"yes"}}}`
	write := func(method, path, body, token string) answer {
		a := asked{method: method, path: clustersPrefix + string(shop) + path, token: token, body: body}
		if method == http.MethodPatch {
			a.header = map[string]string{"Content-Type": "application/merge-patch+json"}
		}
		got := r.ask(t, a)
		if got.code != http.StatusOK && got.code != http.StatusCreated {
			t.Fatalf("%s %s: %v", method, path, got)
		}
		return got
	}
	marks := []string{`"policy":"was here"`, `"webhook":"was-here"`}
	for _, o := range []struct{ path, kind, spec string }{
		{tenancy + "workspaces", `"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace"`, "{}"},
		{tenancy + "workspacetypes", `"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType"`, "{}"},
		{"/apis/workload.kcp.io/v1alpha1/synctargets", `"apiVersion":"workload.kcp.io/v1alpha1","kind":"SyncTarget"`, "{}"},
		{"/apis/placement.atoll.dev/v1alpha1/placementpolicies", `"apiVersion":"placement.atoll.dev/v1alpha1","kind":"PlacementPolicy"`, "{}"},
	} {
		object := func(name string) string {
			return fmt.Sprintf(`{%s,"metadata":{"name":%q},"spec":%s}`, o.kind, name, o.spec)
		}
		for _, got := range []answer{write(http.MethodPost, o.path, object("of-root"), root), write(http.MethodPatch, o.path+"/of-root", patched, root)} {
			for _, mark := range marks {
				if strings.Contains(got.body, mark) {
					t.Errorf("what an administrator wrote to %s was changed (%s): %s", o.path, mark, got.body)
				}
			}
		}
		if got := write(http.MethodPost, o.path, object("of-alice"), alice); !strings.Contains(got.body, marks[0]) {
			t.Errorf("what alice wrote to %s was not changed: %s", o.path, got.body)
		}
	}
	if got := write(http.MethodPatch, "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", patched, root); strings.Contains(got.body, marks[0]) {
		t.Errorf("the LogicalCluster was changed: %s", got.body)
	}
}

// What was found out about a policy that is gone is written nowhere: no policy is made of it, and another one of its name, whose
// types nobody would look at then, does not get it.
func TestTypesOfAPolicyThatIsGone(t *testing.T) {
	r := startServer(t, nil)
	policies := r.in(t, shop).AdmissionregistrationV1().ValidatingAdmissionPolicies()
	const generation = 77
	status := applyv1.ValidatingAdmissionPolicy("names").WithUID("3d2b8c4e-0f5a-4e59-9b0e-0123456789ab").
		WithStatus(applyv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(generation))
	apply := func() error {
		return r.requests.Apply(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: shop}), shop, status)
	}
	if err := apply(); err == nil {
		t.Error("a status of a policy that is gone is written")
	}
	if got, err := policies.List(t.Context(), metav1.ListOptions{}); err != nil || len(got.Items) > 0 {
		t.Errorf("policies %v, %v; want none", got.Items, err)
	}
	_, err := policies.Create(t.Context(), decode[admissionregistrationv1.ValidatingAdmissionPolicy](t, checkedNames), metav1.CreateOptions{})
	must(t, err)
	if err := apply(); err == nil {
		t.Error("a status of another policy is written")
	}
	waitFor(t, 30*time.Second, "its own types are looked at", func() (string, bool) {
		got, err := policies.Get(t.Context(), "names", metav1.GetOptions{})
		must(t, err)
		if got.Status.ObservedGeneration == generation {
			t.Fatal("the policy has the status of another")
		}
		return fmt.Sprint(got.Status), got.Status.ObservedGeneration == got.Generation
	})
}
