package builtin

import (
	"math"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
)

// TestMostPods: what a cluster may show of a workload follows from what the workload asks for, and is bounded whatever that is.
func TestMostPods(t *testing.T) {
	job := func(completions, parallelism, backoff, perIndex *int32) runtime.Object {
		return &batch.Job{Spec: batch.JobSpec{Completions: completions, Parallelism: parallelism, BackoffLimit: backoff, BackoffLimitPerIndex: perIndex}}
	}
	most := ptr.To[int32](math.MaxInt32)
	for reason, tc := range map[string]struct {
		leaf runtime.Object
		want int
	}{
		"a Deployment":             {&apps.Deployment{Spec: apps.DeploymentSpec{Replicas: 2}}, 26},
		"a ReplicaSet":             {&apps.ReplicaSet{Spec: apps.ReplicaSetSpec{Replicas: 2}}, 26},
		"a ReplicationController":  {&core.ReplicationController{Spec: core.ReplicationControllerSpec{Replicas: ptr.To[int32](2)}}, 26},
		"that says no number":      {&core.ReplicationController{}, 23},
		"a StatefulSet":            {&apps.StatefulSet{Spec: apps.StatefulSetSpec{Replicas: 2}}, 26},
		"a large one":              {&apps.StatefulSet{Spec: apps.StatefulSetSpec{Replicas: math.MaxInt32}}, mostPodsOfAll},
		"a DaemonSet":              {&apps.DaemonSet{}, mostPodsOfAll},
		"a Job":                    {job(nil, nil, nil, nil), 3 + 6 + 20},
		"that completes often":     {job(ptr.To[int32](50), ptr.To[int32](5), ptr.To[int32](2), nil), 150 + 2 + 20},
		"that has many at once":    {job(nil, ptr.To[int32](50), ptr.To[int32](0), nil), 150 + 20},
		"each of which fails once": {job(ptr.To[int32](50), ptr.To[int32](5), most, ptr.To[int32](1)), 150 + 50 + 20},
		"that fails for ever":      {job(most, most, most, most), mostPodsOfAll},
	} {
		if got := mostPods(tc.leaf); got != tc.want {
			t.Errorf("%s: %d, want %d", reason, got, tc.want)
		}
	}
}
