package admission

import (
	"fmt"
	"strings"
	"testing"

	lc "github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// TestAddedAndRefused: what is added to a pod that runs in a physical cluster is refused at once where that is known to refuse it, and nothing is asked
// where nothing is added.
func TestAddedAndRefused(t *testing.T) {
	pod := func(added ...string) *core.Pod {
		p := &core.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", Labels: map[string]string{workloadv1alpha1.MirrorLabel: "m"}}, Spec: core.PodSpec{NodeName: "east"}}
		for _, name := range added {
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, core.EphemeralContainer{EphemeralContainerCommon: core.EphemeralContainerCommon{Name: name}})
		}
		return p
	}
	for reason, tc := range map[string]struct {
		old, now *core.Pod
		sentence string
		asked    bool
		want     string
	}{
		"it is taken":      {old: pod(), now: pod("d"), asked: true},
		"it is refused":    {old: pod(), now: pod("d"), sentence: `refused by the physical clusters "east"`, asked: true, want: `refused by the physical clusters "east". With --profile=baseline`},
		"nothing is added": {old: pod("d"), now: pod("d"), sentence: "refused"},
	} {
		tc.now.Labels = map[string]string{"of": "who adds"} // the marks are the row's
		asked := false
		s := NewShown(func(cluster lc.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) ([]string, error) {
			asked = true
			if of, ok := object.(*corev1.Pod); !ok || cluster != "shop" || resource != pods || namespace != "team" || len(of.Spec.EphemeralContainers) != 1 || of.Labels[workloadv1alpha1.MirrorLabel] != "m" {
				return nil, fmt.Errorf("asked for %s of %s/%s: %+v", resource, cluster, namespace, object)
			}
			if tc.sentence == "" {
				return nil, nil
			}
			return []string{tc.sentence}, nil
		})
		ctx, _ := in(logicalcluster.Cluster{Name: "shop"})
		a := admission.NewAttributesRecord(tc.now, tc.old, core.Kind("Pod").WithVersion("v1"), "team", "web", corev1.SchemeGroupVersion.WithResource("pods"), "ephemeralcontainers", admission.Update, nil, false, alice)
		err := s.Validate(ctx, a, nil)
		if asked != tc.asked || tc.want == "" && err != nil || tc.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: asked %v, error %v, want %q", reason, asked, err, tc.want)
		}
	}
}
