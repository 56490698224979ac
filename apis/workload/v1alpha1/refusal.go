package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RefusedGone is the reason of a Refusal that is none: what is done once had begun, and somebody deleted it in the physical cluster.
const RefusedGone = "Gone"

// Refusal is what a physical cluster answered when it would not take a leaf, or the hub when it would not show a pod of it.
type Refusal struct {
	// Reason is CamelCase: Forbidden, Invalid, QuotaExceeded, NameConflict, SchemaRejected, Unreachable, Gone.
	Reason string `json:"reason"`
	// Message is its own words.
	Message string `json:"message"`
	// Rendered is the RenderedAnnotation's value of what was refused.
	Rendered string `json:"rendered"`
}

// RefusalIn reads the Refusal in an annotation of a leaf; nil if there is none. A text that is none is the Message of one.
func RefusalIn(leaf metav1.Object, annotation string) *Refusal {
	text := leaf.GetAnnotations()[annotation]
	if text == "" {
		return nil
	}
	r := &Refusal{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return &Refusal{Reason: "Refused", Message: text, Rendered: leaf.GetAnnotations()[RenderedAnnotation]}
	}
	return r
}

// RefusalOf returns what the physical cluster answered to a leaf as it is now; nil if it takes it, or has not answered yet.
func RefusalOf(leaf metav1.Object) *Refusal {
	r := RefusalIn(leaf, RefusedAnnotation)
	if r != nil && r.Rendered != leaf.GetAnnotations()[RenderedAnnotation] {
		return nil // about an earlier rendering
	}
	return r
}
