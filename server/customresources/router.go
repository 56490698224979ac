package customresources

import (
	"context"
	"fmt"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// ServeHTTP answers requests for custom resources, by the definition that the logical cluster of the request has. It stands
// behind the whole handler chain: authentication, authorisation, audit and limits are those of built-in resources.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || !info.IsResourceRequest || info.APIGroup == "" {
		http.NotFound(w, req)
		return
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	fail := func(err error) {
		responsewriters.ErrorNegotiated(err, apiextensionsapiserver.Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, req)
	}
	cluster, ok := lcctx.ClusterFrom(ctx)
	switch {
	case !ok:
		fail(apierrors.NewInternalError(fmt.Errorf("%s %s: the request's context has no logical cluster", info.Verb, resource)))
		return
	case cluster.Wildcard:
		// Each logical cluster may have another schema for them: there is none to read those of all by.
		err := apierrors.NewNotFound(resource, "")
		err.ErrStatus.Message = fmt.Sprintf("there is no %s on /clusters/*: no built-in resource has this name, and custom resources are those of one workspace, as in /clusters/root", resource)
		fail(err)
		return
	}
	def, err := s.definitions.current(ctx, cluster.Name, resource.String(), info.APIVersion)
	if err != nil {
		fail(apierrors.NewInternalError(err))
		return
	}
	if def == nil {
		http.NotFound(w, req)
		return
	}
	handler, done, err := s.instances.of(def)
	if err != nil {
		fail(apierrors.NewInternalError(err))
		return
	}
	defer done()
	if creates(info.Verb) && !isGoing(def) {
		// Whoever may write its status can have it served before it is on record, and nobody would look for what is created.
		if err := s.reconciler.record(ctx, keyOf(def), def); err != nil {
			fail(apierrors.NewInternalError(err))
			return
		}
	}
	if isGoing(def) {
		ctx = context.WithValue(ctx, terminatingKey{}, true)
	}
	// Whatever happens to the definition until the object is written, on whatever server.
	ctx = storage.WithGuard(ctx, s.definitions.guard(cluster.Name, def))
	if info.Verb == "watch" {
		var cancel context.CancelFunc
		ctx, cancel = s.definitions.whileAlike(ctx, cluster.Name, def)
		defer cancel()
	}
	handler.ServeHTTP(w, req.WithContext(ctx))
}

// creates says whether a request may create an object.
func creates(verb string) bool { return verb == "create" || verb == "update" || verb == "patch" }

func isGoing(def *Definition) bool {
	return def.DeletionTimestamp != nil || isTrue(def.Status.Conditions, apiextensionsv1.Terminating)
}

// guard lets objects of a definition be created only while it is there and not being deleted, as etcd has it: an object
// created after the definition's objects were deleted would be a row that nobody sees.
func (d *Definitions) guard(cluster logicalcluster.Name, def *Definition) storage.Guard {
	return func(ctx context.Context, failed bool) (storage.Condition, error) {
		current := def
		if failed {
			var err error
			if current, err = d.feed.read(ctx, cluster, def.Name); err != nil {
				return storage.Condition{}, err
			}
			if current != nil {
				d.put(current, read)
			}
		}
		if current != nil && current.UID != def.UID && !isGoing(current) { // made anew, of which this server hears in a moment
			return storage.Condition{}, apierrors.NewServerTimeout(schema.GroupResource{Group: def.Spec.Group, Resource: def.Spec.Names.Plural}, "create", 1)
		}
		if current == nil || current.UID != def.UID || isGoing(current) {
			return storage.Condition{}, apierrors.NewForbidden(schema.GroupResource{Group: def.Spec.Group, Resource: def.Spec.Names.Plural}, "", errTerminating)
		}
		return storage.Condition{Key: d.feed.rows.RowKey(string(cluster), "", def.Name), Revision: int64(versionOf(current))}, nil
	}
}

// terminatingKey marks requests for resources whose definition is being deleted.
type terminatingKey struct{}

// noNewOnes refuses to create objects of a definition that is being deleted, which would outlive it. Upstream's handler
// does so by what it knows of its definition; here that is one definition for many logical clusters.
type noNewOnes struct{ admission.Interface }

func (n noNewOnes) Handles(o admission.Operation) bool {
	return o == admission.Create || n.Interface.Handles(o)
}

func (n noNewOnes) check(ctx context.Context, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" || ctx.Value(terminatingKey{}) == nil {
		return nil
	}
	return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errTerminating)
}

// Admit implements admission.MutationInterface.
func (n noNewOnes) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := n.check(ctx, a); err != nil {
		return err
	}
	if next, ok := n.Interface.(admission.MutationInterface); ok && n.Interface.Handles(a.GetOperation()) {
		return next.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (n noNewOnes) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := n.check(ctx, a); err != nil {
		return err
	}
	if next, ok := n.Interface.(admission.ValidationInterface); ok && n.Interface.Handles(a.GetOperation()) {
		return next.Validate(ctx, a, o)
	}
	return nil
}
