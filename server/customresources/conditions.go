package customresources

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"
)

// condition is short for what this file is about.
type condition = apiextensionsv1.CustomResourceDefinitionCondition

// decide returns the status that a definition should have: names accepted and resource established in one step, since
// requests are answered as soon as this is decided (Definitions.put), and not only when it is written. Reasons and
// messages are kube-apiserver's. storedVersions are the strategy's, which adds to them with every write of the spec.
func decide(def *Definition, taken names, now time.Time) apiextensionsv1.CustomResourceDefinitionStatus {
	if def.isCut() {
		return def.Status // it is not served, and says why
	}
	status := *def.Status.DeepCopy()
	accepted, named := acceptNames(def.Spec.Names, status.AcceptedNames, taken)
	status.AcceptedNames = accepted
	set := func(c condition) { status.Conditions = withCondition(status.Conditions, c, now) }
	set(named)
	if !isTrue(status.Conditions, apiextensionsv1.Established) { // what has been established stays so, whatever it asks for later
		set(establish(def.Spec.Conversion, named.Status == apiextensionsv1.ConditionTrue))
	}
	if c := def.shared.nonStructuralSchema(); c != nil {
		set(*c)
	} else {
		status.Conditions = slices.DeleteFunc(status.Conditions, func(c condition) bool { return c.Type == apiextensionsv1.NonStructuralSchema })
	}
	if c, ok := apiApproval(def.Spec.Group, def.Annotations); ok {
		set(c)
	}
	return status
}

// establish decides whether a resource that is not served yet is from now on.
func establish(conversion *apiextensionsv1.CustomResourceConversion, named bool) condition {
	c := condition{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse}
	switch {
	case !named:
		c.Reason, c.Message = "NotAccepted", "not all names are accepted"
	case conversion != nil && conversion.Webhook != nil && conversion.Webhook.ClientConfig != nil &&
		len(webhook.ValidateCABundle(nil, conversion.Webhook.ClientConfig.CABundle)) > 0:
		c.Reason, c.Message = "InvalidCABundle", "The conversion webhook CABundle is invalid"
	default:
		c.Status = apiextensionsv1.ConditionTrue
		c.Reason, c.Message = "InitialNamesAccepted", "the initial names have been accepted"
	}
	return c
}

// nonStructuralSchema says what is not structural about the schemas, once for all logical clusters.
func (s *sharedSpec) nonStructuralSchema() *condition {
	s.look.Do(func() { s.nonStructural = nonStructuralSchema(&s.spec) })
	return s.nonStructural
}

func nonStructuralSchema(spec *apiextensionsv1.CustomResourceDefinitionSpec) *condition {
	c := &condition{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue, Reason: "Violations"}
	unknown := func(version string, err error) *condition {
		c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "StructuralError"
		c.Message = fmt.Sprintf("failed to check validation schema for version %s: %v", version, err)
		return c
	}
	var violations field.ErrorList
	if spec.PreserveUnknownFields {
		violations = append(violations, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i, v := range spec.Versions {
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		internal := &apiextensions.CustomResourceValidation{}
		if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, internal, nil); err != nil {
			return unknown(v.Name, err)
		}
		structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
		if err != nil {
			return unknown(v.Name, err)
		}
		path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
		violations = append(violations, structuralschema.ValidateStructural(path, structural)...)
	}
	if len(violations) == 0 {
		return nil
	}
	c.Message = violations.ToAggregate().Error()
	return c
}

// apiApproval says whether a group of the Kubernetes community was approved by it; other groups have no such condition.
func apiApproval(group string, annotations map[string]string) (condition, bool) {
	if !apihelpers.IsProtectedCommunityGroup(group) {
		return condition{}, false
	}
	c := condition{Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionFalse}
	state, message := apihelpers.GetAPIApprovalState(annotations)
	c.Message = message
	switch state {
	case apihelpers.APIApproved:
		c.Status, c.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalInvalid:
		c.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Reason = "MissingAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Reason = "UnapprovedAnnotation"
	default:
		c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	}
	return c, true
}

// withCondition is all with c in it. The time is when its status last changed.
func withCondition(all []condition, c condition, now time.Time) []condition {
	c.LastTransitionTime = metav1.NewTime(now)
	i := slices.IndexFunc(all, func(old condition) bool { return old.Type == c.Type })
	if i < 0 {
		return append(all, c)
	}
	if all[i].Status == c.Status && !all[i].LastTransitionTime.IsZero() {
		c.LastTransitionTime = all[i].LastTransitionTime
	}
	c.ObservedGeneration = all[i].ObservedGeneration
	all[i] = c
	return all
}

func isTrue(all []condition, t apiextensionsv1.CustomResourceDefinitionConditionType) bool {
	return slices.ContainsFunc(all, func(c condition) bool { return c.Type == t && c.Status == apiextensionsv1.ConditionTrue })
}
