package server

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/server/endpoints"
	"atoll.dev/atoll/server/storage"
)

// TestOwnersFirst: the garbage collector deletes what names an owner that is not there yet.
func TestOwnersFirst(t *testing.T) {
	items := []item{
		{at: 1, stage: stageBindings, uid: "binding"},
		{at: 2, stage: stageObjects, uid: "config", owners: []types.UID{"replicas"}},
		{at: 3, stage: stageWorkloads, uid: "replicas", owners: []types.UID{"deployment"}},
		{at: 4, stage: stageWorkloads, uid: "deployment"},
		{at: 5, stage: stageObjects, uid: "a", owners: []types.UID{"b"}}, // a circle
		{at: 6, stage: stageObjects, uid: "b", owners: []types.UID{"a"}},
		{at: 7, stage: stageObjects, uid: "self", owners: []types.UID{"self", "elsewhere"}},
		{at: 8, stage: stageNamespaces, uid: "namespace"},
		{at: 9, stage: stageObjects}, // a lock
	}
	ownersFirst(items)
	var order []int64
	for _, it := range items {
		order = append(order, it.at)
	}
	if diff := cmp.Diff([]int64{8, 7, 9, 6, 5, 4, 3, 2, 1}, order); diff != "" {
		t.Errorf("the order (-want +got):\n%s", diff)
	}
}

// TestImportedJobIsNotDoneAgain: what is done once keeps what it has come to; what runs for ever is as if it were new.
func TestImportedJobIsNotDoneAgain(t *testing.T) {
	job := &batch.Job{Status: batch.JobStatus{Succeeded: 1}}
	if err := withoutTraces(batch.Resource("jobs"), job); err != nil || job.Status.Succeeded != 1 {
		t.Errorf("a Job has %+v, %v: it would be done again", job.Status, err)
	}
	deployment := &apps.Deployment{Status: apps.DeploymentStatus{Replicas: 1}}
	if err := withoutTraces(apps.Resource("deployments"), deployment); err != nil || deployment.Status.Replicas != 0 {
		t.Errorf("a Deployment has %+v, %v: nothing of it runs yet", deployment.Status, err)
	}
	claim := &core.PersistentVolumeClaim{Spec: core.PersistentVolumeClaimSpec{VolumeName: "there"}, Status: core.PersistentVolumeClaimStatus{Phase: core.ClaimBound}}
	if err := withoutTraces(core.Resource("persistentvolumeclaims"), claim); err != nil || claim.Status.Phase != "" || claim.Spec.VolumeName != "" {
		t.Errorf("a claim has %+v, %v: it would count as lost", claim, err)
	}
}

// TestPodsOfTheMomentStayBehind: nobody would end what they show, were they in another workspace; and what has a controller, that makes again.
func TestPodsOfTheMomentStayBehind(t *testing.T) {
	shown := metav1.ObjectMeta{Labels: map[string]string{workloadv1alpha1.MirrorLabel: "mirroreast"}}
	bound := metav1.ObjectMeta{Labels: shown.Labels, Finalizers: []string{workloadv1alpha1.SyncerFinalizer}}
	owned, going := bound, bound
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "shop.example/v1", Kind: "Poster", Name: "p", UID: "u", Controller: ptr.To(true)}}
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		pod  metav1.ObjectMeta
		want bool
	}{
		"that nobody runs":              {metav1.ObjectMeta{}, true},
		"that is shown":                 {shown, false},
		"that somebody made":            {bound, true},
		"that a controller makes again": {owned, false},
		"that is being deleted":         {going, false},
	} {
		tc.pod.Name = "web"
		stored, err := runtime.Encode(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), &corev1.Pod{ObjectMeta: tc.pod})
		if err != nil {
			t.Fatal(err)
		}
		got, err := exported(storage.PlainRow{Resource: schema.GroupResource{Resource: "pods"}, Prefix: podsPrefix, Key: "front/web", Value: stored})
		if err != nil || got != tc.want {
			t.Errorf("a pod %s is exported: %v, %v, want %v", name, got, err, tc.want)
		}
	}
}

// TestSlicesOfPodsStayBehind: an EndpointSlice that the server made, of pods or of Endpoints, is made again of those that there are; what somebody wrote goes along, however he has labelled it.
func TestSlicesOfPodsStayBehind(t *testing.T) {
	ofPod := discoveryv1.Endpoint{Addresses: []string{"10.1.1.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-1"}}
	other := discoveryv1.Endpoint{Addresses: []string{"192.0.2.1"}}
	by := func(kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "v1", Kind: kind, Name: "web", UID: "u", Controller: ptr.To(true)}}
	}
	for name, tc := range map[string]struct {
		by        string
		owners    []metav1.OwnerReference
		endpoints []discoveryv1.Endpoint
		want      bool
	}{
		"of nobody":                               {"", nil, nil, true},
		"of somebody":                             {"somebody", by("Service"), []discoveryv1.Endpoint{ofPod}, true},
		"that the server made of pods":            {endpoints.ControllerName, by("Service"), []discoveryv1.Endpoint{ofPod}, false},
		"that it made of no pods":                 {endpoints.ControllerName, by("Service"), nil, false},
		"into which somebody has written":         {endpoints.ControllerName, by("Service"), []discoveryv1.Endpoint{ofPod, other}, true},
		"that somebody labelled so":               {endpoints.ControllerName, nil, []discoveryv1.Endpoint{other}, true},
		"that somebody labelled so, of a pod":     {endpoints.ControllerName, nil, []discoveryv1.Endpoint{ofPod}, true},
		"that the server made of Endpoints":       {endpoints.MirroringControllerName, by("Endpoints"), []discoveryv1.Endpoint{other}, false},
		"that somebody labelled as of Endpoints":  {endpoints.MirroringControllerName, nil, []discoveryv1.Endpoint{other}, true},
		"that somebody labelled so, of a Service": {endpoints.MirroringControllerName, by("Service"), []discoveryv1.Endpoint{other}, true},
	} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "web", Labels: map[string]string{discoveryv1.LabelManagedBy: tc.by}, OwnerReferences: tc.owners},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: tc.endpoints,
		}
		stored, err := runtime.Encode(scheme.Codecs.LegacyCodec(discoveryv1.SchemeGroupVersion), slice)
		if err != nil {
			t.Fatal(err)
		}
		got, err := exported(storage.PlainRow{Resource: discoveryv1.Resource("endpointslices"), Prefix: "/endpointslices", Key: "front/web", Value: stored})
		if err != nil || got != tc.want {
			t.Errorf("one %s is exported: %v, %v, want %v", name, got, err, tc.want)
		}
	}
}

// TestEndpointsOfPodsStayBehind: so it is of Endpoints, of which those go along that somebody has made his own.
func TestEndpointsOfPodsStayBehind(t *testing.T) {
	for name, tc := range map[string]struct {
		by, kind string
		want     bool
	}{
		"that somebody wrote":             {"", "", true},
		"that the server made":            {"endpoint-controller", "Pod", false},
		"into which somebody has written": {"endpoint-controller", "", true},
	} {
		e := &endpoints.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"endpoints.kubernetes.io/managed-by": tc.by}}}
		e.Subsets = []endpoints.EndpointSubset{{NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.1", TargetRef: &corev1.ObjectReference{Kind: tc.kind}}}}}
		stored, err := runtime.Encode(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := exported(storage.PlainRow{Resource: corev1.Resource("endpoints"), Prefix: "/services/endpoints", Key: "front/web", Value: stored})
		if err != nil || got != tc.want {
			t.Errorf("Endpoints %s are exported: %v, %v, want %v", name, got, err, tc.want)
		}
	}
}

// TestImportedPodIsNew: it is bound anew, and says so; one that has ended is not run again.
func TestImportedPodIsNew(t *testing.T) {
	for name, tc := range map[string]struct {
		finalizer   string
		phase, want core.PodPhase
		node        string
	}{
		"that runs":            {workloadv1alpha1.SyncerFinalizer, core.PodRunning, core.PodPending, ""},
		"that has ended":       {workloadv1alpha1.SyncerFinalizer, core.PodSucceeded, core.PodSucceeded, ""},
		"that names its node":  {"shop.example/keep", core.PodPending, core.PodPending, "east"},
		"of an earlier import": {"shop.example/keep", "", core.PodPending, "east"},
	} {
		pod := &core.Pod{
			ObjectMeta: metav1.ObjectMeta{Finalizers: []string{tc.finalizer}, Labels: map[string]string{workloadv1alpha1.MirrorLabel: "mirroreast", "app": "web"}},
			Spec:       core.PodSpec{NodeName: "east"},
			Status:     core.PodStatus{Phase: tc.phase, PodIPs: []core.PodIP{{IP: "10.1.2.3"}}, QOSClass: core.PodQOSBurstable},
		}
		err := withoutTraces(core.Resource("pods"), pod)
		if err != nil || pod.Status.Phase != tc.want || pod.Spec.NodeName != tc.node || len(pod.Labels) != 1 || kinds.IsBound(pod) || pod.Status.QOSClass != core.PodQOSBurstable {
			t.Errorf("a pod %s: %v, %+v, on %q, with %v", name, err, pod.Status, pod.Spec.NodeName, pod.Labels)
		}
	}
}
