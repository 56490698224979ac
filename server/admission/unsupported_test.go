package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	lc "github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // as in the server
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/classes"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/logicalcluster"
)

type recorded []string

func (r *recorded) AddWarning(_, text string) { *r = append(*r, text) }

// missingHigh says that no physical cluster has the PriorityClass high.
func missingHigh(_ lc.Name, resource schema.GroupResource, _ string, object ctrlclient.Object) (missing []string) {
	for _, r := range classes.Named(object) {
		if r.Name == "high" {
			missing = append(missing, fmt.Sprintf("%s %q of %s/%s is missing", r.Kind.Field, r.Name, resource.Group, object.GetName()))
		}
	}
	return missing
}

// refusedOnHost says that the physical clusters refuse pods that are on the network of their node.
func refusedOnHost(_ lc.Name, resource schema.GroupResource, _ string, object ctrlclient.Object) (refused []string, err error) {
	if kind, ok := kinds.Of(object); ok && kind.Template(object).Spec.HostNetwork {
		refused = append(refused, fmt.Sprintf("refused as %s/%s", resource.Group, object.GetName()))
	}
	return refused, nil
}

func TestUnsupportedWarns(t *testing.T) {
	controllers := corev1.SchemeGroupVersion.WithResource("replicationcontrollers")
	for name, test := range map[string]struct {
		reason   string
		object   runtime.Object
		resource schema.GroupVersionResource
		mirror   bool
		want     string // part of the only warning; "" for none
	}{
		"kind without effect": {
			reason: "nobody may believe that Services lead to what it says",
			object: &discovery.EndpointSlice{}, resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
			want: "endpointslices.discovery.k8s.io are kept but have no effect yet",
		},
		"FlowSchema": {
			reason: "nobody may believe that requests are divided by it",
			object: &flowcontrol.FlowSchema{}, resource: flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas"),
			want: "flowschemas.flowcontrol.apiserver.k8s.io have no effect",
		},
		"ReplicationController": {
			reason: "it runs",
			object: &core.ReplicationController{Spec: core.ReplicationControllerSpec{Template: &core.PodTemplateSpec{}}}, resource: controllers,
		},
		"ReplicationController whose pods name a node": {
			reason: "as of all that makes pods",
			object: &core.ReplicationController{Spec: core.ReplicationControllerSpec{Template: &core.PodTemplateSpec{Spec: core.PodSpec{NodeName: "n1"}}}}, resource: controllers,
			want: "does not go to physical clusters: nodeName",
		},
		"pods that are refused": {
			reason: "they would not come, and a Deployment says so only later",
			object: &apps.Deployment{Spec: apps.DeploymentSpec{Template: core.PodTemplateSpec{Spec: core.PodSpec{SecurityContext: &core.PodSecurityContext{HostNetwork: true}}}}}, resource: appsv1.SchemeGroupVersion.WithResource("deployments"),
			want: "its pods are refused as apps/x",
		},
		"pod that is shown": {
			reason: "its physical cluster has taken it",
			object: &core.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{workloadv1alpha1.MirrorLabel: "m"}}, Spec: core.PodSpec{SecurityContext: &core.PodSecurityContext{HostNetwork: true}}}, resource: corev1.SchemeGroupVersion.WithResource("pods"),
		},
		"ReplicaSet of its own": {
			reason: "it runs",
			object: &apps.ReplicaSet{}, resource: appsv1.SchemeGroupVersion.WithResource("replicasets"),
		},
		"ReplicaSet of a StatefulSet": {
			reason: "only those of Deployments are made below, and it goes down",
			object: &apps.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "u", Controller: ptr.To(true)}},
			}},
			resource: appsv1.SchemeGroupVersion.WithResource("replicasets"),
		},
		"ReplicaSet of a Deployment": {
			reason: "it is a record of what runs by its Deployment",
			object: &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
				Annotations:     map[string]string{"placement.atoll.dev/clusters": "east"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "u", Controller: ptr.To(true)}},
			}},
			resource: appsv1.SchemeGroupVersion.WithResource("replicasets"),
		},
		"node of its choice": {
			reason:   "what makes pods is looked at, whatever kind it is",
			object:   &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "n1"}}}},
			resource: appsv1.SchemeGroupVersion.WithResource("daemonsets"),
			want:     "does not go to physical clusters: nodeName",
		},
		"kind with effect here alone": {
			reason: "nobody may believe that it holds below",
			object: &corev1.ResourceQuota{}, resource: corev1.SchemeGroupVersion.WithResource("resourcequotas"),
			want: "resourcequotas limit what is made in the workspace, and not yet the pods",
		},
		"scaled by what pods use": {
			reason: "it has its effect",
			object: scaled(autoscaling.ResourceMetricSourceType, autoscaling.ContainerResourceMetricSourceType), resource: autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
		},
		"scaled by too much": {
			reason: "nobody calculates with all of it",
			object: scaled(slices.Repeat([]autoscaling.MetricSourceType{autoscaling.ResourceMetricSourceType}, 51)...), resource: autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
			want: "there are 51 metrics: nothing is scaled by more than 50",
		},
		"scaled by anything else": {
			reason: "nobody knows what that is",
			object: scaled(autoscaling.ResourceMetricSourceType, autoscaling.PodsMetricSourceType, autoscaling.ExternalMetricSourceType), resource: autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
			want: "no API of a workspace has metrics of type Pods",
		},
		"kind carried out here": {
			reason: "its Jobs are made here, and run",
			object: &batchv1.CronJob{}, resource: batchv1.SchemeGroupVersion.WithResource("cronjobs"),
		},
		"volume": {
			reason: "nobody may wait for a claim to be bound to it",
			object: &corev1.PersistentVolume{}, resource: corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
			want: "persistentvolumes are kept but have no effect yet",
		},
		"class": {
			reason: "a physical cluster has classes of its own",
			object: &schedulingv1.PriorityClass{}, resource: schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"),
			want: "priorityclasses.scheduling.k8s.io do not go to physical clusters: there the class has to be known",
		},
		"class of pods": {
			reason:   "the pods are refused below, if it is not known there",
			object:   &apps.Deployment{Spec: apps.DeploymentSpec{Template: core.PodTemplateSpec{Spec: core.PodSpec{PriorityClassName: "high"}}}},
			resource: appsv1.SchemeGroupVersion.WithResource("deployments"),
			want:     `priorityClassName "high" of apps/x is missing`,
		},
		"system class of pods": {
			reason:   "that does not go down at all",
			object:   &apps.Deployment{Spec: apps.DeploymentSpec{Template: core.PodTemplateSpec{Spec: core.PodSpec{PriorityClassName: "system-node-critical"}}}},
			resource: appsv1.SchemeGroupVersion.WithResource("deployments"),
			want:     "does not go to physical clusters: priorityClassName",
		},
		"claim that names a volume": {
			reason:   "it would take one of another tenant",
			object:   &core.PersistentVolumeClaim{Spec: core.PersistentVolumeClaimSpec{VolumeName: "theirs"}},
			resource: corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
			want:     "does not go to physical clusters: volumeName",
		},
		"claim that has a volume": {
			reason: "its name came up",
			object: &core.PersistentVolumeClaim{
				Spec:   core.PersistentVolumeClaimSpec{VolumeName: "own"},
				Status: core.PersistentVolumeClaimStatus{Phase: core.ClaimBound},
			},
			resource: corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
		},
		"kind that goes down": {
			reason: "it has its effect",
			object: &corev1.ConfigMap{}, resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
		},
		"misspelt annotation": {
			reason:   "it would be ignored in silence",
			object:   &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"placement.atoll.dev/cluster": "east"}}},
			resource: corev1.SchemeGroupVersion.WithResource("namespaces"),
			want:     "placement.atoll.dev/cluster means nothing",
		},
		"known annotation": {
			reason:   "it means something",
			object:   &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"placement.atoll.dev/clusters": "east"}}},
			resource: corev1.SchemeGroupVersion.WithResource("namespaces"),
		},
		"annotation of what follows workloads": {
			reason:   "it would be taken for a wish, and ignored in silence",
			object:   &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"placement.atoll.dev/clusters": "east"}}},
			resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
			want:     "placement.atoll.dev/clusters has no effect on configmaps, which follow what refers to them: it counts on services, ingresses.networking.k8s.io, deployments.apps, replicasets.apps, replicationcontrollers, daemonsets.apps, statefulsets.apps, jobs.batch, pods, namespaces, logicalclusters.core.kcp.io",
		},
		"annotation of what goes nowhere": {
			reason:   "the same",
			object:   &rbac.Role{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"placement.atoll.dev/selector": "tier=test"}}},
			resource: rbacv1.SchemeGroupVersion.WithResource("roles"),
			want:     "placement.atoll.dev/selector has no effect on roles.rbac.authorization.k8s.io: it counts on",
		},
		"annotation of a Service": {
			reason:   "it is placed by it",
			object:   &core.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"placement.atoll.dev/clusters": "east"}}},
			resource: corev1.SchemeGroupVersion.WithResource("services"),
		},
		"annotation of the workspace": {
			reason:   "it holds for all that has none",
			object:   &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"placement.atoll.dev/clusters": "east"}}},
			resource: corev1alpha1.GroupVersion.WithResource("logicalclusters"),
		},
		"secret for a token": {
			reason: "whoever waits for the token would wait for ever",
			object: &core.Secret{Type: core.SecretTypeServiceAccountToken}, resource: corev1.SchemeGroupVersion.WithResource("secrets"),
			want: "no token is ever put into a Secret",
		},
		"mirror": {
			reason: "the system writes there, nobody reads warnings",
			object: &core.PersistentVolume{}, resource: corev1.SchemeGroupVersion.WithResource("persistentvolumes"), mirror: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got recorded
			ctx := warning.WithWarningRecorder(t.Context(), &got)
			ctx = logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: "a1", Mirror: test.mirror})
			attributes := admission.NewAttributesRecord(test.object, nil, schema.GroupVersionKind{}, "default", "x", test.resource, "", admission.Create, nil, false, nil)
			if err := NewUnsupported(missingHigh, refusedOnHost).Validate(ctx, attributes, nil); err != nil {
				t.Fatal(err)
			}
			if test.want == "" && len(got) > 0 || test.want != "" && (len(got) != 1 || !strings.Contains(got[0], test.want)) {
				t.Errorf("warnings %q, want %q: %s", got, test.want, test.reason)
			}
		})
	}
}

// TestPodsThatCannotBeKept: a Deployment deleted with its pods kept would lose them in the physical clusters. Who says nothing of them is warned where
// Kubernetes keeps them.
func TestPodsThatCannotBeKept(t *testing.T) {
	orphan, background, yes, no := metav1.DeletePropagationOrphan, metav1.DeletePropagationBackground, true, false
	deployments, sets := appsv1.SchemeGroupVersion.WithResource("deployments"), appsv1.SchemeGroupVersion.WithResource("replicasets")
	controllers, jobs := corev1.SchemeGroupVersion.WithResource("replicationcontrollers"), batchv1.SchemeGroupVersion.WithResource("jobs")
	revision := appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "u", Controller: ptr.To(true)}}}}
	for name, test := range map[string]struct {
		options         *metav1.DeleteOptions
		resource        schema.GroupVersionResource
		old             runtime.Object
		refused, warned bool
	}{
		"orphan": {&metav1.DeleteOptions{PropagationPolicy: &orphan}, deployments, deployed(), true, false},
		//lint:ignore SA1019 clients may still send it
		"orphan, as of old":   {&metav1.DeleteOptions{OrphanDependents: &yes}, deployments, deployed(), true, false},
		"background":          {&metav1.DeleteOptions{PropagationPolicy: &background}, deployments, deployed("orphan"), false, false},
		"orphan of no pods":   {&metav1.DeleteOptions{PropagationPolicy: &orphan}, corev1.SchemeGroupVersion.WithResource("configmaps"), &corev1.ConfigMap{}, false, false},
		"nothing said of it":  {&metav1.DeleteOptions{}, deployments, deployed("example.com/other"), false, false},
		"its finalizer":       {&metav1.DeleteOptions{}, deployments, deployed("orphan"), true, false},
		"of a ReplicaSet":     {&metav1.DeleteOptions{PropagationPolicy: &orphan}, sets, &appsv1.ReplicaSet{}, true, false},
		"of a revision":       {&metav1.DeleteOptions{PropagationPolicy: &orphan}, sets, &revision, false, false},
		"of an older one":     {&metav1.DeleteOptions{PropagationPolicy: &orphan}, controllers, &corev1.ReplicationController{}, true, false},
		"kept by default":     {&metav1.DeleteOptions{}, controllers, &corev1.ReplicationController{}, false, true},
		"so are a Job's":      {&metav1.DeleteOptions{}, jobs, &batchv1.Job{}, false, true},
		"a Job's, background": {&metav1.DeleteOptions{PropagationPolicy: &background}, jobs, &batchv1.Job{}, false, false},
		//lint:ignore SA1019 clients may still send it
		"a Job's, as of old": {&metav1.DeleteOptions{OrphanDependents: &no}, jobs, &batchv1.Job{}, false, false},
		"its finalizer says": {&metav1.DeleteOptions{}, jobs, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{metav1.FinalizerDeleteDependents}}}, false, false},
		"a pod":              {&metav1.DeleteOptions{PropagationPolicy: &orphan}, corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var got recorded
			ctx := warning.WithWarningRecorder(t.Context(), &got)
			ctx = logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: "a1"})
			attributes := admission.NewAttributesRecord(nil, test.old, schema.GroupVersionKind{}, "default", "x", test.resource, "", admission.Delete, test.options, false, nil)
			if err := NewUnsupported(missingHigh, refusedOnHost).Validate(ctx, attributes, nil); (err != nil) != test.refused || (len(got) > 0) != test.warned {
				t.Errorf("error %v, warnings %q, want refused %v, warned %v", err, got, test.refused, test.warned)
			}
		})
	}
}

// TestSelectorOfReplicationControllers: the pods of another selector would run on in physical clusters, and nobody would be shown them.
func TestSelectorOfReplicationControllers(t *testing.T) {
	controller := func(selector string, replicas, has int32, generation, observed int64) *core.ReplicationController {
		return &core.ReplicationController{
			ObjectMeta: metav1.ObjectMeta{Name: "x", Generation: generation},
			Spec:       core.ReplicationControllerSpec{Replicas: &replicas, Selector: map[string]string{"app": selector}, Template: &core.PodTemplateSpec{}},
			Status:     core.ReplicationControllerStatus{Replicas: has, ObservedGeneration: observed},
		}
	}
	for name, test := range map[string]struct {
		old, updated *core.ReplicationController
		mirror       bool
		refused      bool
	}{
		"another selector":        {old: controller("a", 2, 2, 1, 1), updated: controller("b", 2, 2, 1, 1), refused: true},
		"and no replicas":         {old: controller("a", 2, 2, 1, 1), updated: controller("b", 0, 2, 1, 1), refused: true},
		"with pods that go":       {old: controller("a", 0, 1, 2, 2), updated: controller("b", 2, 1, 2, 2), refused: true},
		"before it is known":      {old: controller("a", 0, 0, 2, 1), updated: controller("b", 2, 0, 2, 1), refused: true},
		"without pods":            {old: controller("a", 0, 0, 2, 2), updated: controller("b", 2, 0, 2, 2)},
		"the same selector":       {old: controller("a", 2, 2, 1, 1), updated: controller("a", 5, 2, 1, 1)},
		"in a physical cluster's": {old: controller("a", 2, 2, 1, 1), updated: controller("b", 2, 2, 1, 1), mirror: true},
	} {
		t.Run(name, func(t *testing.T) {
			var got recorded
			ctx := warning.WithWarningRecorder(t.Context(), &got)
			ctx = logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: "a1", Mirror: test.mirror})
			attributes := admission.NewAttributesRecord(test.updated, test.old, schema.GroupVersionKind{}, "default", "x", corev1.SchemeGroupVersion.WithResource("replicationcontrollers"), "", admission.Update, &metav1.UpdateOptions{}, false, nil)
			if err := NewUnsupported(missingHigh, refusedOnHost).Validate(ctx, attributes, nil); (err != nil) != test.refused || err != nil && !strings.Contains(err.Error(), "spec.selector cannot be changed") {
				t.Errorf("error %v, want refused %v", err, test.refused)
			}
		})
	}
}

// scaled is a HorizontalPodAutoscaler with metrics of those types, as admission sees it.
func scaled(types ...autoscaling.MetricSourceType) *autoscaling.HorizontalPodAutoscaler {
	hpa := &autoscaling.HorizontalPodAutoscaler{}
	for _, one := range types {
		hpa.Spec.Metrics = append(hpa.Spec.Metrics, autoscaling.MetricSpec{Type: one})
	}
	return hpa
}

func deployed(finalizers ...string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "x", Finalizers: finalizers}}
}
