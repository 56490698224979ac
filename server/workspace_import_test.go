package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
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

// TestImportedJobIsNotDoneAgain: what is done once keeps what it has come to; what runs for ever is as if it were new.
func TestImportedJobIsNotDoneAgain(t *testing.T) {
	job := &batch.Job{Status: batch.JobStatus{Succeeded: 1}}
	if err := withoutTraces(batch.Resource("jobs"), job); err != nil || job.Status.Succeeded != 1 {
		t.Errorf("a Job has %+v, %v: it would be done again", job.Status, err)
	}
	deployment := &apps.Deployment{Status: apps.DeploymentStatus{Replicas: 1}}
	if err := withoutTraces(apps.Resource("deployments"), deployment); err != nil || deployment.Status.Replicas != 0 {
		t.Errorf("a Deployment has %+v, %v: nothing of it runs yet", deployment.Status, err)
	}
}
