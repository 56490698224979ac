package admission

import (
	"context"
	"maps"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// OwnName makes objects that say a logical cluster say the one that they are written in. What is stored is so by its key; but
// webhooks and policies see what comes before that, and upstream answers an update that completes a deletion with what it was sent.
type OwnName struct {
	*admission.Handler
}

// NewOwnName returns the plugin. It has to come before all that others configured, and again after what of that changes objects:
// a webhook that is invoked again has the last word otherwise.
func NewOwnName() *OwnName {
	return &OwnName{Handler: admission.NewHandler(admission.Create, admission.Update)}
}

// Admit implements admission.MutationInterface.
func (*OwnName) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	cluster, ok := lcctx.ClusterFrom(ctx)
	object, err := meta.Accessor(a.GetObject())
	if !ok || err != nil { // what has no metadata says nothing
		return nil
	}
	said, says := object.GetAnnotations()[lc.AnnotationKey]
	if !says || said == cluster.Name.String() {
		return nil
	}
	annotations := maps.Clone(object.GetAnnotations()) // others may hold it
	annotations[lc.AnnotationKey] = cluster.Name.String()
	object.SetAnnotations(annotations)
	return nil
}
