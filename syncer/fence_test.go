package syncer

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestReplacedSyncerWritesNothing: a Syncer of a Manager that was replaced between what the Syncer read and what it was to
// write, as one that was stopped meanwhile, writes nothing in the physical cluster, and tells nobody that the cluster is to blame.
func TestReplacedSyncerWritesNothing(t *testing.T) {
	k := key{configMapsGVR, "shop-1", "settings"}
	now := metav1.Now()
	tombstone := configMap("3", "a")
	tombstone.SetUID("leaf-uid")
	tombstone.SetDeletionTimestamp(&now)
	tombstone.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
	list := func(t *testing.T, w http.ResponseWriter) {
		answer(t, w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": map[string]any{}, "items": []any{tombstone.Object}})
	}
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: workloadv1alpha1.HeartbeatName, Namespace: "atoll-system", UID: "u"},
	}
	for name, tc := range map[string]struct {
		mirror func(t *testing.T, w http.ResponseWriter, req *http.Request)
		act    func(ctx context.Context, s *Syncer) error
		// replaced is the request after which another is in its place: MIRROR or PHYSICAL, and its method.
		replaced string
		reason   string
	}{
		"Apply": {act: func(ctx context.Context, s *Syncer) error {
			_, err := s.apply(ctx, k, configMap("5", "a"), configMap("", "b"))
			return err
		}, replaced: "PHYSICAL GET", reason: "what was read below is from before"},
		"Create": {act: func(ctx context.Context, s *Syncer) error {
			if _, err := s.leafNow(ctx, k); err != nil {
				return err
			}
			_, err := s.apply(ctx, k, nil, configMap("", "b"))
			return err
		}, mirror: func(t *testing.T, w http.ResponseWriter, _ *http.Request) { list(t, w) }, replaced: "MIRROR GET", reason: "the other may have deleted it"},
		"Bury": {act: func(ctx context.Context, s *Syncer) error {
			_, err := s.bury(ctx, k, tombstone)
			return err
		}, mirror: func(t *testing.T, w http.ResponseWriter, _ *http.Request) { list(t, w) }, replaced: "MIRROR GET", reason: "another root may have its name"},
		"Heartbeat": {act: func(ctx context.Context, s *Syncer) error {
			err := s.beat(ctx)
			s.failed(err)
			return err
		}, mirror: func(t *testing.T, w http.ResponseWriter, _ *http.Request) { answer(t, w, http.StatusOK, lease) }, replaced: "MIRROR PUT", reason: "the other counts"},
	} {
		t.Run(name, func(t *testing.T) {
			var replaced atomic.Bool
			var written atomic.Value
			side := func(name string, handle func(w http.ResponseWriter, req *http.Request)) *rest.Config {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					if name == "PHYSICAL" && req.Method != http.MethodGet {
						written.Store(req.Method + " " + req.URL.Path)
					}
					if name+" "+req.Method == tc.replaced {
						replaced.Store(true)
					}
					handle(w, req)
				}))
				t.Cleanup(server.Close)
				return &rest.Config{Host: server.URL}
			}
			mirror := side("MIRROR", func(w http.ResponseWriter, req *http.Request) { tc.mirror(t, w, req) })
			physical := side("PHYSICAL", identified(func(w http.ResponseWriter, req *http.Request) {
				if strings.Contains(req.URL.Path, "/leases/") {
					answer(t, w, http.StatusOK, lease)
					return
				}
				answer(t, w, http.StatusOK, configMap("5", "a").Object)
			}))
			clients, informers := idleClients(t)
			m, err := NewManager(ManagerConfig{
				Clients: clients, Informers: informers, Clock: testingclock.NewFakeClock(time.Now()),
				MirrorConfig: func(logicalcluster.Name, types.UID) (*rest.Config, error) { return mirror, nil },
				DeleteData:   func(context.Context, logicalcluster.Name) error { return errors.New("not asked") },
				MayWrite: func() error {
					if replaced.Load() {
						return errors.New("another leads")
					}
					return nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			s, err := m.newSyncer(&workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "east-uid"}}, physical)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.twin.Add(twinOf("cluster-uid")); err != nil {
				t.Fatal(err)
			}
			s.gate.open(s.gate.begin(), fine)
			err = tc.act(t.Context(), s)
			if got := written.Load(); got != nil || !errors.Is(err, errHeldBack) || !replaced.Load() {
				t.Errorf("%s: it wrote %v and returned %v, want nothing and %v", tc.reason, got, err, errHeldBack)
			}
			if trouble := s.trouble(); trouble != "" {
				t.Errorf("the physical cluster is in trouble: %s", trouble)
			}
		})
	}
}
