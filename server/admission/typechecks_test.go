package admission

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	applyv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"

	"atoll.dev/atoll/internal/logicalcluster"
)

// statuses are PolicyStatuses; a check of a logical cluster in slow lasts until release.
type statuses struct {
	slow    map[lc.Name]bool
	begun   chan lc.Name
	release chan struct{}
	applied chan string // "cluster name UID generation"
}

// Checker implements PolicyStatuses.
func (s *statuses) Checker(cluster lc.Name) (*validating.TypeChecker, error) {
	s.begun <- cluster
	if s.slow[cluster] {
		<-s.release
	}
	return &validating.TypeChecker{}, nil
}

// Apply implements PolicyStatuses.
func (s *statuses) Apply(ctx context.Context, cluster lc.Name, policy *applyv1.ValidatingAdmissionPolicyApplyConfiguration) error {
	if in, _ := logicalcluster.ClusterFrom(ctx); in.Name != cluster {
		return fmt.Errorf("in %q", in.Name)
	}
	uid := types.UID("")
	if policy.UID != nil {
		uid = *policy.UID
	}
	s.applied <- fmt.Sprint(cluster, " ", *policy.Name, " ", uid, " ", *policy.Status.ObservedGeneration)
	return nil
}

// What a logical cluster has checked, however much and slow that is, leaves workers to the others; and a status is for the policy
// that was checked alone, not for one of its name.
func TestTypeChecksTakeTurns(t *testing.T) {
	const many = 20
	s := &statuses{
		slow: map[lc.Name]bool{"slow": true}, begun: make(chan lc.Name, 10*many), release: make(chan struct{}), applied: make(chan string, 10*many),
	}
	configurations := configurationsOf(t, map[schema.GroupResource][]any{})
	checks := NewTypeChecks(configurations, s)
	store := &configurationStore{configurations, validatingPolicies}
	add := func(cluster lc.Name, name string, generation int64) {
		t.Helper()
		policy, _ := policyIn(cluster, name, "true")
		policy.Generation, policy.Spec.MatchConstraints = generation, nil // it matches nothing: there are no types to compare
		if err := store.Add(policy); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { checks.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for i := range many {
		add("slow", fmt.Sprint("p", i), 1)
	}
	if first := <-s.begun; first != "slow" {
		t.Fatalf("begun with %s", first)
	}
	add("quick", "only", 3)
	next := func() string {
		t.Helper()
		select {
		case applied := <-s.applied:
			return applied
		case <-time.After(time.Minute):
			t.Fatalf("no status for a minute; %d checks were begun since, of %d", len(s.begun), many+1)
		}
		return ""
	}
	release := sync.OnceFunc(func() { close(s.release) })
	defer release()
	if got, want := next(), "quick only quickonly 3"; got != want {
		t.Errorf("%s, while another logical cluster's check lasts; want %s", got, want)
	}
	release()
	seen := map[string]bool{}
	for range many {
		seen[next()] = true
	}
	for i := range many {
		if want := fmt.Sprintf("slow p%d slowp%d 1", i, i); !seen[want] {
			t.Errorf("not checked: %s", want)
		}
	}
	checks.mu.Lock()
	defer checks.mu.Unlock()
	if len(checks.waiting) != 0 {
		t.Errorf("%v waits although all is checked", checks.waiting)
	}
}

// TestManyPoliciesHoldUpNobody: a list of many policies, as after a start, keeps no request from what it needs while their types wait to be
// checked, and only those wait that are newer than their status.
func TestManyPoliciesHoldUpNobody(t *testing.T) {
	configurations := configurationsOf(t, nil)
	checks := NewTypeChecks(configurations, nil)
	locked := 0
	configurations.policyChanged = func(cluster lc.Name, name string) {
		if !configurations.mu.TryRLock() {
			locked++
		} else {
			configurations.mu.RUnlock()
		}
		checks.add(cluster, name)
	}
	const many = 50_000
	var policies []any
	var want []string
	for i := range many {
		policy, _ := policyIn("shop", fmt.Sprintf("p%05d", i), "true")
		if policy.Generation = 2; i%2 == 0 {
			policy.Status.ObservedGeneration = 2
		} else {
			want = append(want, policy.Name)
		}
		policies = append(policies, policy)
	}
	store := &configurationStore{configurations, validatingPolicies}
	if err := store.Replace(policies, "2"); err != nil {
		t.Fatal(err)
	}
	for _, policy := range policies[:2] {
		if err := store.Update(policy); err != nil {
			t.Fatal(err)
		}
	}
	if locked > 0 {
		t.Errorf("%d times somebody is told while all requests wait", locked)
	}
	var got []string
	for {
		name, ok, more := checks.take("shop")
		if !ok {
			break
		}
		if got = append(got, name); more != (len(got) < len(want)) {
			t.Fatalf("more wait after %d of %d: %t", len(got), len(want), more)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d wait, want each of %d once, in order", len(got), len(want))
	}
}
