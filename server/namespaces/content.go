package namespaces

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// content is what one look at a namespace that is being deleted found.
type content struct {
	// discovery, deletion are why something could not be looked at or deleted.
	discovery, deletion error
	// refused says that all of the latter is for the people of the workspace to mend, as what a webhook refuses.
	refused bool
	// remaining counts objects by resource, finalizers those objects that have them, by finalizer.
	remaining, finalizers map[string]int64
	// hidden says that what remains is of custom resources that discovery does not name, as etcd has it: nobody can delete
	// it as it is.
	hidden bool
}

func (c content) gone() bool {
	return c.discovery == nil && c.deletion == nil && len(c.remaining) == 0
}

// conditions are those that kube-controller-manager sets, in its words, so that whoever knows them finds them. Unlike
// there, nothing is written for a namespace that goes at the first try.
func (c content) conditions() []corev1.NamespaceCondition {
	discovery := c.discovery
	if c.hidden {
		discovery = fmt.Errorf("%s, of which no version is served: serve one, for them to be deleted, or delete the CustomResourceDefinition, which takes them along; if it is gone, create it again before", counted(c.remaining, "%s has %d resource instances"))
	}
	list := []corev1.NamespaceCondition{
		failure(corev1.NamespaceDeletionDiscoveryFailure, discovery,
			"DiscoveryFailed", "Discovery failed for some groups: ", "ResourcesDiscovered", "All resources successfully discovered"),
		failure(corev1.NamespaceDeletionContentFailure, c.deletion,
			"ContentDeletionFailed", "Failed to delete all resource types: ", "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
	}
	remaining := corev1.NamespaceCondition{
		Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionFalse,
		Reason: "ContentRemoved", Message: "All content successfully removed",
	}
	if len(c.remaining) > 0 {
		remaining.Status, remaining.Reason = corev1.ConditionTrue, "SomeResourcesRemain"
		remaining.Message = "Some resources are remaining: " + counted(c.remaining, "%s has %d resource instances")
	}
	finalizers := corev1.NamespaceCondition{
		Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionFalse,
		Reason: "ContentHasNoFinalizers", Message: "All content-preserving finalizers finished",
	}
	if len(c.finalizers) > 0 {
		finalizers.Status, finalizers.Reason = corev1.ConditionTrue, "SomeFinalizersRemain"
		finalizers.Message = "Some content in the namespace has finalizers remaining: " + counted(c.finalizers, "%s in %d resource instances")
	}
	return append(list, remaining, finalizers)
}

func failure(kind corev1.NamespaceConditionType, err error, reason, prefix, goodReason, good string) corev1.NamespaceCondition {
	if err == nil {
		return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: goodReason, Message: good}
	}
	return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: prefix + err.Error()}
}

func counted(counts map[string]int64, format string) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf(format, what, counts[what]))
	}
	return strings.Join(parts, ", ")
}

// setConditions puts conditions into a status, and says whether that changed anything.
func setConditions(status *corev1.NamespaceStatus, conditions []corev1.NamespaceCondition, now metav1.Time) bool {
	changed := false
	for _, c := range conditions {
		c.LastTransitionTime = now
		i := slices.IndexFunc(status.Conditions, func(old corev1.NamespaceCondition) bool { return old.Type == c.Type })
		if i < 0 {
			status.Conditions, changed = append(status.Conditions, c), true
			continue
		}
		old := &status.Conditions[i]
		if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old, changed = c, true
	}
	return changed
}
