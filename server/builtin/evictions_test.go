package builtin

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestGraceOf: how long a pod that is evicted has to end.
func TestGraceOf(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	for name, tc := range map[string]struct {
		reason            string
		shown             bool
		spec, asked, want *int64
	}{
		"as its spec says":      {"upstream looks that up, and shortens no deletion that is under way", true, seconds(30), nil, nil},
		"as is asked for":       {"", true, seconds(30), seconds(7), seconds(7)},
		"none, by its spec":     {"it would go at once", true, seconds(0), nil, seconds(1)},
		"none said":             {"it would go at once", true, nil, nil, seconds(1)},
		"none asked for":        {"it would go at once", true, seconds(30), seconds(0), seconds(1)},
		"less than none":        {"it means one second", true, seconds(30), seconds(-5), seconds(1)},
		"nobody's":              {"nobody would end it", false, seconds(30), nil, seconds(0)},
		"nobody's, with a time": {"nobody would end it", false, seconds(30), seconds(7), seconds(0)},
	} {
		pod := &api.Pod{Spec: api.PodSpec{TerminationGracePeriodSeconds: tc.spec}}
		if tc.shown {
			pod.Labels = map[string]string{workloadv1alpha1.MirrorLabel: "east"}
		}
		if got := graceOf(pod, tc.asked); ptr.Deref(got, -9) != ptr.Deref(tc.want, -9) {
			t.Errorf("%s: %d s, want %d: %s", name, ptr.Deref(got, -9), ptr.Deref(tc.want, -9), tc.reason)
		}
	}
}

// onePod is a storage of it.
type onePod struct {
	storage.Interface
	pod *api.Pod
}

func (o *onePod) GuaranteedUpdate(_ context.Context, _ string, _ runtime.Object, _ bool, _ *storage.Preconditions, update storage.UpdateFunc, _ runtime.Object) error {
	next, _, err := update(o.pod.DeepCopy(), storage.ResponseMeta{})
	if err == nil {
		o.pod = next.(*api.Pod)
	}
	return err
}

// TestShownStay: upstream does not take the row of a shown pod away at once. What is done to it else is.
func TestShownStay(t *testing.T) {
	refused := errors.New("refused")
	ends := func(pod *api.Pod, grace int64) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(time.Unix(1, 0))), &grace
	}
	for name, tc := range map[string]struct {
		mirror string
		before func(*api.Pod)
		update func(*api.Pod) error
		want   error
	}{
		"at once":                {"east", nil, func(p *api.Pod) error { ends(p, 0); return nil }, errEndsBelow},
		"with time":              {"east", nil, func(p *api.Pod) error { ends(p, 1); return nil }, nil},
		"nobody's":               {"", nil, func(p *api.Pod) error { ends(p, 0); return nil }, nil},
		"a condition":            {"east", nil, func(p *api.Pod) error { p.Status.Reason = "Evicted"; return nil }, nil},
		"a condition, forced":    {"east", func(p *api.Pod) { ends(p, 0) }, func(p *api.Pod) error { p.Status.Reason = "Evicted"; return nil }, nil},
		"forced while it ends":   {"east", func(p *api.Pod) { ends(p, 30) }, func(p *api.Pod) error { ends(p, 0); return nil }, errEndsBelow},
		"what upstream refuses":  {"east", nil, func(p *api.Pod) error { ends(p, 0); return refused }, refused},
		"not even of somebody's": {"", nil, func(*api.Pod) error { return refused }, refused},
	} {
		pod := &api.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		if tc.mirror != "" {
			pod.Labels = map[string]string{workloadv1alpha1.MirrorLabel: tc.mirror}
		}
		if tc.before != nil {
			tc.before(pod)
		}
		in := &onePod{pod: pod}
		err := shownStay{in}.GuaranteedUpdate(t.Context(), "p", &api.Pod{}, false, nil, func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			return obj, nil, tc.update(obj.(*api.Pod))
		}, nil)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if unchanged := in.pod == pod; unchanged != (tc.want != nil) {
			t.Errorf("%s: it is %+v", name, in.pod)
		}
	}
}
