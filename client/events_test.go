package client

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestEvents: what is told again is counted, in the logical cluster of the object, and made anew where it has ended; who causes many is heard less, and none of that fails.
func TestEvents(t *testing.T) {
	var asked []string
	ended, broken := false, false
	var last *corev1.Event
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked = append(asked, req.Method+" "+req.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		var is *apierrors.StatusError
		switch {
		case broken:
			is = apierrors.NewInternalError(http.ErrAbortHandler)
		case ended && req.Method == http.MethodPatch:
			is = apierrors.NewNotFound(corev1.Resource("events"), "web.1")
		case req.Method == http.MethodPatch:
			_ = json.NewEncoder(w).Encode(last)
			return
		default:
			body, err := io.ReadAll(req.Body)
			if err != nil {
				t.Error(err)
			}
			object, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), body)
			if err != nil {
				t.Error(err)
				return
			}
			last = object.(*corev1.Event)
			if last.ResourceVersion != "" {
				t.Errorf("%+v is made", last)
			}
			last.TypeMeta, last.Name, last.ResourceVersion = metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}, "web.1", "7"
			_ = json.NewEncoder(w).Encode(last)
			return
		}
		w.WriteHeader(int(is.Status().Code))
		_ = json.NewEncoder(w).Encode(is.Status())
	}))
	defer server.Close()
	clients, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	e := NewEvents(clients, "test", clocktesting.NewFakePassiveClock(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)))
	tell := func(uid types.UID, message string) {
		e.Tell(In(t.Context(), "shop"), &corev1.ObjectReference{Kind: "Deployment", Namespace: "team", Name: "web", UID: uid}, corev1.EventTypeWarning, "Fails", message)
	}
	const (
		made    = "POST /clusters/shop/api/v1/namespaces/team/events"
		counted = "PATCH /clusters/shop/api/v1/namespaces/team/events/web.1"
	)
	for _, tc := range []struct {
		reason        string
		message       string
		ended, broken bool
		want          []string
	}{
		{"it is new", "x", false, false, []string{made}},
		{"it was told", "x", false, false, []string{counted}},
		{"in other words it is another", "y", false, false, []string{made}},
		{"it has ended", "x", true, false, []string{counted, made}},
		{"nobody takes it", "z", false, true, []string{made}},
	} {
		asked, ended, broken = nil, tc.ended, tc.broken
		if tell("first", tc.message); !slices.Equal(asked, tc.want) {
			t.Errorf("%s: %v, want %v", tc.reason, asked, tc.want)
		}
	}
	asked, ended, broken = nil, false, false
	for range 100 {
		tell("another", "x")
	}
	if n := len(asked); n < 10 || n > 50 || strings.Count(strings.Join(asked, " "), "POST") != 1 {
		t.Errorf("of a hundred %d are told: %v", n, asked)
	}
}
