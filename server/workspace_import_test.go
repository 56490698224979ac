package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// TestOwnersFirst: the garbage collector deletes what names an owner that is not there yet.
func TestOwnersFirst(t *testing.T) {
	items := []item{
		{at: 1, stage: stageBindings, uid: "binding"},
		{at: 2, stage: stageObjects, uid: "config", owners: []types.UID{"replicas"}},
		{at: 3, stage: stageWorkloads, uid: "replicas", owners: []types.UID{"deployment"}},
		{at: 4, stage: stageWorkloads, uid: "deployment"},
		{at: 5, stage: stageObjects, uid: "a", owners: []types.UID{"b"}}, // a circle
		{at: 6, stage: stageObjects, uid: "b", owners: []types.UID{"a"}},
		{at: 7, stage: stageObjects, uid: "self", owners: []types.UID{"self", "elsewhere"}},
		{at: 8, stage: stageNamespaces, uid: "namespace"},
		{at: 9, stage: stageObjects}, // a lock
	}
	ownersFirst(items)
	var order []int64
	for _, it := range items {
		order = append(order, it.at)
	}
	if diff := cmp.Diff([]int64{8, 7, 9, 6, 5, 4, 3, 2, 1}, order); diff != "" {
		t.Errorf("the order (-want +got):\n%s", diff)
	}
}
