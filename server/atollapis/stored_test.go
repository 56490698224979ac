package atollapis

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"k8s.io/kubernetes/pkg/api/legacyscheme"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
)

// What versions before stored is served in kcp's words, and stored again as it was, to the byte: an update that changes nothing
// writes nothing, and those versions find what they know.
func TestStoredForms(t *testing.T) {
	const (
		scheduled   = `{"type":"WorkspaceScheduled","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z","reason":"Scheduled","message":""}`
		ready       = `{"type":"Ready","status":"True","observedGeneration":2,"lastTransitionTime":"2026-01-02T03:04:06Z","reason":"Ready","message":""}`
		initialized = `{"type":"WorkspaceInitialized","status":"True","lastTransitionTime":"2026-01-02T03:04:06Z","reason":"Initialized","message":""}`
		waits       = `{"type":"WorkspaceInitialized","status":"False","lastTransitionTime":"2026-01-02T03:04:07Z","reason":"InitializerExists","message":"x"}`
		done        = `{"type":"WorkspaceInitialized","status":"True","observedGeneration":2,"lastTransitionTime":"2026-01-02T03:04:08Z","reason":"Initialized","message":""}`
		typed       = `{"kind":"Workspace","apiVersion":"tenancy.kcp.io/v1alpha1",`
		born        = `"name":"shop","creationTimestamp":"2026-01-02T03:04:05Z"`
		placed      = `"spec":{"cluster":"c","URL":"https://a/clusters/root:shop"}`
		logical     = `{"kind":"LogicalCluster","apiVersion":"core.kcp.io/v1alpha1","metadata":{"name":"cluster"`
	)
	for _, tc := range []struct{ reason, stored, served string }{
		{
			"a new one", typed + `"metadata":{` + born + `,"annotations":{"experimental.tenancy.kcp.io/owner":"ann"}},"spec":{"cluster":"c"},"status":{"phase":"Scheduling"}}`,
			typed + `"metadata":{` + born + `,"labels":{"tenancy.kcp.io/phase":"Scheduling"},"annotations":{"experimental.tenancy.kcp.io/owner":"{\"username\":\"ann\"}"}},` +
				`"spec":{"cluster":"c"},"status":{"phase":"Scheduling"}}`,
		},
		{
			"one that is ready", typed + `"metadata":{` + born + `,"labels":{"a":"b"}},` + placed + `,"status":{"phase":"Ready","conditions":[` + ready + `]}}`,
			typed + `"metadata":{` + born + `,"labels":{"a":"b","tenancy.kcp.io/phase":"Ready"}},` + placed +
				`,"status":{"phase":"Ready","conditions":[` + scheduled + `,` + initialized + `,` + ready + `]}}`,
		},
		{
			"one that waits for initializers", typed + `"metadata":{` + born + `},` + placed + `,"status":{"phase":"Initializing","initializers":["root:a"],"conditions":[` + waits + `]}}`,
			typed + `"metadata":{` + born + `,"labels":{"tenancy.kcp.io/phase":"Initializing"}},` + placed +
				`,"status":{"phase":"Initializing","initializers":["root:a"],"conditions":[` + scheduled + `,` + waits + `]}}`,
		},
		{
			"one that had initializers says itself when they were done", typed + `"metadata":{` + born + `},` + placed + `,"status":{"phase":"Ready","conditions":[` + done + `,` + ready + `]}}`,
			typed + `"metadata":{` + born + `,"labels":{"tenancy.kcp.io/phase":"Ready"}},` + placed +
				`,"status":{"phase":"Ready","conditions":[` + scheduled + `,` + done + `,` + ready + `]}}`,
		},
		{
			"a name that reads like a UserInfo is a name", typed + `"metadata":{` + born + `,"annotations":{"experimental.tenancy.kcp.io/owner":"{\"username\":\"bob\"}"}},"spec":{},"status":{}}`,
			typed + `"metadata":{` + born + `,"annotations":{"experimental.tenancy.kcp.io/owner":"{\"username\":\"{\\\"username\\\":\\\"bob\\\"}\"}"}},"spec":{},"status":{}}`,
		},
		{
			"a logical cluster that is deleted", logical + `},"spec":{},"status":{"phase":"Terminating"}}`,
			logical + `},"spec":{},"status":{"phase":"Deleting"}}`,
		},
		{
			"one that waits for terminators", logical + `,"annotations":{"experimental.tenancy.kcp.io/owner":"ann"}},"spec":{},"status":{"phase":"Terminating","terminators":["root:a"]}}`,
			logical + `,"annotations":{"experimental.tenancy.kcp.io/owner":"{\"username\":\"ann\"}"}},"spec":{},"status":{"phase":"Terminating","terminators":["root:a"]}}`,
		},
		{"one that is ready", logical + `},"spec":{},"status":{"phase":"Ready"}}`, logical + `},"spec":{},"status":{"phase":"Ready"}}`},
	} {
		inner := legacyscheme.Codecs.LegacyCodec(GroupVersions()...)
		codec := formsCodec{inner: inner}
		obj, err := runtime.Decode(codec, []byte(tc.stored))
		if err != nil {
			t.Fatalf("%s: %v", tc.reason, err)
		}
		before := obj.DeepCopyObject()
		if served, err := runtime.Encode(inner, obj); err != nil || strings.TrimSpace(string(served)) != tc.served {
			t.Errorf("%s: is served as, %v\n%swant\n%s", tc.reason, err, served, tc.served)
		}
		if stored, err := runtime.Encode(codec, obj); err != nil || strings.TrimSpace(string(stored)) != tc.stored {
			t.Errorf("%s: is stored again as, %v\n%swant\n%s", tc.reason, err, stored, tc.stored)
		}
		if diff := cmp.Diff(before, obj); diff != "" {
			t.Errorf("%s: to store it changed it, which others may hold:\n%s", tc.reason, diff)
		}
	}
}

// What is made now, with times that are finer than what is stored, is stored as what was read.
func TestImpliedConditionsAreNotStored(t *testing.T) {
	now := metav1.NewTime(time.Unix(1767323045, 999))
	w := &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", CreationTimestamp: metav1.NewTime(now.Truncate(time.Second))},
		Spec:       tenancyv1alpha1.WorkspaceSpec{Cluster: "c", URL: "https://a/clusters/root:shop"},
		Status: tenancyv1alpha1.WorkspaceStatus{Phase: corev1alpha1.LogicalClusterPhaseReady, Conditions: []metav1.Condition{
			{Type: tenancyv1alpha1.WorkspaceReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: now},
			{Type: tenancyv1alpha1.WorkspaceInitialized, Status: metav1.ConditionTrue, Reason: "Initialized", LastTransitionTime: now},
			{Type: tenancyv1alpha1.WorkspaceScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled", LastTransitionTime: now},
		}},
	}
	if got := withoutImplied(w); len(got) != 1 || got[0].Type != tenancyv1alpha1.WorkspaceReady {
		t.Errorf("stored are %+v, want Ready alone", got)
	}
	w.Status.Conditions[2].Status = metav1.ConditionFalse
	if got := withoutImplied(w); len(got) != 2 || got[1].Type != tenancyv1alpha1.WorkspaceScheduled {
		t.Errorf("stored are %+v, want what is said otherwise, too", got)
	}
}

// An owner that cannot be read is not stored as somebody of another name.
func TestOwnersThatCannotBeReadAreNotStored(t *testing.T) {
	codec := formsCodec{inner: legacyscheme.Codecs.LegacyCodec(GroupVersions()...)}
	for _, value := range []string{"ann", `{"username":""}`, `{"groups":["system:masters"]}`, `["ann"]`, `{"username":"ann"`} {
		annotations := map[string]string{tenancyv1alpha1.OwnerAnnotation: value}
		for _, obj := range []runtime.Object{
			&tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: annotations}},
			&corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster", Annotations: annotations}},
		} {
			var out bytes.Buffer
			if err := codec.Encode(obj, &out); err == nil || out.Len() > 0 {
				t.Errorf("%T of %s is stored as %s, %v", obj, value, out.String(), err)
			}
		}
	}
}
