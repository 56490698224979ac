package admission

import (
	"context"
	"fmt"
	"sync"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	v1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
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

// typeCheckWorkers is how many logical clusters have a policy checked at once: what one of them makes slow, thousands of
// expressions, holds up nobody else.
const typeCheckWorkers = 2

// TypeChecks tells people of expressions in their ValidatingAdmissionPolicies that do not fit the types of what these match, in
// the status, as kube-controller-manager does: a few workers for all logical clusters, which take turns, one policy at a time.
type TypeChecks struct {
	configurations *Configurations
	statuses       PolicyStatuses
	clusters       *queue.Queue[lc.Name]

	mu sync.Mutex
	// waiting are the policies to be checked; there is at least one of each logical cluster. Guarded by mu.
	waiting map[lc.Name]*line
}

// line is names in the order in which they came, each once.
type line struct {
	names []string
	in    sets.Set[string]
}

// add adds a name, unless it waits already. There may be as many as a workspace may have objects.
func (l *line) add(name string) {
	if !l.in.Has(name) {
		l.in.Insert(name)
		l.names = append(l.names, name)
	}
}

// take takes the first name, of at least one.
func (l *line) take() string {
	first := l.names[0]
	l.names = l.names[1:]
	l.in.Delete(first)
	return first
}

// NewTypeChecks returns the workers; it comes before the configurations run, and Run after that.
func NewTypeChecks(configurations *Configurations, statuses PolicyStatuses) *TypeChecks {
	t := &TypeChecks{configurations: configurations, statuses: statuses, waiting: map[lc.Name]*line{}}
	t.clusters = queue.New("policy-type-checks", t.next)
	configurations.policyChanged = t.add
	return t
}

// Run works until ctx ends.
func (t *TypeChecks) Run(ctx context.Context) { t.clusters.Run(ctx, typeCheckWorkers) }

// add has a policy checked, after those of its logical cluster that wait already.
func (t *TypeChecks) add(cluster lc.Name, name string) {
	t.wait(cluster, name)
	t.clusters.Add(cluster)
}

// wait has a policy wait, of a logical cluster that the workers come to.
func (t *TypeChecks) wait(cluster lc.Name, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting[cluster]
	if waiting == nil {
		waiting = &line{in: sets.Set[string]{}}
		t.waiting[cluster] = waiting
	}
	waiting.add(name)
}

// take returns the policy of a logical cluster that waits longest, and whether there are more.
func (t *TypeChecks) take(cluster lc.Name) (name string, ok, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting[cluster]
	if waiting == nil {
		return "", false, false
	}
	name, more = waiting.take(), len(waiting.names) > 0
	if !more {
		delete(t.waiting, cluster)
	}
	return name, true, more
}

// next checks one policy of a logical cluster, which then waits behind the others for the rest of its own.
func (t *TypeChecks) next(ctx context.Context, cluster lc.Name) (time.Duration, error) {
	name, ok, more := t.take(cluster)
	if !ok {
		return 0, nil
	}
	if err := t.check(ctx, cluster, name); err != nil {
		t.wait(cluster, name)
		return 0, fmt.Errorf("ValidatingAdmissionPolicy %q of logical cluster %q: %w", name, cluster, err)
	}
	if more {
		t.clusters.Add(cluster)
	}
	return 0, nil
}

func (t *TypeChecks) check(ctx context.Context, cluster lc.Name, name string) error {
	stored, ok := t.configurations.get(validatingPolicies, cluster, name)
	if !ok {
		return nil
	}
	policy, err := versioned[v1.ValidatingAdmissionPolicy](stored)
	if err != nil {
		return err
	}
	if policy.Generation <= policy.Status.ObservedGeneration {
		return nil
	}
	checker, err := t.statuses.Checker(cluster)
	if err != nil {
		return fmt.Errorf("check its types: %w", err)
	}
	types := applyv1.TypeChecking()
	for _, w := range checker.Check(policy) {
		types.WithExpressionWarnings(applyv1.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	// One that is gone meanwhile, or was made again, is another policy: by the UID the API refuses this status, and makes no object
	// of it. The next try looks at what there is then.
	err = t.statuses.Apply(logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: cluster}), cluster, applyv1.ValidatingAdmissionPolicy(name).WithUID(policy.UID).
		WithStatus(applyv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(policy.Generation).WithTypeChecking(types)))
	if err != nil && !apierrors.IsNotFound(err) { // or it is gone
		return fmt.Errorf("write its status: %w", err)
	}
	return nil
}
