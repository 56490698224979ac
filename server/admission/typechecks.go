package admission

import (
	"context"
	"fmt"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	v1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	applyv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
)

// PolicyStatuses is what the statuses of ValidatingAdmissionPolicies are made and written with.
type PolicyStatuses interface {
	// Checker compares expressions with the types of what a logical cluster serves.
	Checker(cluster lc.Name) (*validating.TypeChecker, error)
	// Apply writes a status.
	Apply(ctx context.Context, cluster lc.Name, policy *applyv1.ValidatingAdmissionPolicyApplyConfiguration) error
}

// TypeChecks tells people of expressions in their ValidatingAdmissionPolicies that do not fit the types of what these match, in
// the status, as kube-controller-manager does: one worker for all logical clusters.
type TypeChecks struct {
	configurations *Configurations
	statuses       PolicyStatuses
	policies       *queue.Queue[policyKey]
}

type policyKey struct {
	cluster lc.Name
	name    string
}

// String is for logs.
func (k policyKey) String() string { return string(k.cluster) + "|" + k.name }

// NewTypeChecks returns the worker; it comes before the configurations run, and Run after that.
func NewTypeChecks(configurations *Configurations, statuses PolicyStatuses) *TypeChecks {
	t := &TypeChecks{configurations: configurations, statuses: statuses}
	t.policies = queue.New("policy-type-checks", t.check)
	configurations.policyChanged = func(cluster lc.Name, name string) { t.policies.Add(policyKey{cluster, name}) }
	return t
}

// Run works until ctx ends.
func (t *TypeChecks) Run(ctx context.Context) { t.policies.Run(ctx, 1) }

func (t *TypeChecks) check(ctx context.Context, key policyKey) (time.Duration, error) {
	stored, ok := t.configurations.get(validatingPolicies, key.cluster, key.name)
	if !ok {
		return 0, nil
	}
	all, err := versionedAll[v1.ValidatingAdmissionPolicy]([]runtime.Object{stored})
	if err != nil {
		return 0, err
	}
	policy := all[0]
	if policy.Generation <= policy.Status.ObservedGeneration {
		return 0, nil
	}
	checker, err := t.statuses.Checker(key.cluster)
	if err != nil {
		return 0, fmt.Errorf("check the types in ValidatingAdmissionPolicy %q of logical cluster %q: %w", key.name, key.cluster, err)
	}
	types := applyv1.TypeChecking()
	for _, w := range checker.Check(policy) {
		types.WithExpressionWarnings(applyv1.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	err = t.statuses.Apply(logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: key.cluster}), key.cluster, applyv1.ValidatingAdmissionPolicy(key.name).
		WithStatus(applyv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(policy.Generation).WithTypeChecking(types)))
	if apierrors.IsNotFound(err) {
		return 0, nil // it is gone
	}
	if err != nil {
		return 0, fmt.Errorf("write the status of ValidatingAdmissionPolicy %q of logical cluster %q: %w", key.name, key.cluster, err)
	}
	return 0, nil
}
