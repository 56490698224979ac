package atollapis

import (
	"context"
	"slices"

	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"k8s.io/kubernetes/pkg/api/legacyscheme"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
)

type listOptions = metainternalversion.ListOptions

// strategy is what happens to the objects of a resource on their way to the store.
type strategy[T object] struct {
	runtime.ObjectTyper
	r *resource[T]
}

var (
	_ rest.RESTCreateStrategy  = strategy[object]{}
	_ rest.RESTUpdateStrategy  = strategy[object]{}
	_ rest.RESTDeleteStrategy  = strategy[object]{}
	_ rest.ResetFieldsStrategy = strategy[object]{}
)

func (strategy[T]) GenerateName(base string) string {
	return names.SimpleNameGenerator.GenerateName(base)
}
func (strategy[T]) NamespaceScoped() bool     { return false }
func (strategy[T]) AllowCreateOnUpdate() bool { return false }

// AllowUnconditionalUpdate is false, as for the custom resources that kcp serves under these names.
func (strategy[T]) AllowUnconditionalUpdate() bool  { return false }
func (strategy[T]) Canonicalize(obj runtime.Object) {}

func (s strategy[T]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	o := obj.(T)
	o.SetGeneration(1)
	decided := s.r.decided && isServer(ctx)
	if s.r.copyStatus != nil && !decided && !(s.r.statusAtBirth && isSystem(ctx)) {
		s.r.copyStatus(o, s.r.new())
	}
	if decided {
		o.SetManagedFields(nil)
	}
	if s.r.prepareCreate != nil {
		s.r.prepareCreate(ctx, o)
	}
}

func (s strategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	o, was := obj.(T), old.(T)
	decided := s.r.decided && isServer(ctx)
	if s.r.copyStatus != nil && !decided {
		s.r.copyStatus(o, was)
	}
	if s.r.prepareUpdate != nil {
		s.r.prepareUpdate(ctx, o, was)
	}
	if !s.r.sameSpec(o, was) {
		o.SetGeneration(was.GetGeneration() + 1)
	}
}

func (s strategy[T]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	o := obj.(T)
	errs := s.validateMeta(o)
	if s.r.validate != nil {
		errs = append(errs, s.r.validate(o)...)
	}
	if s.r.validateCreate != nil {
		errs = append(errs, s.r.validateCreate(ctx, o)...)
	}
	return errs
}

func (s strategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	o, was := obj.(T), old.(T)
	errs := apimachineryvalidation.ValidateObjectMetaAccessorUpdate(o, was, field.NewPath("metadata"))
	errs = append(errs, s.validateMeta(o)...)
	if s.r.validate != nil {
		errs = append(errs, s.r.validate(o)...)
	}
	if s.r.validateUpdate != nil {
		errs = append(errs, s.r.validateUpdate(ctx, o, was)...)
	}
	return errs
}

func (s strategy[T]) validateMeta(obj T) field.ErrorList {
	validName := func(name string, prefix bool) []string {
		if prefix {
			return nil // of generateName: the whole name is checked
		}
		return s.r.validName(name)
	}
	return apimachineryvalidation.ValidateObjectMetaAccessor(obj, false, validName, field.NewPath("metadata"))
}

func (s strategy[T]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.r.warn == nil {
		return nil
	}
	return s.r.warn(ctx, obj.(T))
}
func (strategy[T]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields tells server-side apply what an applier of the main endpoint does not own.
func (s strategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if s.r.copyStatus == nil {
		return nil
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.r.version.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// statusStrategy is what happens to updates of a status endpoint.
type statusStrategy[T object] struct{ strategy[T] }

// PrepareForUpdate takes the status and nothing else, as custom resources do.
func (s statusStrategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	o, was := obj.(T), old.(T)
	s.r.copySpec(o, was)
	o.SetLabels(was.GetLabels())
	o.SetAnnotations(was.GetAnnotations())
	o.SetFinalizers(was.GetFinalizers())
	o.SetOwnerReferences(was.GetOwnerReferences())
	if s.r.prepareStatus != nil {
		s.r.prepareStatus(ctx, o, was)
	}
}

// ValidateUpdate leaves out what holds for the spec, so that the status of an object from before a rule can be written.
func (s statusStrategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaAccessorUpdate(obj.(T), old.(T), field.NewPath("metadata"))
	if s.r.validateStatus != nil {
		errs = append(errs, s.r.validateStatus(ctx, obj.(T), old.(T))...)
	}
	return errs
}

// GetResetFields tells server-side apply what an applier of the status endpoint does not own.
func (s statusStrategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.r.version.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata")),
	}
}

// isSystem says whether the request comes from the system itself or from who may do anything anyway.
func isSystem(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// isServer says whether the request comes from one of the server's own controllers.
func isServer(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && u.GetName() == user.APIServerUser && isSystem(ctx)
}

// LogicalClusterStrategy is what happens to new LogicalClusters, for who writes them without a request.
func LogicalClusterStrategy() rest.RESTCreateStrategy {
	return strategy[*corev1alpha1.LogicalCluster]{r: logicalClusters(), ObjectTyper: legacyscheme.Scheme}
}
