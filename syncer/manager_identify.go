package syncer

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

const (
	// firstIdentify and lastIdentify bound the time before a duplicate is asked who it is, which doubles each time and
	// begins anew with each kubeconfig. The first one is not 0 so that a cluster that says now this, now that, does not
	// keep us busy.
	firstIdentify = 2 * time.Second
	lastIdentify  = 30 * time.Second

	// identifies, at the beginning of a push's source, marks one that only asks the physical cluster who it is.
	identifies = "identify:"
)

// ensureIdentified runs for a duplicate with a kubeconfig, in place of its Syncer, no more than the question who its physical
// cluster is: else it would remain a duplicate for ever, whatever becomes of the kubeconfig. Nothing is written there. A
// Syncer is stopped in any case.
func (m *Manager) ensureIdentified(ctx context.Context, target *workloadv1alpha1.SyncTarget) error {
	err := m.ensureRuns(ctx, target, identifies, func(physical *rest.Config) (func(context.Context) error, error) {
		side, err := newPhysical(physical, nil)
		if err != nil {
			return nil, &problem{ReasonKubeconfigInvalid, err.Error()}
		}
		mirror, name := logicalcluster.Name(target.Status.Mirror), target.Name
		return func(ctx context.Context) error {
			m.identify(ctx, mirror, name, side.kube)
			return nil
		}, nil
	})
	if err != nil {
		m.stop(target.UID)
	}
	return err
}

// identify asks a physical cluster who it is until ctx ends, and has the twin say so.
func (m *Manager) identify(ctx context.Context, mirror logicalcluster.Name, twin string, kube kube) {
	for wait := firstIdentify; ; wait = min(2*wait, lastIdentify) {
		select {
		case <-m.config.Clock.After(wait):
		case <-ctx.Done():
			return
		}
		if err := m.identifyOnce(ctx, mirror, twin, kube); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Cannot ask a duplicate who it is, will try again", "err", err)
		}
	}
}

func (m *Manager) identifyOnce(ctx context.Context, mirror logicalcluster.Name, name string, kube kube) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	version, clusterUID, err := identity(ctx, kube)
	if err != nil {
		return err
	}
	known, ok := m.config.Informers.SyncTargets.Get(client.Key{Cluster: mirror, Name: name})
	if !ok || known.Status.Version == version && known.Status.ClusterUID == clusterUID {
		return nil
	}
	// The twin that was made anew since is another one, and conflicts.
	twin := known.DeepCopy()
	twin.Status.Version, twin.Status.ClusterUID = version, clusterUID
	if err := m.config.Clients.Objects.Status().Update(client.In(ctx, mirror), twin); err != nil {
		return fmt.Errorf("write who %s is: %w", name, err)
	}
	return nil
}
