package syncer

import (
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// FuzzHeartbeatAnnotations: what a Lease says is a count or an error, and what it says of the last answer is never news.
func FuzzHeartbeatAnnotations(f *testing.F) {
	for _, text := range []string{"", "0", "1", "-1", "+1", "007", "9223372036854775807", "9223372036854775808", "1e3", " 1", "2026-11-22T04:00:00Z", "2026-11-22T04:00:00+25:00", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"count": text, workloadv1alpha1.HeartbeatAnsweredAnnotation: text}}}
		n, err := count(lease, "count")
		if want, bad := strconv.ParseInt(text, 10, 64); err == nil && (bad != nil || n != want || n < 0) || err != nil && bad == nil && want >= 0 {
			t.Errorf("%q counts %d, %v", text, n, err)
		}
		began := time.Date(2026, time.November, 22, 0, 0, 0, 0, time.UTC)
		s := &Syncer{config: Config{Physical: &rest.Config{}}}
		s.state.lastAnswer = began
		if err := s.recall(lease); s.state.lastAnswer.After(began) || err != nil && !s.state.lastAnswer.Equal(began) {
			t.Errorf("%q: the last answer was at %s, %v", text, s.state.lastAnswer, err)
		}
	})
}

// FuzzSplitCredential: what a SyncTarget's status says of its syncer's credential is read as it was written, and an id never holds
// what separates it from the request that it was spent on.
func FuzzSplitCredential(f *testing.F) {
	for _, text := range []string{"", "/", "aaaaaa", "aaaaaa/", "/uid", "aaaaaa/uid", "aaaaaa/u/i/d", "//"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, request := splitCredential(text)
		if strings.Contains(id, "/") || joinCredential(id, request) != text && id+string(request) != text {
			t.Errorf("%q is %q and %q", text, id, request)
		}
		if again, uid := splitCredential(joinCredential(id, types.UID(request))); again != id || uid != request {
			t.Errorf("%q and %q are read as %q and %q", id, request, again, uid)
		}
	})
}
