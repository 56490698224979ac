package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// beatEvery is the time between two heartbeats of a syncer.
const beatEvery = 10 * time.Second

// played are SyncTargets without a physical cluster, for which this program plays the part of the syncer that the server
// sees: it reports what the cluster is in the mirror's SyncTarget, and keeps the mirror's Lease. It applies nothing.
type played struct {
	clients *client.Clients
	names   []string
	mirrors []logicalcluster.Name
	beats   []int64
}

func playedName(i int) string { return fmt.Sprintf("c-%04d", i) }

// playSyncers registers so many SyncTargets in root and returns when the server says that all are Ready, and goes on to
// beat until the scenario ends. labels are those of each.
func playSyncers(ctx context.Context, env *Env, clients *client.Clients, n int, labels func(i int) map[string]string) (*played, error) {
	p := &played{clients: clients, names: make([]string, n), mirrors: make([]logicalcluster.Name, n), beats: make([]int64, n)}
	root := client.In(ctx, "root")
	_, _, err := Load(ctx, inFlight, n, func(_ context.Context, i int) error {
		p.names[i] = playedName(i)
		return clients.Objects.Create(root, &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: p.names[i], Labels: labels(i)}})
	})
	if err != nil {
		return nil, err
	}
	if err := p.findMirrors(ctx, n); err != nil {
		return nil, err
	}
	_, _, err = Load(ctx, inFlight, n, func(ctx context.Context, i int) error {
		if err := p.report(ctx, i); err != nil {
			return err
		}
		return p.beat(ctx, i)
	})
	if err != nil {
		return nil, err
	}
	p.beatOn(ctx, env)
	return p, eventually(ctx, "the SyncTargets are Ready", func() (string, error) {
		var list workloadv1alpha1.SyncTargetList
		if err := clients.Objects.List(root, &list); err != nil {
			return "", err
		}
		ready := 0
		for _, t := range list.Items {
			if meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
				ready++
			}
		}
		if ready == n {
			return "", nil
		}
		return fmt.Sprintf("%d of %d are", ready, n), nil
	})
}

// findMirrors waits until each SyncTarget has its mirror with a twin.
func (p *played) findMirrors(ctx context.Context, n int) error {
	byName := map[string]int{}
	for i, name := range p.names {
		byName[name] = i
	}
	return eventually(ctx, "the SyncTargets have mirrors", func() (string, error) {
		var list workloadv1alpha1.SyncTargetList
		if err := p.clients.Objects.List(client.Everywhere(ctx), &list); err != nil {
			return "", err
		}
		twins := 0
		for _, t := range list.Items {
			i, ok := byName[t.Name]
			if t.Labels[workloadv1alpha1.SyncTargetLabel] != "" {
				twins++
			} else if ok {
				p.mirrors[i] = logicalcluster.Name(t.Status.Mirror)
			}
		}
		if twins == n {
			return "", nil
		}
		return fmt.Sprintf("%d of %d have", twins, n), nil
	})
}

// report says in the twin what the physical cluster is.
func (p *played) report(ctx context.Context, i int) error {
	in := client.In(ctx, p.mirrors[i])
	twin := &workloadv1alpha1.SyncTarget{}
	if err := p.clients.Objects.Get(in, ctrlclient.ObjectKey{Name: p.names[i]}, twin); err != nil {
		return err
	}
	twin.Status = workloadv1alpha1.SyncTargetStatus{
		Version: "v1.36.3", ClusterUID: string(uuid.NewUUID()), Nodes: 3,
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("768Gi"), corev1.ResourcePods: resource.MustParse("330")},
		Conditions: []metav1.Condition{{
			Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: "Connected", Message: "The physical cluster answers.",
			ObservedGeneration: twin.Generation, LastTransitionTime: metav1.Now(),
		}},
	}
	return p.clients.Objects.Status().Update(in, twin)
}

// beat renews the Lease in the mirror, as a syncer does: a read and a write.
func (p *played) beat(ctx context.Context, i int) error {
	in := client.In(ctx, p.mirrors[i])
	leases := p.clients.Kube.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace)
	lease, err := leases.Get(in, workloadv1alpha1.HeartbeatName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: workloadv1alpha1.HeartbeatName}}
	} else if err != nil {
		return err
	}
	p.beats[i]++
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, workloadv1alpha1.HeartbeatCounterAnnotation, strconv.FormatInt(p.beats[i], 10))
	lease.Spec.HolderIdentity = ptr.To(p.names[i])
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	if missing {
		_, err = leases.Create(in, lease, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(in, lease, metav1.UpdateOptions{})
	}
	return err
}

// beatOn beats for all, evenly over the time between two heartbeats, until the scenario ends.
func (p *played) beatOn(ctx context.Context, env *Env) {
	const workers = 8
	var beating sync.WaitGroup
	ctx, stop := context.WithCancel(ctx)
	env.Cleanup(func() { stop(); beating.Wait() })
	for worker := range workers {
		beating.Go(func() {
			for i := worker; ; i += workers {
				if i >= len(p.names) {
					i = worker
				}
				if i >= len(p.names) || pause(ctx, beatEvery*workers/time.Duration(len(p.names)+workers-1)) != nil {
					return
				}
				if err := p.beat(ctx, i); err != nil && ctx.Err() == nil {
					env.t.Errorf("heartbeat of %s: %v", p.names[i], err)
					return
				}
			}
		})
	}
}
