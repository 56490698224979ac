package admission

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
	"atoll.dev/atoll/server/expressions"
)

// policies is what upstream's dispatcher does with the policies that one logical cluster has bound.
type policies[P, B runtime.Object, E generic.Evaluator] struct {
	dispatcher generic.Dispatcher[generic.PolicyHook[P, B, E]]
	hooks      []generic.PolicyHook[P, B, E]
	reading    func(context.Context) *reading // what a request reads of parameters; nil if no policy has any
}

// dispatch refuses or changes the object. What policies cannot look at is as in kube-apiserver: reviews of access, without
// which nobody could mend a policy, and policies themselves, which are exempt.
func (p policies[P, B, E]) dispatch(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if slices.Contains(exclusion.Excluded(), a.GetResource().GroupResource()) {
		return nil
	}
	hooks := p.hooks
	if p.reading != nil {
		reads := p.reading(ctx)
		defer reads.end()
		hooks = slices.Clone(hooks)
		for i := range hooks {
			if of, ok := hooks[i].ParamInformer.(params); ok {
				of.reads = reads
				hooks[i].ParamInformer = of
			}
		}
	}
	return p.dispatcher.Dispatch(ctx, a, o, hooks)
}

// add adds a policy.
func (p *policies[P, B, E]) add(c Config, cluster logicalcluster.Cluster, hook generic.PolicyHook[P, B, E], kind *v1.ParamKind) (configured bool) {
	var err error
	hook.ParamInformer, hook.ParamScope, err = c.paramsOf(cluster, kind)
	if err != nil && hook.ConfigurationError == nil {
		hook.ConfigurationError = err
	}
	if hook.ParamInformer != nil {
		p.reading = func(ctx context.Context) *reading { return newReading(ctx, c.Params, c.paramBudget, cluster.Name) }
	}
	p.hooks = append(p.hooks, hook)
	return err == nil
}

var configurationsOfPolicies = []schema.GroupResource{mutatingPolicies, mutatingPolicyBindings, validatingPolicies, validatingPolicyBindings}

// bound is a policy and its bindings, of one logical cluster, as they are stored.
type bound struct {
	policy      runtime.Object
	expressions int // in the policy
	bindings    []runtime.Object
}

// bind puts policies, which are in the order of their names, and their bindings together. Those without any are left out, and too
// many are an error. It copies nothing: how many there are is looked at before anything is made of them.
func bind[P, B metav1.Object](policies, bindings []runtime.Object, policyOf func(B) string, expressionsIn func(P) int) (all []bound, _ error) {
	if len(bindings) > maxBindings {
		return nil, tooMany(fmt.Sprintf("the workspace has %d bindings of policies of a kind, and at most %d may be: delete some", len(bindings), maxBindings))
	}
	of := map[string][]runtime.Object{}
	for _, obj := range bindings {
		b, ok := obj.(B)
		if !ok {
			return nil, fmt.Errorf("bind policies: a %T is no binding", obj)
		}
		name := policyOf(b)
		of[name] = append(of[name], obj)
	}
	expressions := 0
	for _, obj := range policies {
		p, ok := obj.(P)
		if !ok {
			return nil, fmt.Errorf("bind policies: a %T is none", obj)
		}
		its := of[p.GetName()]
		if len(its) == 0 {
			continue
		}
		if len(its) > maxBindingsOfPolicy {
			return nil, tooMany(fmt.Sprintf("policy %q of the workspace has %d bindings, and at most %d may be: delete some of them", p.GetName(), len(its), maxBindingsOfPolicy))
		}
		n := expressionsIn(p)
		expressions += n
		all = append(all, bound{obj, n, its})
	}
	if len(all) > maxPolicies {
		return nil, tooMany(fmt.Sprintf("%d policies of the workspace have bindings, and at most %d may: delete some of the bindings", len(all), maxPolicies))
	}
	if expressions > maxExpressions {
		return nil, tooMany(fmt.Sprintf("%d expressions are in the policies of the workspace that have bindings, and at most %d may be: delete some of the bindings", expressions, maxExpressions))
	}
	return all, nil
}

// compiled is what a policy's expressions compile to, which takes some 20 ms: what is kept of the same name and spec, or else
// compiled now. Nothing of the logical cluster is in it: what expressions are evaluated with comes with each request.
func compiled[E any](m *made, name string, spec any, expressions int, kept func(content string) any, compile func() E) (E, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		var none E
		return none, fmt.Errorf("read policy %q: %w", name, err)
	}
	m.bytes += 4 * len(data) // the policy itself, by estimate
	hash := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s", name, data))
	p := part{content: string(hash[:]), bytes: int(customresources.Compiled(max(expressions, leastExpressions), len(data)))}
	evaluator, ok := kept(p.content).(E)
	if !ok {
		evaluator = compile()
	}
	p.made = evaluator
	m.parts = append(m.parts, p)
	return evaluator, nil
}

// paramsOf is what a policy's parameters are read from: nil for one without, an error for those that cannot be.
func (c Config) paramsOf(cluster logicalcluster.Cluster, kind *v1.ParamKind) (informers.GenericInformer, meta.RESTScope, error) {
	if kind == nil {
		return nil, nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	resource, namespaced, err := c.Params.Find(ctx, cluster.Name, gvk)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v': %w", gvk, err)
	}
	scope := meta.RESTScopeRoot
	if namespaced {
		scope = meta.RESTScopeNamespace
	}
	return params{resource: resource}, scope, nil
}

func (s scope) matcher() *matching.Matcher {
	return matching.NewMatcher(s.namespaces(), clientset{scope: s})
}

// newValidatingPolicies returns ValidatingAdmissionPolicy for all logical clusters.
func newValidatingPolicies(c Config) *dynamic {
	d := newDynamic(c, validating.PluginName, anyOperation, validatingPolicies, validatingPolicyBindings)
	d.exempt = configurationsOfPolicies
	d.make = func(cluster logicalcluster.Cluster, objects [][]runtime.Object, kept func(string) any) (made, error) {
		all, err := bind(objects[0], objects[1], func(b *admissionregistration.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName }, expressionsOfValidation)
		if err != nil {
			return made{}, err
		}
		p := validatingPlugin{policies[*v1.ValidatingAdmissionPolicy, *v1.ValidatingAdmissionPolicyBinding, validating.Validator]{
			dispatcher: validating.NewDispatcher(boundTo{cluster, c.Authorizer}, generic.NewPolicyMatcher(scopeOf(cluster, c.Objects).matcher())),
		}}
		m := made{whole: true, bytes: instanceBytes}
		for _, b := range all {
			policy, err := versioned[v1.ValidatingAdmissionPolicy](b.policy)
			if err != nil {
				return made{}, err
			}
			bindings, err := versionedAll[v1.ValidatingAdmissionPolicyBinding](b.bindings)
			if err != nil {
				return made{}, err
			}
			m.bytes += len(bindings) * webhookBytes
			evaluator, err := compiled(&m, policy.Name, policy.Spec, b.expressions, kept, func() validating.Validator { return compileValidation(policy) })
			if err != nil {
				return made{}, err
			}
			hook := validating.PolicyHook{Policy: policy, Bindings: bindings, Evaluator: evaluator}
			m.whole = p.add(c, cluster, hook, policy.Spec.ParamKind) && m.whole
		}
		m.plugin = p
		return m, nil
	}
	return d
}

type validatingPlugin struct {
	policies[*v1.ValidatingAdmissionPolicy, *v1.ValidatingAdmissionPolicyBinding, validating.Validator]
}

// Handles implements admission.Interface; who asks has done so already.
func (validatingPlugin) Handles(admission.Operation) bool { return true }

// Validate implements admission.ValidationInterface.
func (p validatingPlugin) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return p.dispatch(ctx, a, o)
}

func expressionsOfValidation(policy *admissionregistration.ValidatingAdmissionPolicy) int {
	spec := policy.Spec
	return len(spec.Variables) + len(spec.MatchConditions) + len(spec.AuditAnnotations) + 2*len(spec.Validations) // each may have one for its message
}

// compileValidation compiles a policy's expressions. One that does not compile fails when it is evaluated.
func compileValidation(policy *v1.ValidatingAdmissionPolicy) validating.Validator {
	spec := policy.Spec
	compiler, err := cel.NewCompositedCompiler(expressions.Environment())
	if err != nil {
		return validating.NewValidator(nil, nil, nil, nil, spec.FailurePolicy, err)
	}
	given := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	inMessages := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil}
	compileVariables(compiler, spec.Variables, given)
	var checks, messages, annotations []cel.ExpressionAccessor
	for _, v := range spec.Validations {
		checks = append(checks, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		var message cel.ExpressionAccessor // nil for none: the two are in the same order
		if v.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
		messages = append(messages, message)
	}
	for _, a := range spec.AuditAnnotations {
		annotations = append(annotations, &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression})
	}
	return validating.NewValidator(
		compiler.CompileCondition(checks, given, environment.StoredExpressions),
		compileConditions(compiler, spec.MatchConditions, given, spec.FailurePolicy, "validate", policy),
		compiler.CompileCondition(annotations, given, environment.StoredExpressions),
		compiler.CompileCondition(messages, inMessages, environment.StoredExpressions),
		spec.FailurePolicy, nil)
}

func compileVariables(compiler *cel.CompositedCompiler, variables []v1.Variable, given cel.OptionalVariableDeclarations) {
	var named []cel.NamedExpressionAccessor
	for _, v := range variables {
		named = append(named, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(named, given, environment.StoredExpressions)
}

// compileConditions returns nil where there are none.
func compileConditions(compiler *cel.CompositedCompiler, conditions []v1.MatchCondition, given cel.OptionalVariableDeclarations, onFailure *v1.FailurePolicyType, step string, policy metav1.Object) matchconditions.Matcher {
	if len(conditions) == 0 {
		return nil
	}
	var expressions []cel.ExpressionAccessor
	for _, c := range conditions {
		expressions = append(expressions, &matchconditions.MatchCondition{Name: c.Name, Expression: c.Expression})
	}
	return matchconditions.NewMatcher(compiler.CompileCondition(expressions, given, environment.StoredExpressions), onFailure, "policy", step, policy.GetName())
}
