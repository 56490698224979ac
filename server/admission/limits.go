package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// Limits keeps the limits of a workspace, which are annotations of its LogicalCluster, to administrators of the server: the
// workspace's own may change other annotations there.
type Limits struct{ *admission.Handler }

// NewLimits returns the plugin.
func NewLimits() *Limits {
	return &Limits{admission.NewHandler(admission.Create, admission.Update)}
}

var workspaces = tenancyv1alpha1.GroupVersion.WithResource("workspaces").GroupResource()

var (
	errNotTheirLimits = errors.New("only administrators of the server set the limits of a workspace (" + corev1alpha1.LimitAnnotationPrefix + "*)")
	errMirrorLimits   = errors.New("a mirror has no limits (" + corev1alpha1.LimitAnnotationPrefix + "*): what is in it is bounded by the limits of workspaces")
)

// Validate implements admission.ValidationInterface.
func (*Limits) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	of := a.GetResource().GroupResource()
	if of != logicalClusters && of != workspaces {
		return nil
	}
	before, err := limitsOf(a.GetOldObject())
	if err != nil {
		return err
	}
	after, err := limitsOf(a.GetObject())
	if err != nil || maps.Equal(before, after) {
		return err
	}
	if of == workspaces {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s*: nothing reads this here; the limits of a workspace are annotations of the LogicalCluster in it", corev1alpha1.LimitAnnotationPrefix))
		return nil
	}
	if !slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup) {
		return admission.NewForbidden(a, errNotTheirLimits)
	}
	if cluster, _ := logicalcluster.ClusterFrom(ctx); cluster.Mirror && len(after) > 0 {
		return admission.NewForbidden(a, errMirrorLimits)
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if _, err := ParseLimit(key, after[key]); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("annotation %s: %v", key, err))
		}
	}
	return nil
}

// limitsOf are those of an object's annotations that say limits.
func limitsOf(obj runtime.Object) (map[string]string, error) {
	limits := map[string]string{}
	if obj == nil {
		return limits, nil
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("limits of %T: %w", obj, err))
	}
	for key, value := range object.GetAnnotations() {
		if strings.HasPrefix(key, corev1alpha1.LimitAnnotationPrefix) {
			limits[key] = value
		}
	}
	return limits, nil
}

// ParseLimit returns the limit that an annotation sets.
func ParseLimit(key, value string) (int64, error) {
	least := int64(0)
	switch key {
	case corev1alpha1.LimitObjectsAnnotation, corev1alpha1.LimitBytesAnnotation, corev1alpha1.LimitDefinitionsAnnotation, corev1alpha1.LimitDefinitionBytesAnnotation:
	case corev1alpha1.LimitWatchesAnnotation:
		least = 1
	default:
		return 0, fmt.Errorf("there is no such limit; want one of %s", strings.Join(corev1alpha1.LimitAnnotations, ", "))
	}
	limit, err := ParseWhole(value)
	if err == nil && limit < least {
		err = fmt.Errorf("%q: want at least %d", value, least)
	}
	return limit, err
}

// ParseWhole reads a whole number below 2^62, which may be written as a quantity: 5000, 512Mi, 1.5Gi.
func ParseWhole(value string) (int64, error) {
	q, err := resource.ParseQuantity(value)
	// A sign, a point or a suffix alone would be none: and 0 is often no bound at all.
	digits := strings.TrimPrefix(strings.TrimLeft(value, "+-"), ".")
	if err != nil || digits == "" || digits[0] < '0' || digits[0] > '9' {
		return 0, fmt.Errorf("%q is no number, such as 5000 or 512Mi", value)
	}
	n := q.Value() // rounded up; what is too large to be read is the largest number
	if q.CmpInt64(n) != 0 || n > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q: want a whole number below 4Ei", value)
	}
	return n, nil
}
