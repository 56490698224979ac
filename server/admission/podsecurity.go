package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	podsecurity "k8s.io/pod-security-admission/admission"
	podsecurityconfig "k8s.io/pod-security-admission/admission/api/load"
	podsecurityapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"

	"atoll.dev/atoll/internal/logicalcluster"
)

// PodSecurity holds pods to the Pod Security level that the labels of their namespace ask for, as kube-apiserver's plugin
// does with its default configuration: without labels everything is allowed. Of what makes pods it warns, and tells the
// audit log. That plugin looks pods up without a context, so that this one joins the library to the request itself.
type PodSecurity struct {
	*admission.Handler
	library podsecurity.Admission
}

// mostPods is how many pods of a namespace the library looks at when its level changes (defaultNamespaceMaxPodsToCheck).
const mostPods = 3000

// podSecurityMetrics are series by level and decision, for the process.
var podSecurityMetrics = sync.OnceValue(func() metrics.Recorder {
	recorder := metrics.NewPrometheusRecorder(podsecurityapi.GetAPIVersion())
	recorder.MustRegister(legacyregistry.MustRegister)
	return recorder
})

// NewPodSecurity returns the plugin.
func NewPodSecurity(objects Objects) (*PodSecurity, error) {
	config, err := podsecurityconfig.LoadFromReader(nil)
	if err != nil {
		return nil, fmt.Errorf("default configuration of PodSecurity: %w", err)
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("checks of PodSecurity: %w", err)
	}
	p := &PodSecurity{
		Handler: admission.NewHandler(admission.Create, admission.Update),
		library: podsecurity.Admission{
			Configuration: config, Evaluator: evaluator, Metrics: podSecurityMetrics(),
			PodSpecExtractor: podsecurity.DefaultPodSpecExtractor{},
			NamespaceGetter:  podSecurityReader{objects}, PodLister: podSecurityReader{objects},
		},
	}
	if err := p.library.CompleteConfiguration(); err != nil {
		return nil, fmt.Errorf("configuration of PodSecurity: %w", err)
	}
	if err := p.library.ValidateConfiguration(); err != nil {
		return nil, fmt.Errorf("configuration of PodSecurity: %w", err)
	}
	return p, nil
}

// podSecurityReader reads in the logical cluster of each call's context.
type podSecurityReader struct{ objects Objects }

func (r podSecurityReader) GetNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return lister[corev1.Namespace, *corev1.Namespace]{scope{ctx, r.objects}, namespaces, ""}.Get(name)
}

// ListPods returns as many pods as there are, and of what the library will not look at one that is empty: it looks at some, of
// each controller one first. What it returns is the cache's, and must not be changed.
func (r podSecurityReader) ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	found, err := r.objects.List(ctx, pods, namespace, true)
	if err != nil {
		return nil, err
	}
	var alone, beside []runtime.Object // of their controllers
	of := map[types.UID]bool{}
	for _, obj := range found {
		pod, ok := obj.(*core.Pod)
		if !ok {
			return nil, fmt.Errorf("list pods: one is a %T", obj)
		}
		switch controller := metav1.GetControllerOfNoCopy(pod); {
		case controller == nil:
			alone = append(alone, pod)
		case of[controller.UID]:
			beside = append(beside, pod)
		default:
			of[controller.UID] = true
			alone = append(alone, pod)
		}
	}
	all := make([]*corev1.Pod, 0, len(found))
	for _, obj := range append(alone, beside...)[:min(len(found), mostPods)] {
		pod := &corev1.Pod{}
		if err := legacyscheme.Scheme.Convert(obj, pod, nil); err != nil {
			return nil, fmt.Errorf("convert a pod for PodSecurity: %w", err)
		}
		all = append(all, pod)
	}
	rest := &corev1.Pod{}
	if len(alone) < mostPods && len(beside) > 0 { // it is to come after those beside others
		rest.OwnerReferences = all[len(alone)].OwnerReferences
	}
	return append(all, slices.Repeat([]*corev1.Pod{rest}, len(found)-len(all))...), nil
}

// Validate refuses pods below the level of their namespace, and labels that name no level.
func (p *PodSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := a.GetResource().GroupResource()
	if resource != namespaces && !p.library.PodSpecExtractor.HasPodSpec(resource) {
		return nil
	}
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("PodSecurity of %s %s: the request names no logical cluster", a.GetOperation(), resource))
	}
	if cluster.Mirror {
		return nil
	}
	answer := p.library.Validate(ctx, versionedAttributes{a})
	for _, text := range answer.Warnings {
		warning.AddWarning(ctx, "", text)
	}
	for key, value := range answer.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, podsecurityapi.AuditAnnotationPrefix+key, value)
	}
	if answer.Allowed {
		return nil
	}
	refused := admission.NewForbidden(a, errors.New("not allowed by PodSecurity"))
	status, ok := refused.(*apierrors.StatusError)
	if why := answer.Result; ok && why != nil {
		if why.Message != "" {
			status.ErrStatus.Message = why.Message
		}
		if why.Reason != "" {
			status.ErrStatus.Reason = why.Reason
		}
		if why.Details != nil {
			status.ErrStatus.Details = why.Details
		}
		if why.Code != 0 {
			status.ErrStatus.Code = why.Code
		}
	}
	return refused
}

// versionedAttributes are the request with its objects as v1, which is the version of all kinds that the library knows.
type versionedAttributes struct{ admission.Attributes }

func (a versionedAttributes) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(a.Attributes.GetOperation())
}

func (a versionedAttributes) GetUserName() string { return a.GetUserInfo().GetName() }

func (a versionedAttributes) GetObject() (runtime.Object, error) {
	return a.versioned(a.Attributes.GetObject())
}

func (a versionedAttributes) GetOldObject() (runtime.Object, error) {
	return a.versioned(a.Attributes.GetOldObject())
}

func (a versionedAttributes) versioned(obj runtime.Object) (runtime.Object, error) {
	return legacyscheme.Scheme.ConvertToVersion(obj, schema.GroupVersion{Group: a.GetResource().Group, Version: "v1"})
}
