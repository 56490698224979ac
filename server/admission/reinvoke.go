package admission

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
)

// reinvoking is the chain as requests see it: when webhooks or policies have changed the object, everything that changes
// objects looks at it once more, and of webhooks and policies those that want to.
type reinvoking struct {
	plugins interface {
		admission.MutationInterface
		admission.ValidationInterface
	}
}

// Handles implements admission.Interface.
func (r reinvoking) Handles(o admission.Operation) bool { return r.plugins.Handles(o) }

// Admit implements admission.MutationInterface.
func (r reinvoking) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := r.plugins.Admit(ctx, a, o); err != nil {
		return err
	}
	round := a.GetReinvocationContext()
	if !round.ShouldReinvoke() {
		return nil
	}
	round.SetIsReinvoke()
	return r.plugins.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (r reinvoking) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return r.plugins.Validate(ctx, a, o)
}
