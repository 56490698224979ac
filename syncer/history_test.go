package syncer

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// beats answers for the Leases of one side: it shows shown, and takes what is stored.
type beats struct {
	t       *testing.T
	shown   record
	written string
	asked   string // "" for nothing
	stored  *coordinationv1.Lease
}

func (b *beats) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	lease := &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "atoll-system", Name: "heartbeat", UID: b.shown.uid, ResourceVersion: b.shown.version,
			Annotations: map[string]string{
				workloadv1alpha1.HeartbeatCounterAnnotation: fmt.Sprint(b.shown.counter), workloadv1alpha1.HeartbeatWrittenAnnotation: b.written,
			}},
	}
	if b.asked != "" {
		lease.Annotations[workloadv1alpha1.HeartbeatAskedAnnotation] = b.asked
	}
	if req.Method == http.MethodPut {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			b.t.Error(err)
		}
		lease = &coordinationv1.Lease{} // of JSON, annotations would be added to those that are there
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, lease); err != nil {
			b.t.Error(err)
		}
		version, err := strconv.Atoi(lease.ResourceVersion)
		if err != nil {
			b.t.Error(err)
		}
		lease.ResourceVersion = strconv.Itoa(version + 1)
		b.stored = lease.DeepCopy()
	}
	lease.SetGroupVersionKind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	answer(b.t, w, http.StatusOK, lease)
}

// TestOtherHistory: a side that is restored under a running syncer is noticed even where the counters agree, and
// whatever the informers show then is thrown away.
func TestOtherHistory(t *testing.T) {
	for name, tc := range map[string]struct {
		hub, physical record
		other         bool
		written       string
		reason        string
	}{
		"goes on":              {record{"h", "101", 8}, record{"p", "51", 8}, false, "8", "both show what was stored last"},
		"another syncer":       {record{"h", "105", 9}, record{"p", "55", 9}, false, "9", "who went before us beat once more"},
		"hub went back":        {record{"h", "90", 6}, record{"p", "51", 8}, true, "8", "it forgot beats"},
		"hub wrote on":         {record{"h", "300", 6}, record{"p", "51", 8}, true, "8", "its resource versions are past the old ones, its counter is not"},
		"hub by version":       {record{"h", "99", 8}, record{"p", "51", 8}, true, "8", "it was restored to just before the last update"},
		"another Lease":        {record{"i", "105", 9}, record{"p", "51", 8}, true, "8", "somebody made it anew"},
		"physical went back":   {record{"h", "101", 8}, record{"p", "40", 5}, true, "8", "it forgot what it had stored"},
		"physical by one beat": {record{"h", "101", 8}, record{"p", "50", 7}, true, "8", "the hub had not recorded that beat yet: without its record the next syncer would see nothing wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &beats{t: t, shown: record{"h", "100", 7}, written: "7"}
			physical := &beats{t: t, shown: record{"p", "50", 7}}
			s := newIdle(t, hub.ServeHTTP, physical.ServeHTTP)
			if err := s.beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			hub.shown, physical.shown, hub.written = tc.hub, tc.physical, "7"
			s.gate.close()
			err := s.beat(t.Context())
			if errors.Is(err, errOtherHistory) != tc.other || !tc.other && err != nil {
				t.Errorf("%s: %v, want another history: %v", tc.reason, err, tc.other)
			}
			if open := s.gate.checked >= s.gate.begun; open == tc.other {
				t.Errorf("%s: gate open: %v", tc.reason, open)
			}
			if written := hub.stored.Annotations[workloadv1alpha1.HeartbeatWrittenAnnotation]; written != tc.written {
				t.Errorf("%s: the hub remembers that %s was written, want %s", tc.reason, written, tc.written)
			}
		})
	}
}

// TestConfirmationOfBefore: a confirmation that was in the snapshot from which the hub was restored does not confirm that.
func TestConfirmationOfBefore(t *testing.T) {
	for name, tc := range map[string]struct {
		asked, word string
		want        string // what is asked then; "" where it is confirmed
		reason      string
	}{
		"Answer":       {"8", confirmRestored, "", "it was asked, and confirmed"},
		"OfBefore":     {"5", confirmRestored, workloadv1alpha1.HeartbeatAskedNothing, "that was another restore"},
		"StillThere":   {workloadv1alpha1.HeartbeatAskedNothing, confirmRestored, workloadv1alpha1.HeartbeatAskedNothing, "it is not taken away yet"},
		"TakenAway":    {workloadv1alpha1.HeartbeatAskedNothing, "", "8", "now it can be asked"},
		"NeverAsked":   {"", confirmRestored, workloadv1alpha1.HeartbeatAskedNothing, "nobody can have answered"},
		"AskedBefore":  {"5", "", "8", "that was another restore"},
		"WaitsForWord": {"8", "", "8", "it was asked"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &beats{t: t, shown: record{"h", "100", 6}, written: "5", asked: tc.asked}
			physical := &beats{t: t, shown: record{"p", "50", 8}}
			s := newIdle(t, hub.ServeHTTP, physical.ServeHTTP)
			twin := &unstructured.Unstructured{Object: map[string]any{
				"metadata": map[string]any{"name": "east", "annotations": map[string]any{workloadv1alpha1.ConfirmAnnotation: tc.word}},
				"status": map[string]any{"conditions": []any{
					map[string]any{"type": workloadv1alpha1.SyncTargetObserveOnly, "status": "True", "reason": ReasonHubRestored},
				}},
			}}
			if err := s.twin.Add(twin); err != nil {
				t.Fatal(err)
			}
			if err := s.beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			if raised := physical.stored != nil; raised != (tc.want == "") {
				t.Errorf("%s: confirmed: %t", tc.reason, raised)
			}
			if asked := hub.stored.Annotations[workloadv1alpha1.HeartbeatAskedAnnotation]; asked != tc.want {
				t.Errorf("%s: asked at %q, want %q", tc.reason, asked, tc.want)
			}
		})
	}
}

// TestOtherHistoryBetweenTwoLooks: a side that is restored between the two looks at heartbeats that do not agree is noticed as well.
func TestOtherHistoryBetweenTwoLooks(t *testing.T) {
	for name, tc := range map[string]struct{ hub, physical record }{
		"hub":      {record{"h", "90", 6}, record{"p", "55", 9}},
		"physical": {record{"h", "101", 8}, record{"q", "7", 9}},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &beats{t: t, shown: record{"h", "100", 7}, written: "7"}
			physical := &beats{t: t, shown: record{"p", "50", 7}}
			looks := 0
			s := newIdle(t, func(w http.ResponseWriter, req *http.Request) {
				hub.ServeHTTP(w, req)
				if looks++; looks == 3 { // the first beat has read and written
					hub.shown, physical.shown = tc.hub, tc.physical
				}
			}, physical.ServeHTTP)
			if err := s.beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Another syncer has beaten once more, and the hub does not show it yet.
			hub.shown, physical.shown = record{"h", "101", 8}, record{"p", "55", 9}
			s.gate.close()
			if err := s.beat(t.Context()); !errors.Is(err, errOtherHistory) {
				t.Errorf("%v, want %v", err, errOtherHistory)
			}
			if s.gate.checked >= s.gate.begun {
				t.Error("the gate is open")
			}
		})
	}
}

// TestRestoredHubDoesNotCatchUp: while the physical cluster is away there is nothing to compare with, and what a restored hub
// beats until it is back must not hide that it was restored.
func TestRestoredHubDoesNotCatchUp(t *testing.T) {
	hub := &beats{t: t, shown: record{"h", "100", 6}, written: "5"}
	physical := &beats{t: t, shown: record{"p", "50", 8}}
	away := true
	s := newIdle(t, hub.ServeHTTP, func(w http.ResponseWriter, req *http.Request) {
		if away {
			http.Error(w, "away", http.StatusBadGateway)
			return
		}
		physical.ServeHTTP(w, req)
	})
	for range 3 {
		if err := s.beat(t.Context()); err == nil {
			t.Fatal("no error although the physical cluster is away")
		}
		if hub.stored.Annotations[workloadv1alpha1.HeartbeatUnansweredAnnotation] == "" {
			t.Error("the hub does not say that there is no answer")
		}
		counter, err := count(hub.stored, workloadv1alpha1.HeartbeatCounterAnnotation)
		if err != nil {
			t.Fatal(err)
		}
		hub.shown.counter, hub.shown.version = counter, hub.stored.ResourceVersion
	}
	away = false
	if err := s.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.gate.verdict != hubRestored {
		t.Errorf("the verdict is %v, want %v", s.gate.verdict, hubRestored)
	}
	if hub.stored.Annotations[workloadv1alpha1.HeartbeatUnansweredAnnotation] != "" {
		t.Error("the hub still says that there is no answer")
	}
}

func TestSummarise(t *testing.T) {
	var plan []planned
	for i := range 7 {
		plan = append(plan, planned{createIt, key{configMapsGVR, "shop", fmt.Sprintf("new-%d", 6-i)}}, planned{leaveIt, key{configMapsGVR, "shop", fmt.Sprint(i)}})
	}
	plan = append(plan, planned{orphanIt, key{resource: namespacesGVR, name: "left"}}, planned{changeIt, key{configMapsGVR, "shop", "other"}},
		planned{deleteIt, key{configMapsGVR, "shop", "gone"}})
	want := &workloadv1alpha1.Difference{Create: 7, Change: 1, Delete: 1, Orphans: 1, Sample: []string{
		"delete configmaps shop/gone",
		"create configmaps shop/new-0", "create configmaps shop/new-1", "create configmaps shop/new-2", "create configmaps shop/new-3", "create configmaps shop/new-4",
		"change configmaps shop/other",
		"orphan namespaces left",
	}}
	if diff := cmp.Diff(want, summarise(plan)); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&workloadv1alpha1.Difference{}, summarise(nil)); diff != "" {
		t.Errorf("nothing to do (-want +got):\n%s", diff)
	}
}
