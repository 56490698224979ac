package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// server answers what the controller asks for on the wire: lists and watches over everything, single objects, and
// writes of Placements, which its watches show. Like an API server it refuses writes on the ground of an older state:
// what the controller's informer does not show yet, it must not overwrite. It is no API server; test/e2e has that.
type server struct {
	mu       sync.Mutex // guards everything below
	objects  map[string]map[string]any
	watchers map[string][]chan []byte
	history  []change // history[n] led from revision n to n+1
	revision int
	writes   []string // those that were not refused
}

// change is what watchers of a list are sent.
type change struct {
	list  string
	event []byte
}

// set stores an object under its path within a logical cluster, e.g. "/api/v1/namespaces/front", and tells watchers.
func (s *server) set(t *testing.T, cluster, path string, object runtime.Object) {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(cluster, path, raw)
}

// store is called with mu held. It returns what is stored.
func (s *server) store(cluster, path string, raw []byte) map[string]any {
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		panic(err)
	}
	list := collection(path)
	o["kind"] = strings.TrimSuffix(listKinds[list[strings.LastIndex(list, "/")+1:]], "List")
	o["apiVersion"] = groupVersion(list)
	s.revision++
	m := o["metadata"].(map[string]any)
	m["resourceVersion"] = fmt.Sprint(s.revision)
	if m["uid"] == nil {
		m["uid"] = fmt.Sprintf("uid-%d", s.revision)
	}
	annotations, ok := m["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
		m["annotations"] = annotations
	}
	annotations[lcctx.Annotation] = cluster
	kind := "ADDED"
	if s.objects[cluster+path] != nil {
		kind = "MODIFIED"
	}
	s.objects[cluster+path] = o
	event, _ := json.Marshal(map[string]any{"type": kind, "object": o})
	s.history = append(s.history, change{list, event})
	for _, w := range s.watchers[list] {
		w <- event
	}
	return o
}

// collection is the list path of an object's: "/apis/apps/v1/namespaces/front/deployments/web" is in "/apis/apps/v1/deployments".
func collection(path string) string {
	parts := strings.Split(path, "/")
	parts = parts[:len(parts)-1]
	if i := len(parts) - 3; i > 0 && parts[i] == "namespaces" {
		parts = append(parts[:i], parts[i+2:]...)
	}
	return strings.Join(parts, "/")
}

func (s *server) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	cluster, path, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/clusters/"), "/")
	path = "/" + path
	rw.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	switch {
	case req.Method == http.MethodGet && req.URL.Query().Get("watch") != "":
		events := make(chan []byte, 1000)
		s.watchers[path] = append(s.watchers[path], events)
		// What was written since the list that the watch goes on from.
		since, err := strconv.Atoi(req.URL.Query().Get("resourceVersion"))
		if err != nil {
			panic(err)
		}
		for _, c := range s.history[since:] {
			if c.list == path {
				events <- c.event
			}
		}
		s.mu.Unlock()
		rw.(http.Flusher).Flush()
		for {
			select {
			case <-req.Context().Done():
				return
			case event := <-events:
				_, _ = rw.Write(append(event, '\n')) // a client that went away is seen above
				rw.(http.Flusher).Flush()
			}
		}
	case req.Method == http.MethodGet && s.objects[cluster+path] != nil:
		_ = json.NewEncoder(rw).Encode(s.objects[cluster+path])
	case req.Method == http.MethodGet:
		items := []any{}
		for key, o := range s.objects {
			of, rest, _ := strings.Cut(key, "/")
			if (cluster == "*" || of == cluster) && collection("/"+rest) == path {
				items = append(items, o)
			}
		}
		_ = json.NewEncoder(rw).Encode(map[string]any{
			"kind": listKinds[path[strings.LastIndex(path, "/")+1:]], "apiVersion": groupVersion(path), "metadata": map[string]any{"resourceVersion": fmt.Sprint(s.revision)}, "items": items,
		})
	default:
		raw, err := io.ReadAll(req.Body)
		var meta metav1.PartialObjectMetadata
		if err == nil {
			err = json.Unmarshal(raw, &meta)
		}
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			break
		}
		write := req.Method + " " + cluster + path
		path = strings.TrimSuffix(path, "/status")
		if req.Method == http.MethodPost {
			path += "/" + meta.Name
		}
		if refused := s.refuse(cluster+path, req.Method, meta.ResourceVersion); refused != nil {
			rw.WriteHeader(int(refused.Status().Code))
			_ = json.NewEncoder(rw).Encode(refused.Status())
			break
		}
		s.writes = append(s.writes, write)
		if req.Method == http.MethodPost {
			rw.WriteHeader(http.StatusCreated)
		}
		_ = json.NewEncoder(rw).Encode(s.store(cluster, path, raw))
	}
	s.mu.Unlock()
}

// refuse is called with mu held. It says why a write of what was read at revision cannot be; nil if it can.
func (s *server) refuse(key, method, revision string) *apierrors.StatusError {
	resource := placementv1alpha1.GroupVersion.WithResource("placements").GroupResource()
	o := s.objects[key]
	switch {
	case method == http.MethodPost && o != nil:
		return apierrors.NewAlreadyExists(resource, key)
	case method == http.MethodPost:
		return nil
	case o == nil:
		return apierrors.NewNotFound(resource, key)
	case revision != o["metadata"].(map[string]any)["resourceVersion"]:
		return apierrors.NewConflict(resource, key, errors.New("it was changed"))
	}
	return nil
}

var listKinds = map[string]string{
	"logicalclusters": "LogicalClusterList", "workspaces": "WorkspaceList", "synctargets": "SyncTargetList",
	"placements": "PlacementList", "placementpolicies": "PlacementPolicyList",
	"namespaces": "NamespaceList", "deployments": "DeploymentList", "services": "ServiceList",
	"configmaps": "ConfigMapList", "secrets": "SecretList", "serviceaccounts": "ServiceAccountList",
}

// groupVersion of a collection's path: "/api/v1/services" is "v1".
func groupVersion(path string) string {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/")
	return path[:strings.LastIndex(path, "/")]
}

func logicalCluster(name, parent string) *corev1alpha1.LogicalCluster {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: in(name)}}
	if parent != "" {
		lc.Spec.Owner = &corev1alpha1.LogicalClusterOwner{Resource: "workspaces", Cluster: parent}
	}
	return lc
}

const (
	lcPath        = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
	placementPath = "/apis/placement.atoll.dev/v1alpha1/placements/"
	targetPath    = "/apis/workload.kcp.io/v1alpha1/synctargets/"
)

// waitFor waits until observe says that what it saw is right, and fails with what it saw last.
func waitFor(t *testing.T, observe func() (seen string, right bool)) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		seen, right := observe()
		if right {
			return
		}
		select {
		case <-deadline:
			t.Fatal(seen)
		case <-tick.C:
		}
	}
}

// newController is a controller of a server that nobody asks yet: its informers do not run.
func newController(t *testing.T, server *rest.Config) (*Controller, *client.Informers) {
	t.Helper()
	clients, err := client.New(server)
	if err != nil {
		t.Fatal(err)
	}
	informers, err := client.NewInformers(clients)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(clients, informers, clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	return c, informers
}

// TestController follows one namespace over the wire: placed when its Deployment comes, moved when its annotation
// changes and when a cluster that its workspace's ancestor holds appears.
func TestController(t *testing.T) {
	s := &server{objects: map[string]map[string]any{}, watchers: map[string][]chan []byte{}}
	ts := httptest.NewServer(s)
	defer ts.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer ts.CloseClientConnections()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	w, _ := newWorld()
	s.set(t, "root", lcPath, logicalCluster("root", ""))
	s.set(t, "shop", lcPath, logicalCluster("shop", "root"))
	s.set(t, "mirror", lcPath, &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName},
		Spec:       corev1alpha1.LogicalClusterSpec{Use: corev1alpha1.LogicalClusterUseMirror},
	})
	s.set(t, "root", targetPath+"east", w.addTarget("root", "east"))
	for _, cluster := range []string{"shop", "mirror"} {
		s.set(t, cluster, "/api/v1/namespaces/front", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "front"}})
		s.set(t, cluster, "/apis/apps/v1/namespaces/front/deployments/web", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "web"}})
	}
	s.set(t, "shop", "/api/v1/namespaces/default", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	s.set(t, "shop", "/api/v1/namespaces/default/services/kubernetes", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}})

	c, informers := newController(t, &rest.Config{Host: ts.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	running.Go(func() { informers.Run(ctx) })
	running.Go(func() {
		if err := c.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("Run: %v", err)
		}
	})

	placedOn := func(name, want string) {
		t.Helper()
		waitFor(t, func() (string, bool) {
			s.mu.Lock()
			raw, err := json.Marshal(s.objects["shop"+placementPath+name])
			s.mu.Unlock()
			var p placementv1alpha1.Placement
			if err == nil {
				err = json.Unmarshal(raw, &p)
			}
			if err != nil {
				return err.Error(), false
			}
			got := strings.Join(names(p.Spec.Clusters), ",")
			if len(p.Status.Conditions) > 0 {
				got += " " + p.Status.Conditions[0].Reason
			}
			got = strings.TrimSpace(got)
			return fmt.Sprintf("placement %s is on %s, want %s", name, got, want), got == want
		})
	}
	placedOn("front", `"east" Placed`)

	s.set(t, "shop", "/api/v1/namespaces/front", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "front", Annotations: map[string]string{placementv1alpha1.ClustersAnnotation: "west"},
	}})
	placedOn("front", `"east" UnknownCluster`)
	s.set(t, "root", targetPath+"west", w.addTarget("root", "west"))
	placedOn("front", `"west" Placed`)

	for _, step := range [][2]string{{"*", `"east","west" Placed`}, {"east", `"east" Placed`}} {
		wish, want := step[0], step[1]
		s.set(t, "shop", "/apis/apps/v1/namespaces/front/deployments/api", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: "front", Name: "api", UID: "api", Annotations: map[string]string{placementv1alpha1.ClustersAnnotation: wish},
		}})
		placedOn("front.deployments.api", want)
	}

	s.set(t, "root", "/apis/placement.atoll.dev/v1alpha1/placementpolicies/p", &placementv1alpha1.PlacementPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       placementv1alpha1.PlacementPolicySpec{Allow: &placementv1alpha1.ClusterSelection{Names: []string{"west"}}},
	})
	placedOn("front.deployments.api", `NotAllowed`)
	s.set(t, "shop", "/apis/apps/v1/namespaces/front/deployments/api", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "front", Name: "api", UID: "api", Annotations: map[string]string{placementv1alpha1.ClustersAnnotation: "west"},
	}})
	placedOn("front.deployments.api", `"west" Placed`)

	// Of what runs by the namespace's Placement, a leaf tells.
	west := w.targets[client.Key{Cluster: "root", Name: "west"}]
	for _, db := range []struct{ cluster, namespace, rootUID, wish string }{
		{west.Status.Mirror, kinds.DownstreamNamespace("shop", "front", false), "db", ""},
		{"shop", "front", "", "wset"},
	} {
		s.set(t, db.cluster, "/apis/apps/v1/namespaces/"+db.namespace+"/deployments/db", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: db.namespace, Name: "db", UID: types.UID("db" + db.rootUID), Labels: map[string]string{workloadv1alpha1.RootUIDLabel: db.rootUID},
			Annotations: map[string]string{placementv1alpha1.ClustersAnnotation: db.wish},
		}})
	}
	placedOn("front.deployments.db", `"west" NotAllowed`)
	wantUsage := map[types.UID]int{west.UID: 3}
	waitFor(t, func() (string, bool) {
		c.usage.mu.Lock()
		defer c.usage.mu.Unlock()
		return fmt.Sprintf("usage %v, pending %v; want %v, none", c.usage.count, c.usage.pending, wantUsage),
			maps.Equal(c.usage.count, wantUsage) && len(c.usage.pending) == 0
	})

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, write := range s.writes {
		if !strings.Contains(write, " shop"+strings.TrimSuffix(placementPath, "/")) || strings.Contains(write, "default") {
			t.Errorf("unexpected write %s", write)
		}
	}
	if len(s.writes) > 16 {
		t.Errorf("%d writes for 8 decisions: %v", len(s.writes), s.writes)
	}
}

// TestSyncTargetEvents: a heartbeat enqueues nothing, what a decision reads does.
func TestSyncTargetEvents(t *testing.T) {
	tests := map[string]struct {
		change func(*workloadv1alpha1.SyncTarget)
		want   bool
		reason string
	}{
		"heartbeat": {change: func(t *workloadv1alpha1.SyncTarget) { t.Status.LastHeartbeat = &metav1.Time{} }, reason: "nobody decides by it"},
		"nodes":     {change: func(t *workloadv1alpha1.SyncTarget) { t.Status.Nodes = 3 }, reason: "nobody decides by it, yet"},
		"condition": {change: func(t *workloadv1alpha1.SyncTarget) {
			t.Status.Conditions = append(t.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetFrozen, Status: metav1.ConditionTrue})
		}, reason: "not Ready"},
		"ready":     {change: func(t *workloadv1alpha1.SyncTarget) { setReady(t, false) }, want: true, reason: "gets nothing new"},
		"cordon":    {change: func(t *workloadv1alpha1.SyncTarget) { t.Spec.Unschedulable = true }, want: true, reason: "gets nothing new"},
		"label":     {change: func(t *workloadv1alpha1.SyncTarget) { t.Labels = map[string]string{"zone": "a"} }, want: true, reason: "selectors"},
		"mirror":    {change: func(t *workloadv1alpha1.SyncTarget) { t.Status.Mirror = mirrorOf("other") }, want: true, reason: "can be used now"},
		"dedicated": {change: func(t *workloadv1alpha1.SyncTarget) { t.Spec.DedicatedTo = "root:a" }, want: true, reason: "not for others any more"},
		"deleting":  {change: func(t *workloadv1alpha1.SyncTarget) { t.DeletionTimestamp = &metav1.Time{} }, want: true, reason: "is left"},
		"re-created": {change: func(t *workloadv1alpha1.SyncTarget) { t.UID = "other" }, want: true,
			reason: "another cluster under the name, where the deletion was not seen"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := newController(t, &rest.Config{Host: "http://localhost"})
			w, _ := newWorld()
			before := w.addTarget("root", "east")
			after := before.DeepCopy()
			tc.change(after)
			c.onSyncTarget(client.Event[*workloadv1alpha1.SyncTarget]{Old: before, New: after})
			if got := c.subtrees.Len() > 0; got != tc.want {
				t.Errorf("%s: enqueued %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

// What is not placed while a workspace waits for its initializers is when it is ready, and goes when its terminators are done.
func TestAttendanceEvents(t *testing.T) {
	type status = corev1alpha1.LogicalClusterStatus
	initializing, terminating := attended(corev1alpha1.LogicalClusterPhaseInitializing), attended(corev1alpha1.LogicalClusterPhaseTerminating)
	more := *initializing.DeepCopy()
	more.Initializers = append(more.Initializers, "root:more")
	ready := status{Phase: corev1alpha1.LogicalClusterPhaseReady}
	for _, tc := range []struct {
		before, after status
		want          bool
		reason        string
	}{
		{more, initializing, false, "one of its initializers is done"},
		{initializing, ready, true, "the last is"},
		{initializing, terminating, true, "it is deleted before"},
		{terminating, status{Phase: corev1alpha1.LogicalClusterPhaseTerminating}, true, "the last terminator is done"},
		{status{}, ready, false, "it never waited"},
	} {
		c, _ := newController(t, &rest.Config{Host: "http://localhost"})
		before := logicalCluster("shop", "root")
		before.Status = tc.before
		after := before.DeepCopy()
		after.Status = tc.after
		c.onLogicalCluster(client.Event[*corev1alpha1.LogicalCluster]{Old: before, New: after})
		if got := c.subtrees.Len() > 0; got != tc.want {
			t.Errorf("%s: enqueued %v, want %v", tc.reason, got, tc.want)
		}
	}
}
