package builtin

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	api "k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// unanswered is the namespace of a mirror that nobody can read.
const unanswered = "unanswered"

// namespaces are all for team of shop.
type namespaces struct{ Objects }

func (namespaces) Get(_ context.Context, _ schema.GroupResource, _, name string, _ bool) (runtime.Object, error) {
	if name == unanswered {
		return nil, errors.New("etcdserver: no leader")
	}
	return &api.Namespace{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"}, Annotations: map[string]string{workloadv1alpha1.RootAnnotation: "/team"},
	}}, nil
}

// TestWatchOfShownPodsHasNoGap: what a mirror's watch cannot tell ends it.
func TestWatchOfShownPodsHasNoGap(t *testing.T) {
	chosen := selection{
		mirror: "east", labels: labels.Everything(), fields: fields.Everything(),
		isFor: func(pod *api.Pod) (bool, bool, error) {
			return shownPods{objects: namespaces{}}.isFor(t.Context(), pod)
		},
		attrs: func(runtime.Object) (labels.Set, fields.Set, error) { return nil, nil, nil },
	}
	in := func(namespace string) *api.Pod {
		return &api.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-1", Annotations: map[string]string{
			logicalcluster.Annotation: "shop", workloadv1alpha1.MirrorNamespaceAnnotation: namespace,
		}}}
	}
	for name, missed := range map[string]runtime.Object{"etcd does not answer": in(unanswered), "no pod": &api.Node{}} {
		live := watch.NewFakeWithChanSize(3, false)
		live.Add(in("team-1a"))
		live.Modify(missed)
		live.Modify(in("team-1a")) // which nobody may take for the next
		live.Stop()
		var told []watch.EventType
		for e := range storage.Translated(t.Context(), live, chosen.event).ResultChan() {
			told = append(told, e.Type)
		}
		if diff := cmp.Diff([]watch.EventType{watch.Added, watch.Error}, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
