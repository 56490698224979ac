package autoscaling

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	clocktesting "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

var web = client.Key{Cluster: "shop", Namespace: "team", Name: "web"}

// looking is a controller whose server says of the scale what the test does, and takes statuses, which are added up, and Events.
func looking(t *testing.T, scale func() (code int, text string), statuses *[]string) *Controller {
	t.Helper()
	clk := clocktesting.NewFakePassiveClock(noon)
	c := answering(t, func(w http.ResponseWriter, req *http.Request) {
		switch path := req.URL.Path; {
		case strings.HasSuffix(path, "/scale"):
			code, text := scale()
			answer(w, code, text)
		case strings.HasSuffix(path, "/status"):
			body, err := io.ReadAll(req.Body)
			if err != nil {
				t.Error(err)
			}
			*statuses = append(*statuses, string(body))
			answer(w, http.StatusOK, `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"web"}}`)
		case strings.Contains(path, "/events"):
			answer(w, http.StatusCreated, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"web.1"}}`)
		default:
			t.Errorf("%s is asked for", path)
			http.NotFound(w, req)
		}
	})
	c.clock, c.events = clk, client.NewEvents(c.clients, "test", clk)
	c.known, c.lanes = map[client.Key]map[string]remembered{}, map[logicalcluster.Name]*lane{}
	return c
}

// TestRescaledAtEveryLook: what somebody scales while it is looked at is looked at once more at once, and not without end; then it is said.
func TestRescaledAtEveryLook(t *testing.T) {
	reads := int32(20) // more than there may be: no metric is asked
	var statuses []string
	c := looking(t, func() (int, string) {
		reads++
		return http.StatusOK, fmt.Sprintf(`{"metadata":{"name":"web"},"spec":{"replicas":%d}}`, reads)
	}, &statuses)
	for look, want := range []error{errRescaled, nil, errRescaled, nil} {
		if err := c.scale(client.In(t.Context(), web.Cluster), web, scaler(onCPU)); !errors.Is(err, want) {
			t.Errorf("look %d: %v, want %v", look, err, want)
		}
	}
	if len(statuses) != 2 || !strings.Contains(statuses[0], errRescaled.Error()) {
		t.Errorf("it says %q, want twice that %v", statuses, errRescaled)
	}
}

// TestGoneSelectsNothing: one whose target is gone is nobody's rival any more.
func TestGoneSelectsNothing(t *testing.T) {
	var statuses []string
	c := looking(t, func() (int, string) {
		return http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	}, &statuses)
	hpa := scaler(onCPU)
	c.remember(web, remembered{uid: hpa.UID, selector: labels.Everything()})
	if err := c.scale(client.In(t.Context(), web.Cluster), web, hpa); err != nil {
		t.Fatal(err)
	}
	if is := c.recall(web, hpa.UID); is.selector != nil || len(statuses) != 1 {
		t.Errorf("it selects %v, and says %q", is.selector, statuses)
	}
}

// TestTooManyMetrics: with more metrics than there may be no pods are read.
func TestTooManyMetrics(t *testing.T) {
	var statuses []string
	c := looking(t, func() (int, string) {
		return http.StatusOK, `{"metadata":{"name":"web"},"spec":{"replicas":4},"status":{"selector":"app=web"}}`
	}, &statuses)
	hpa := scaler(slices.Repeat([]autoscalingv2.MetricSpec{onCPU}, kinds.MostMetrics+1)...)
	if err := c.scale(client.In(t.Context(), web.Cluster), web, hpa); err != nil {
		t.Fatal(err)
	}
	if len(statuses) != 1 || !strings.Contains(statuses[0], "TooManyMetrics") {
		t.Errorf("it says %q", statuses)
	}
}

// TestReadPodsAreCharged: who reads many pods has the looks of its workspace come later, while it reads.
func TestReadPodsAreCharged(t *testing.T) {
	var items []string
	for i := range 2*podsOfALook + podsOfALook/2 {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":"web-%d"}}`, i))
	}
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, `{"kind":"PodList","apiVersion":"v1","items":[`+strings.Join(items, ",")+`]}`)
	})
	c.clock, c.lanes = clocktesting.NewFakePassiveClock(noon), map[logicalcluster.Name]*lane{}
	pods, _, err := c.podsOf(client.In(t.Context(), web.Cluster), web, labels.Everything(), &asked{})
	if err != nil || len(pods) != len(items) {
		t.Fatalf("%d pods, %v, want %d", len(pods), err, len(items))
	}
	if wait := c.turn(web); wait != 2*pace {
		t.Errorf("the next look waits %s, want %s", wait, 2*pace)
	}
}

// TestLost: pods of a physical cluster that is away are known by why they are not Ready.
func TestLost(t *testing.T) {
	for name, tc := range map[string]struct {
		condition corev1.PodCondition
		want      bool
	}{
		"away":          {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: workloadv1alpha1.PodUnheard}, true},
		"not seen":      {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: workloadv1alpha1.PodUnseen}, true},
		"begins":        {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady"}, false},
		"serves":        {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, false},
		"another thing": {corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: workloadv1alpha1.PodUnheard}, false},
	} {
		p := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{tc.condition}}}
		if is := podOf(p, &asked{}); is.lost != tc.want {
			t.Errorf("%s: lost: %v, want %v", name, is.lost, tc.want)
		}
	}
}
