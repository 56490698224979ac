package cronjobs

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/client/clienttest"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/internal/turns"
)

// answering gives a controller clients of a handler, and informers that know nothing.
func answering(t *testing.T, c *Controller, handler http.HandlerFunc) {
	t.Helper()
	c.clients, c.informers = clienttest.Serve(t, handler)
}

// TestLanes: of a workspace two looks go on at once.
func TestLanes(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	c := laned(clk)
	clienttest.Lanes(t, clienttest.Laned{Clock: clk, AtOnce: 2, Apart: apart, Look: c.handle, Going: c.lanes.Going}, func(handler http.HandlerFunc) { answering(t, c, handler) })
}

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func laned(clk *clocktesting.FakePassiveClock) *Controller {
	return &Controller{clock: clk, lanes: turns.NewLanes[logicalcluster.Name, client.Key](clk, lane), seen: map[client.Key]seen{}}
}

// TestForgetsWorkspaces: of a workspace that is gone nothing is kept, whether or not anybody told of its CronJobs.
func TestForgetsWorkspaces(t *testing.T) {
	c := laned(clocktesting.NewFakePassiveClock(noon))
	c.due = queue.New("test", c.handle)
	defer c.due.Stop()
	answering(t, c, clienttest.NotFound)
	cron := hourly(func(c *batchv1.CronJob) { c.Annotations = map[string]string{logicalcluster.AnnotationKey: "shop"} })
	c.see(cron, false)
	if _, err := c.handle(t.Context(), client.KeyOf(cron)); err != nil || len(c.seen) > 0 {
		t.Errorf("%v; kept are %v", err, c.seen)
	}
}

// TestStatusIsRefused: what the workspace does not let in of a status its people are told, and it is tried again later; it is no
// failure of the server.
func TestStatusIsRefused(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	c := laned(clk)
	var told []string
	answering(t, c, func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.HasSuffix(req.URL.Path, "/status"):
			clienttest.Answer(w, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"admission webhook \"keep.example.com\" denied the request"}`)
		case strings.HasSuffix(req.URL.Path, "/jobs"):
			clienttest.Answer(w, http.StatusCreated, `{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"made","uid":"made"}}`)
		case strings.HasSuffix(req.URL.Path, "/events"):
			body, err := io.ReadAll(req.Body)
			if err != nil {
				t.Error(err)
			}
			object, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), body)
			if err != nil {
				t.Error(err)
				break
			}
			told = append(told, object.(*corev1.Event).Reason)
			clienttest.Answer(w, http.StatusCreated, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"report.1","namespace":"default"}}`)
		default:
			clienttest.NotFound(w, req)
		}
	})
	cron := hourly(func(c *batchv1.CronJob) { c.Annotations = map[string]string{logicalcluster.AnnotationKey: "shop"} })
	changed := *cron.Status.DeepCopy()
	changed.LastSuccessfulTime = ptr.To(metav1.NewTime(noon))
	for name, tc := range map[string]struct {
		decided decision
		want    []string
	}{
		"before anything":  {decision{status: changed, run: noon}, []string{"FailedUpdateStatus"}},
		"of a Job made":    {decision{status: cron.Status, run: noon}, []string{"SuccessfulCreate", "FailedUpdateStatus"}},
		"nothing is to be": {decision{status: cron.Status}, nil},
	} {
		told, c.events = nil, client.NewEvents(c.clients, "test", clk) // who knows of no Event that was told before
		again, err := c.carryOut(client.In(t.Context(), "shop"), cron, tc.decided, noon)
		if wait := map[bool]time.Duration{true: refused}[tc.want != nil]; err != nil || again != wait {
			t.Errorf("%s: again in %s, %v; want %s", name, again, err, wait)
		}
		if !slices.Equal(told, tc.want) {
			t.Errorf("%s: told %q, want %q", name, told, tc.want)
		}
	}
}
