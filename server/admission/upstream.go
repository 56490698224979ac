package admission

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"atoll.dev/atoll/internal/logicalcluster"
)

// upstream runs a plugin of Kubernetes, unmodified, in all workspaces: every request about one of its resources gets an
// instance that sees the request's logical cluster and is forgotten with the request. Making one is a few small
// allocations; keeping one for each logical cluster would be memory, and a cache to clean up.
type upstream struct {
	*admission.Handler
	name      string
	plugins   *admission.Plugins
	resources []schema.GroupResource
	objects   Objects
	authorize authorizer.Authorizer
}

// make joins a plugin to the server. It makes one instance to see that it can.
func (k fromKubernetes) make(c Config) (*upstream, error) {
	u := &upstream{name: k.name, plugins: admission.NewPlugins(), resources: k.looksAt, objects: c.Objects, authorize: c.Authorizer}
	k.register(u.plugins)
	probe, err := u.in(context.Background())
	if err != nil {
		return nil, fmt.Errorf("make the admission plugin %s: %w", k.name, err)
	}
	var operations []admission.Operation
	for _, o := range []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect} {
		if probe.Handles(o) {
			operations = append(operations, o)
		}
	}
	u.Handler = admission.NewHandler(operations...)
	return u, nil
}

// in makes an instance that sees the logical cluster of ctx.
func (u *upstream) in(ctx context.Context) (admission.Interface, error) {
	s := scope{ctx: ctx, objects: u.objects}
	give := initializer.New(clientset{scope: s}, nil, factory{scope: s}, u.authorize, utilfeature.DefaultFeatureGate, nil, nil, nil)
	return u.plugins.InitPlugin(u.name, nil, give)
}

// instance returns the one for a request, or nil if the plugin does not look at it.
func (u *upstream) instance(ctx context.Context, a admission.Attributes) (admission.Interface, error) {
	if !slices.Contains(u.resources, a.GetResource().GroupResource()) {
		return nil, nil
	}
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%s of %s %s: the request names no logical cluster", u.name, a.GetOperation(), a.GetResource().Resource))
	}
	if cluster.Mirror {
		return nil, nil
	}
	plugin, err := u.in(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return plugin, nil
}

// Admit lets the plugin change the object.
func (u *upstream) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, err := u.instance(ctx, a)
	if err != nil {
		return err
	}
	if mutating, ok := plugin.(admission.MutationInterface); ok {
		return mutating.Admit(ctx, a, o)
	}
	return nil
}

// Validate lets the plugin refuse the object.
func (u *upstream) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, err := u.instance(ctx, a)
	if err != nil {
		return err
	}
	if validating, ok := plugin.(admission.ValidationInterface); ok {
		return validating.Validate(ctx, a, o)
	}
	return nil
}
