package garbage

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestDecide(t *testing.T) {
	refs := func(n int) []metav1.OwnerReference {
		all := []metav1.OwnerReference{{UID: "a"}, {UID: "b"}, {UID: "c", BlockOwnerDeletion: new(true)}}
		return all[:n]
	}
	for _, tc := range []struct {
		reason                            string
		states                            []state
		mayHaveDependents, dependentWaits bool
		want                              plan
	}{
		{"what nobody owns stays", nil, true, false, plan{}},
		{"its owner is there", []state{solid}, false, false, plan{}},
		{"its owner is gone", []state{dangling}, true, false, plan{remove: true}},
		{"all owners are gone", []state{dangling, dangling}, false, false, plan{remove: true}},
		{"one owner stays, the others are let go", []state{dangling, solid, waiting}, true, true, plan{release: []types.UID{"a", "c"}}},
		{"its owner waits for it", []state{waiting}, false, false, plan{remove: true}},
		{"its owner waits for it, and it has dependents", []state{waiting}, true, false, plan{remove: true, foreground: true}},
		{"one owner waits, the other is gone", []state{dangling, waiting}, true, false, plan{remove: true, foreground: true}},
		{"a circle: the dependent waits for it in turn", []state{dangling, dangling, waiting}, true, true, plan{remove: true, foreground: true, unblock: true}},
		{"a circle that blocks nothing", []state{waiting}, true, true, plan{remove: true, foreground: true}},
	} {
		got := decide(refs(len(tc.states)), tc.states, tc.mayHaveDependents, tc.dependentWaits)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(plan{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}

func TestReferences(t *testing.T) {
	refs := []metav1.OwnerReference{{UID: "a", BlockOwnerDeletion: new(true)}, {UID: "b"}}
	if diff := cmp.Diff([]metav1.OwnerReference{{UID: "b"}}, without(refs, []types.UID{"a"})); diff != "" {
		t.Error(diff)
	}
	if got := without(refs, []types.UID{"a", "b"}); got == nil || len(got) != 0 {
		t.Errorf("%v, want an empty list: none at all would patch nothing", got)
	}
	if diff := cmp.Diff([]metav1.OwnerReference{{UID: "a", BlockOwnerDeletion: new(false)}, {UID: "b"}}, unblocked(refs)); diff != "" {
		t.Error(diff)
	}
	if !blocks(refs[0]) {
		t.Error("what was read, which a cache may share, was changed")
	}
}
