package admission

import (
	"context"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// TypeCircles refuses a WorkspaceType that extends itself, by itself or through others: no workspace could be of it. Whoever makes a
// workspace is told of a circle that came about all the same, by writes at one moment or in workspaces of people who may not
// use each other's types.
type TypeCircles struct {
	*admission.Handler
	types *WorkspaceTypes
}

// NewTypeCircles returns the plugin.
func NewTypeCircles(types *WorkspaceTypes) *TypeCircles {
	return &TypeCircles{Handler: admission.NewHandler(admission.Create, admission.Update), types: types}
}

// Validate implements admission.ValidationInterface. What was extended before is left alone: who repairs a type, or deletes it, is
// not to be kept from it.
func (p *TypeCircles) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	t, ok := a.GetObject().(*tenancyv1alpha1.WorkspaceType)
	cluster, named := logicalcluster.ClusterFrom(ctx)
	if !ok || !named || cluster.Mirror || a.GetSubresource() != "" {
		return nil
	}
	if old, is := a.GetOldObject().(*tenancyv1alpha1.WorkspaceType); is && slices.Equal(old.Spec.Extend.With, t.Spec.Extend.With) {
		return nil
	}
	if len(t.Spec.Extend.With) == 0 {
		return nil
	}
	path, _, err := p.types.home(ctx)
	if err != nil {
		return err
	}
	written := &workspaceType{path: path, holder: cluster.Name, name: t.Name, spec: t.Spec}
	way, index, err := p.circle(ctx, a.GetUserInfo(), written)
	if err != nil || way == nil {
		return err
	}
	with := field.NewPath("spec", "extend", "with").Index(index)
	return apierrors.NewInvalid(a.GetKind().GroupKind(), t.Name, field.ErrorList{
		field.Invalid(with, t.Spec.Extend.With[index].Name, "a type cannot extend itself: "+strings.Join(way, " -> ")),
	})
}

// circle returns the shortest way of types from one that is written back to itself, and at which of those that it extends it begins;
// nil if there is no way. It goes where the writer may: what else there is, and what that extends, is nothing to him. More than
// maxFamily types it does not follow: no workspace could be of such a type, either.
func (p *TypeCircles) circle(ctx context.Context, who user.Info, written *workspaceType) (way []string, index int, err error) {
	type reached struct {
		*workspaceType
		way   []string // from the written one to this
		index int      // of the reference that it begins with
	}
	to := []reached{{written, []string{written.String()}, -1}}
	looked := map[typeReference]bool{}
	for next := 0; next < len(to); next++ {
		at := to[next]
		for i, ref := range at.spec.Extend.With {
			ref = beside(at.workspaceType, ref)
			if looked[ref] {
				continue
			}
			looked[ref] = true
			if next == 0 {
				at.index = i
			}
			found, itself, err := p.step(ctx, who, written, ref)
			if err != nil {
				return nil, 0, err
			}
			if itself {
				return append(at.way, written.String()), at.index, nil
			}
			if found != nil && len(to) < maxFamily {
				to = append(to, reached{found, append(slices.Clone(at.way), found.String()), at.index})
			}
		}
	}
	return nil, 0, nil
}

// step returns the type that a reference names, or that it is the written one; neither if there is none that the writer may use.
func (p *TypeCircles) step(ctx context.Context, who user.Info, written *workspaceType, ref typeReference) (next *workspaceType, itself bool, err error) {
	if holder, err := p.types.findHolder(ctx, ref); err != nil || holder == "" {
		return nil, false, err
	} else if holder == written.holder && ref.Name == written.name {
		return nil, true, nil
	}
	if next, err = p.types.lookUp(ctx, ref); next == nil || err != nil {
		return nil, false, err
	}
	if next.holder == written.holder {
		return next, false, nil // beside it
	}
	if may, err := p.types.usable(ctx, who, next); !may || err != nil {
		return nil, false, err
	}
	return next, false, nil
}
