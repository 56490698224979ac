package server

import (
	"errors"
	"sync"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// overrideFeatures gives some of Kubernetes' feature gates another default in this process.
var overrideFeatures = sync.OnceFunc(func() {
	for _, off := range []featuregate.Feature{
		// What it keeps for further pages of long lists, a tree of all objects for every write of the last minutes, is a third
		// of what an idle workspace holds. Such pages come from etcd, which is in this process.
		features.ListFromCacheSnapshot,
		// It keeps every key once more, to tell priority and fairness what a list costs; neither is in use here.
		features.SizeBasedListCostEstimate,
		// It remembers for some seconds who may impersonate whom, by what was asked and not by where: see refuseFeatures.
		features.ConstrainedImpersonation,
	} {
		utilruntime.Must(utilfeature.DefaultMutableFeatureGate.OverrideDefault(off, false))
	}
})

// refuseFeatures returns an error if a feature is on with which workspaces would not be apart. Upstream's filter of constrained
// impersonation keeps successes under the request's path, which is the same in all workspaces, and asks the authorizer no more: who may
// impersonate in a workspace of his own would be anybody in every other.
func refuseFeatures() error {
	if utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation) {
		return errors.New("--feature-gates=ConstrainedImpersonation=true: what it remembers of one workspace would count in all others: leave it off")
	}
	return nil
}
