package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/rbac"
	clusterrolepolicybased "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolebindingpolicybased "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	rolepolicybased "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	rolebindingpolicybased "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"
)

// Provider serves rbac.authorization.k8s.io/v1. Upstream's own provider resolves roles by consistent reads of its own
// stores and fills one cluster with the bootstrap policy at start; this one resolves with the authoriser's getters
// and writes nothing.
type Provider struct {
	stores     *Stores
	authorizer authorizer.Authorizer
	resolver   resolver
}

// NewProvider serves stores. The authoriser answers who may bind and escalate; the rules that a role or binding would
// grant are compared with what the requester holds in the same logical cluster, by the authoriser's rules.
func NewProvider(stores *Stores, authorizer authorizer.Authorizer, rules *Rules) *Provider {
	return &Provider{stores: stores, authorizer: authorizer, resolver: resolver{rules}}
}

// GroupName is rbac.authorization.k8s.io.
func (p *Provider) GroupName() string { return rbac.GroupName }

// NewRESTStorage returns those of the four resources that are enabled. The stores exist already, so the options getter
// is not asked.
func (p *Provider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, _ generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	served := map[string]rest.Storage{}
	for resource, storage := range p.checked() {
		if enabled.ResourceEnabled(rbacv1.SchemeGroupVersion.WithResource(resource)) {
			served[resource] = storage
		}
	}
	info := genericapiserver.NewDefaultAPIGroupInfo(rbac.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	if len(served) > 0 {
		info.VersionedResourcesStorageMap[rbacv1.SchemeGroupVersion.Version] = served
	}
	return info, nil
}

// checked wraps the stores in upstream's check that nobody grants what they do not hold.
func (p *Provider) checked() map[string]rest.Storage {
	served := map[string]rest.Storage{}
	for resource, store := range map[string]checked{
		"roles":               rolepolicybased.NewStorage(p.stores.Roles, p.authorizer, p.resolver),
		"rolebindings":        rolebindingpolicybased.NewStorage(p.stores.RoleBindings, p.authorizer, p.resolver),
		"clusterroles":        clusterrolepolicybased.NewStorage(p.stores.ClusterRoles, p.authorizer, p.resolver),
		"clusterrolebindings": clusterrolebindingpolicybased.NewStorage(p.stores.ClusterRoleBindings, p.authorizer, p.resolver),
	} {
		served[resource] = &granting{store, p.authorizer}
	}
	return served
}
