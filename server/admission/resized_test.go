package admission

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// TestResizedAndRefused: who resizes a pod that runs in a physical cluster is told what that says to it; nobody is asked where
// nothing changes, and of a pod that runs nowhere.
func TestResizedAndRefused(t *testing.T) {
	pod := func(cpu, mirror string) *core.Pod {
		return &core.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", Labels: map[string]string{workloadv1alpha1.MirrorLabel: mirror}}, Spec: core.PodSpec{
			NodeName: "east", Containers: []core.Container{{Name: "c", Resources: core.ResourceRequirements{Requests: core.ResourceList{core.ResourceCPU: resource.MustParse(cpu)}}}}}}
	}
	unplaced := func(cpu string) *core.Pod {
		p := pod(cpu, "")
		p.Labels = nil
		return p
	}
	bound := func(cpu string) *core.Pod {
		p := pod(cpu, "m")
		p.Finalizers = []string{workloadv1alpha1.SyncerFinalizer}
		return p
	}
	for reason, tc := range map[string]struct {
		old, now *core.Pod
		says     error
		asked    bool
		want     string
	}{
		"it is taken":       {old: pod("1", "m"), now: pod("2", "m"), asked: true},
		"it is refused":     {old: pod("1", "m"), now: pod("2", "m"), says: errors.New(`physical cluster "east": no room`), asked: true, want: `physical cluster "east": no room`},
		"one that was made": {old: bound("1"), now: bound("2"), says: errors.New("no room"), asked: true, want: "no room"},
		"nothing changes":   {old: pod("1", "m"), now: pod("1000m", "m"), says: errors.New("no room")},
		"it runs nowhere":   {old: unplaced("1"), now: unplaced("2"), says: errors.New("no room")},
		"by another way":    {old: pod("1", "m"), now: pod("2", "m"), says: errors.New("no room")},
	} {
		asked := false
		r := NewResized(func(ctx context.Context, p *core.Pod) error {
			if cluster, ok := logicalcluster.ClusterFrom(ctx); !ok || cluster.Name != "shop" || p != tc.now {
				t.Errorf("%s: asked of %+v in %v", reason, p, cluster)
			}
			asked = true
			return tc.says
		})
		subresource := "resize"
		if reason == "by another way" {
			subresource = ""
		}
		ctx, _ := in(logicalcluster.Cluster{Name: "shop"})
		a := admission.NewAttributesRecord(tc.now, tc.old, core.Kind("Pod").WithVersion("v1"), "team", "web", corev1.SchemeGroupVersion.WithResource("pods"), subresource, admission.Update, nil, false, alice)
		err := r.Validate(ctx, a, nil)
		if asked != tc.asked || tc.want == "" && err != nil || tc.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: asked %v, error %v, want %q", reason, asked, err, tc.want)
		}
	}
}
