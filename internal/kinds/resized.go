package kinds

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// Resized is what of a pod's resources was changed in its workspace since a physical cluster has the pod: that part of its spec,
// as a strategic merge patch of the pod below takes it. What nobody has changed is not in it. It is the physical cluster's, whose
// webhooks, limits and autoscalers may have set it otherwise.
type Resized struct {
	Resources      *corev1.ResourceRequirements `json:"resources,omitempty"` // the pod's own
	InitContainers []ResizedContainer           `json:"initContainers,omitempty"`
	Containers     []ResizedContainer           `json:"containers,omitempty"`
}

// ResizedContainer is one of its containers.
type ResizedContainer struct {
	Name      string                      `json:"name"`
	Resources corev1.ResourceRequirements `json:"resources"`
}

// ResizedOf returns what is resized of a pod, by its annotation; nil for nothing.
func ResizedOf(pod metav1.Object) (*Resized, error) {
	text := pod.GetAnnotations()[workloadv1alpha1.ResizedAnnotation]
	if text == "" {
		return nil, nil
	}
	var resized Resized
	if err := json.Unmarshal([]byte(text), &resized); err != nil {
		return nil, fmt.Errorf("read what is resized of pod %s: %w", pod.GetName(), err)
	}
	return &resized, nil
}

// ResizedBy returns what is resized of a pod after its spec was old, with before resized of it, and is now; nil for nothing. What
// was resized once stays in it, so that one who sets it back is heard.
func ResizedBy(before *Resized, old, now *corev1.PodSpec) *Resized {
	if before == nil {
		before = &Resized{}
	}
	after := &Resized{
		InitContainers: containersResized(before.InitContainers, old.InitContainers, now.InitContainers),
		Containers:     containersResized(before.Containers, old.Containers, now.Containers),
	}
	own := func(r *corev1.ResourceRequirements) corev1.ResourceRequirements {
		if r == nil {
			return corev1.ResourceRequirements{}
		}
		return *r
	}
	if r := requirementsResized(own(before.Resources), own(old.Resources), own(now.Resources)); !isNone(r) {
		after.Resources = &r
	}
	if after.Resources == nil && len(after.InitContainers)+len(after.Containers) == 0 {
		return nil
	}
	return after
}

func containersResized(before []ResizedContainer, old, now []corev1.Container) (after []ResizedContainer) {
	for i := range now {
		name := now[i].Name
		var resized, was corev1.ResourceRequirements
		if j := slices.IndexFunc(before, func(c ResizedContainer) bool { return c.Name == name }); j >= 0 {
			resized = before[j].Resources
		}
		if j := slices.IndexFunc(old, func(c corev1.Container) bool { return c.Name == name }); j >= 0 {
			was = old[j].Resources
		}
		if r := requirementsResized(resized, was, now[i].Resources); !isNone(r) {
			after = append(after, ResizedContainer{Name: name, Resources: r})
		}
	}
	return after
}

func requirementsResized(before, old, now corev1.ResourceRequirements) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: listResized(before.Requests, old.Requests, now.Requests),
		Limits:   listResized(before.Limits, old.Limits, now.Limits),
	}
}

func listResized(before, old, now corev1.ResourceList) (after corev1.ResourceList) {
	for name, quantity := range now {
		_, resized := before[name]
		was, had := old[name]
		if !resized && had && was.Cmp(quantity) == 0 {
			continue
		}
		if after == nil {
			after = corev1.ResourceList{}
		}
		after[name] = quantity
	}
	return after
}

func isNone(r corev1.ResourceRequirements) bool { return len(r.Requests)+len(r.Limits) == 0 }

// IsIn says whether a pod's spec has all that is resized.
func (r *Resized) IsIn(spec *corev1.PodSpec) bool {
	own := corev1.ResourceRequirements{}
	if spec.Resources != nil {
		own = *spec.Resources
	}
	return (r.Resources == nil || areIn(*r.Resources, own)) && containersIn(r.InitContainers, spec.InitContainers) && containersIn(r.Containers, spec.Containers)
}

func containersIn(resized []ResizedContainer, containers []corev1.Container) bool {
	return !slices.ContainsFunc(resized, func(r ResizedContainer) bool {
		return !slices.ContainsFunc(containers, func(c corev1.Container) bool { return c.Name == r.Name && areIn(r.Resources, c.Resources) })
	})
}

func areIn(want, have corev1.ResourceRequirements) bool {
	return listIn(want.Requests, have.Requests) && listIn(want.Limits, have.Limits)
}

func listIn(want, have corev1.ResourceList) bool {
	for name, quantity := range want {
		if is, ok := have[name]; !ok || is.Cmp(quantity) != 0 {
			return false
		}
	}
	return true
}
