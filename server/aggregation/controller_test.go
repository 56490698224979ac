package aggregation

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestOutdated: of however many rules there are only those are looked at that somebody takes.
func TestOutdated(t *testing.T) {
	const large, rules = 64, 5000
	taker := func(name string, has ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{
			ObjectMeta:      metav1.ObjectMeta{Name: name},
			AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"for": "ops"}}}},
			Rules:           has,
		}
	}
	nodes := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}}
	pods := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}
	roles := []rbacv1.ClusterRole{
		{ObjectMeta: metav1.ObjectMeta{Name: "source", Labels: map[string]string{"for": "ops"}}, Rules: []rbacv1.PolicyRule{nodes}},
		taker("filled", nodes), taker("empty"), taker("other", pods),
	}
	for i := range large {
		role := rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large", i)}}
		for j := range rules {
			role.Rules = append(role.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{fmt.Sprint("s", j)}})
		}
		roles = append(roles, role)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	changed, err := outdated(roles)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("took %d bytes, and four of %d rules concern anybody", took, large*rules)
	}
	var names []string
	for _, role := range changed {
		names = append(names, role.Name)
		if len(role.Rules) != 1 || role.Rules[0].Resources[0] != "nodes" {
			t.Errorf("%s gets %v", role.Name, role.Rules)
		}
	}
	if got := fmt.Sprint(names); got != "[empty other]" {
		t.Errorf("%s are to be written, want those that have not what they should", got)
	}
}

// TestLooksTakeTurns: a workspace whose roles change all the time, and take a second to sum up, has a fifth of a worker.
func TestLooksTakeTurns(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	c := &Controller{clock: clk, lanes: newLanes(clk)}
	began, looks := clk.Now(), 0
	for clk.Since(began) < time.Minute {
		wait, err := c.inTurn("shop", func() error {
			looks++
			clk.SetTime(clk.Now().Add(time.Second))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if wait == 0 { // a role has changed meanwhile
			wait = time.Millisecond
		}
		clk.SetTime(clk.Now().Add(wait))
	}
	if looks < 11 || looks > 13 {
		t.Errorf("%d looks of a second in a minute, want some 12", looks)
	}
	others := 0
	for i := range 10 {
		if wait, err := c.inTurn("bank", func() error { others++; return nil }); err != nil || (wait == 0) != (i == 0) {
			t.Errorf("look %d of another workspace waits %s, %v", i, wait, err)
		}
	}
	if others != 1 {
		t.Errorf("%d looks at once", others)
	}
}
