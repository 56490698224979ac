package storage

import (
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
)

// inProcessEtcd answers for an in-process etcd what upstream's checker can only learn by asking endpoints, of which an
// in-process client has none. Without it, consistent lists would all go to etcd. Its version is that of our go.mod,
// far beyond 3.5.13, which brought the feature.
type inProcessEtcd struct {
	etcdfeature.FeatureSupportChecker
}

func (c inProcessEtcd) Supports(feature storage.Feature) bool {
	if feature == storage.RequestWatchProgress {
		return true
	}
	return c.FeatureSupportChecker.Supports(feature)
}

var supportInProcess = sync.OnceFunc(func() {
	etcdfeature.DefaultFeatureSupportChecker = inProcessEtcd{etcdfeature.DefaultFeatureSupportChecker}
})

// announceFeatures tells upstream's process-wide checker about the client of all stores, before there is one. Those have clients made of parts of it,
// without its endpoints, and the checker asks nobody about them.
func announceFeatures(client *clientv3.Client) {
	if len(client.Endpoints()) == 0 {
		supportInProcess()
		return
	}
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), client, storage.RequestWatchProgress)
}
