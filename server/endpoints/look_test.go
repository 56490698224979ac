package endpoints

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"

	"atoll.dev/atoll/server/storage"
)

// cache is a watch cache of so many pods, or of nothing else. As upstream's, it has no limit at resourceVersion 0, and says that there is more where it has as many as are asked for, since others follow.
type cache struct {
	kubestorage.Interface
	pods   int
	slices []discovery.EndpointSlice
	wrong  error
}

func (c cache) Get(_ context.Context, key string, _ kubestorage.GetOptions, _ runtime.Object) error {
	return kubestorage.NewKeyNotFoundError(key, 0)
}

func (c cache) GetList(_ context.Context, _ string, options kubestorage.ListOptions, into runtime.Object) error {
	if slices, ok := into.(*discovery.EndpointSliceList); ok {
		slices.Items = c.slices
	}
	list, ok := into.(*core.PodList)
	for i := range c.pods {
		if ok && options.Predicate.Limit > 0 && options.ResourceVersion != "0" && int64(len(list.Items)) == options.Predicate.Limit {
			list.Continue = "more"
			break
		}
		if own := labels.Set(pod("", "", nil).Labels); ok && options.Predicate.Label.Matches(own) {
			list.Items = append(list.Items, core.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("web-%05d", i), Labels: own},
				Status:     core.PodStatus{Phase: core.PodRunning, PodIPs: []core.PodIP{{IP: fmt.Sprintf("10.%d.%d.1", i/250, i%250)}}},
			})
		}
	}
	if ok && int64(len(list.Items)) == options.Predicate.Limit {
		list.Continue = "more"
	}
	return c.wrong
}

// TestPodsThatAreRead: of pods without number so many are read, and it is said that there are more.
func TestPodsThatAreRead(t *testing.T) {
	for pods, said := range map[int]string{mostRead: "Of the 10000 pods", mostRead + 1: "the first 10000, by their names, are looked at"} {
		store := func(pods int) *storage.Resource { return &storage.Resource{Storage: cache{pods: pods}} }
		c := &Controller{rows: Rows{Pods: store(pods), EndpointSlices: store(0), Endpoints: store(0), Nodes: store(0)}}
		f, err := c.look(t.Context(), service(nil), "")
		if err != nil {
			t.Fatal(err)
		}
		p, err := decide(f, noon)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.pods) != mostRead || f.more != (pods > mostRead) || len(p.left) != 1 || p.left[0].reason != "EndpointsLeftOut" || !strings.Contains(p.left[0].message, said) {
			t.Errorf("of %d pods %d are read, more: %v, and it is said %+v; want %q", pods, len(f.pods), f.more, p.left, said)
		}
	}
}

// TestZonesThatAreNotKnown: while nobody can say which Nodes a workspace has, an address that is gone goes, and the others stay in the zones that they are in.
func TestZonesThatAreNotKnown(t *testing.T) {
	w := newWorld()
	w.step(t, service(nil), []*corev1.Pod{pod("web-00000", "10.0.0.1", nil), pod("b", "10.1.1.2", nil)})
	store := func(c cache) *storage.Resource { return &storage.Resource{Storage: c} }
	c := &Controller{rows: Rows{Pods: store(cache{pods: 1}), EndpointSlices: store(cache{slices: []discovery.EndpointSlice{*w.stored(t)[0]}}), Endpoints: store(cache{}), Nodes: store(cache{wrong: errors.New("away")})}}
	f, err := c.look(t.Context(), service(nil), "")
	if err != nil || len(f.pods) != 1 || len(f.zones) != 1 || f.zones["east"] != "zone-a" {
		t.Errorf("there is %+v, %v", f, err)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if _, err := c.look(ctx, service(nil), ""); err == nil {
		t.Error("who ends is told that all is well")
	}
}
