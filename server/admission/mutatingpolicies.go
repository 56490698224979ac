package admission

import (
	"context"
	"fmt"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	v1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/expressions"
)

// newMutatingPolicies returns MutatingAdmissionPolicy for all logical clusters. There is no object to change in a deletion.
func newMutatingPolicies(c Config) *dynamic {
	d := newDynamic(c, mutating.PluginName, []admission.Operation{admission.Create, admission.Update, admission.Connect}, mutatingPolicies, mutatingPolicyBindings)
	d.exempt = configurationsOfPolicies
	d.make = func(cluster logicalcluster.Cluster, objects [][]runtime.Object, kept func(string) any) (made, error) {
		all, err := bind(objects[0], objects[1], func(b *admissionregistration.MutatingAdmissionPolicyBinding) string { return b.Spec.PolicyName }, expressionsOfMutation)
		if err != nil {
			return made{}, err
		}
		p := mutatingPlugin{policies[*v1.MutatingAdmissionPolicy, *v1.MutatingAdmissionPolicyBinding, mutating.PolicyEvaluator]{
			dispatcher: mutating.NewDispatcher(boundTo{cluster, c.Authorizer}, scopeOf(cluster, c.Objects).matcher(), converters{c.Schemas, cluster}),
		}}
		m := made{whole: true, bytes: instanceBytes}
		for _, b := range all {
			policy, err := versioned[v1.MutatingAdmissionPolicy](b.policy)
			if err != nil {
				return made{}, err
			}
			bindings, err := versionedAll[v1.MutatingAdmissionPolicyBinding](b.bindings)
			if err != nil {
				return made{}, err
			}
			m.bytes += len(bindings) * webhookBytes
			evaluator, err := compiled(&m, policy.Name, policy.Spec, b.expressions, kept, func() mutating.PolicyEvaluator { return compileMutation(policy) })
			if err != nil {
				return made{}, err
			}
			hook := mutating.PolicyHook{Policy: policy, Bindings: bindings, Evaluator: evaluator, ConfigurationError: evaluator.Error}
			m.whole = p.add(c, cluster, hook, policy.Spec.ParamKind) && m.whole
		}
		m.plugin = p
		return m, nil
	}
	return d
}

type mutatingPlugin struct {
	policies[*v1.MutatingAdmissionPolicy, *v1.MutatingAdmissionPolicyBinding, mutating.PolicyEvaluator]
}

// Handles implements admission.Interface; who asks has done so already.
func (mutatingPlugin) Handles(admission.Operation) bool { return true }

// Admit implements admission.MutationInterface.
func (p mutatingPlugin) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return p.dispatch(ctx, a, o)
}

func expressionsOfMutation(policy *admissionregistration.MutatingAdmissionPolicy) int {
	spec := policy.Spec
	return len(spec.Variables) + len(spec.MatchConditions) + len(spec.Mutations)
}

// compileMutation compiles a policy's expressions. One that does not compile fails when it is evaluated.
func compileMutation(policy *v1.MutatingAdmissionPolicy) mutating.PolicyEvaluator {
	spec := policy.Spec
	compiler, err := cel.NewCompositedCompiler(expressions.Environment())
	if err != nil {
		return mutating.PolicyEvaluator{Error: fmt.Errorf("set up the compiler of expressions: %w", err)}
	}
	given := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	inPatches := given
	inPatches.HasPatchTypes = true
	compileVariables(compiler, spec.Variables, given)
	e := mutating.PolicyEvaluator{
		CompositedCompiler: compiler,
		Matcher:            compileConditions(compiler, spec.MatchConditions, given, spec.FailurePolicy, "admit", policy),
	}
	for _, m := range spec.Mutations {
		switch {
		case m.PatchType == v1.PatchTypeJSONPatch && m.JSONPatch != nil:
			e.Mutators = append(e.Mutators, patch.NewJSONPatcher(boundedResult{compiler.CompileMutatingEvaluator(
				&patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}, inPatches, environment.StoredExpressions)}))
		case m.PatchType == v1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			e.Mutators = append(e.Mutators, patch.NewApplyConfigurationPatcher(boundedResult{compiler.CompileMutatingEvaluator(
				&patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression}, inPatches, environment.StoredExpressions)}))
		}
	}
	return e
}

// boundedResult evaluates to what can be converted: upstream's patchers make an object of all that the result has.
type boundedResult struct {
	cel.MutatingEvaluator
}

// ForInput implements cel.MutatingEvaluator.
func (b boundedResult) ForInput(ctx context.Context, attributes *admission.VersionedAttributes, request *admissionv1.AdmissionRequest, variables cel.OptionalVariableBindings, namespace *corev1.Namespace, budget int64) (cel.EvaluationResult, int64, error) {
	result, left, err := b.MutatingEvaluator.ForInput(ctx, attributes, request, variables, namespace, budget)
	if err == nil && result.Error == nil {
		err = expressions.CheckResult(result.EvalResult)
	}
	return result, left, err
}

// converters finds the types of a logical cluster's kinds when a policy's apply configuration needs them.
type converters struct {
	schemas Schemas
	cluster logicalcluster.Cluster
}

// Run implements patch.TypeConverterManager: nothing has to run.
func (converters) Run(context.Context) {}

// GetTypeConverter implements patch.TypeConverterManager. Upstream asks once for each change of one object.
func (c converters) GetTypeConverter(gvk schema.GroupVersionKind) managedfields.TypeConverter {
	gv := gvk.GroupVersion()
	return converter{find: sync.OnceValues(func() (managedfields.TypeConverter, error) {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		found, err := c.schemas.Converter(ctx, c.cluster.Name, gv)
		if err != nil {
			return nil, fmt.Errorf("find the types of %s: %w", gv, err)
		}
		return found, nil
	})}
}

// converter finds out when it is used: for JSON patches it never is. It finds out once, since an object and what is merged into
// it have to be of one schema, and two answers are never the same one.
type converter struct {
	find func() (managedfields.TypeConverter, error)
}

// ObjectToTyped implements managedfields.TypeConverter.
func (c converter) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	found, err := c.find()
	if err != nil {
		return nil, err
	}
	return found.ObjectToTyped(obj, options...)
}

// TypedToObject implements managedfields.TypeConverter.
func (c converter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	found, err := c.find()
	if err != nil {
		return nil, err
	}
	return found.TypedToObject(value)
}
