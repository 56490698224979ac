package cronjobs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
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
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/internal/turns"
)

// answering gives a controller clients of a server, and informers that know nothing.
func answering(t *testing.T, c *Controller, handler http.HandlerFunc) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	var err error
	if c.clients, err = client.New(&rest.Config{Host: server.URL}); err != nil {
		t.Fatal(err)
	}
	clusters, err := client.NewInformer(c.clients, &corev1alpha1.LogicalCluster{}, client.InformerOptions[*corev1alpha1.LogicalCluster]{})
	if err != nil {
		t.Fatal(err)
	}
	c.informers = &client.Informers{LogicalClusters: clusters}
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// notFound is said of everything.
func notFound(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
}

// TestLanes: of a workspace two looks go on at once, however many wait, and no other workspace waits for them. Whoever is told to
// wait has neither failed nor done anything.
func TestLanes(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	c := laned(clk)
	reached, release := make(chan struct{}, 10), make(chan struct{})
	answering(t, c, func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/clusters/shop/") {
			reached <- struct{}{}
			<-release
		}
		notFound(w, req)
	})
	look := func(cluster logicalcluster.Name, name string) (wait time.Duration, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return c.handle(ctx, client.Key{Cluster: cluster, Namespace: "team", Name: name})
	}
	ended := make(chan error, atOnce)
	for _, name := range []string{"a", "b"} {
		go func() {
			_, err := look("shop", name)
			ended <- err
		}()
		<-reached
		clk.SetTime(clk.Now().Add(time.Minute))
	}
	if again, err := look("shop", "c"); again != 0 || !errors.Is(err, queue.Later(apart)) {
		t.Errorf("the third of a workspace: %s, %v; want that it waits %s", again, err, apart)
	}
	if again, err := look("bank", "a"); again != 0 || err != nil {
		t.Errorf("the first of another workspace: %s, %v", again, err)
	}
	close(release)
	for range atOnce {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := c.lanes.Going("shop"); n != 0 {
		t.Errorf("%d go on", n)
	}
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
	answering(t, c, notFound)
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
			answer(w, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"admission webhook \"keep.example.com\" denied the request"}`)
		case strings.HasSuffix(req.URL.Path, "/jobs"):
			answer(w, http.StatusCreated, `{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"made","uid":"made"}}`)
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
			answer(w, http.StatusCreated, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"report.1","namespace":"default"}}`)
		default:
			notFound(w, req)
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
