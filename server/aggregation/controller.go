package aggregation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacv1apply "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/internal/turns"
	"atoll.dev/atoll/server/rbac"
)

const (
	// FieldManager of what is applied, Kubernetes' own.
	FieldManager = "clusterrole-aggregation-controller"
	// workers of the queue: a key is one list in memory, and a write for each role that changes.
	workers = 4
	// apart is how far apart the looks at a workspace begin at least, and pause how many times as long as one has worked the
	// next one waits: its roles may change all the time, and take a second to sum up. Of what one has worked mostWorked counts:
	// etcd may have been away.
	apart      = 20 * time.Millisecond
	pause      = 4
	mostWorked = 5 * time.Second
)

// Roles lists the ClusterRoles of the workspace of ctx, those that it shares with all others too, as the watch cache has them,
// which has what a feed told of. They are the cache's, and must not be changed.
type Roles func(ctx context.Context) ([]rbacv1.ClusterRole, error)

// Controller fills the aggregated ClusterRoles of all workspaces.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	list      Roles
	roles     *client.Feed[*metav1.PartialObjectMetadata]
	clock     clock.PassiveClock
	lanes     *turns.Lanes[logicalcluster.Name, struct{}]
	// workspaces in which a ClusterRole was written.
	workspaces *queue.Queue[logicalcluster.Name]
}

// New returns the controller.
func New(clients *client.Clients, informers *client.Informers, list Roles, clk clock.PassiveClock) (*Controller, error) {
	c := &Controller{clients: clients, informers: informers, list: list, clock: clk, lanes: newLanes(clk)}
	c.workspaces = queue.NewWithClock("clusterrole-aggregation", clk, func(ctx context.Context, workspace logicalcluster.Name) (time.Duration, error) {
		wait, err := c.inTurn(workspace, func() error { return c.fill(ctx, workspace) })
		if wait > 0 {
			return 0, queue.Later(wait)
		}
		return 0, err
	})
	kind := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}}
	// What was deleted while nobody watched is made up for by the roles that it was summed up in, which are told of.
	var err error
	c.roles, err = client.NewFeed(clients, kind, func(role *metav1.PartialObjectMetadata, _ bool) {
		c.workspaces.Add(lcctx.NameFrom(role))
	})
	return c, err
}

func newLanes(clk clock.PassiveClock) *turns.Lanes[logicalcluster.Name, struct{}] {
	return turns.NewLanes[logicalcluster.Name, struct{}](clk, turns.LaneRules{AtOnce: 1, Apart: apart, Pause: pause, MostWorked: mostWorked})
}

// inTurn looks at a workspace, or says after what time its turn is.
func (c *Controller) inTurn(workspace logicalcluster.Name, look func() error) (time.Duration, error) {
	if wait := c.lanes.Turn(workspace, struct{}{}); wait > 0 {
		return wait, nil
	}
	began := c.clock.Now()
	defer func() { c.lanes.Done(workspace, c.clock.Since(began)) }()
	return 0, look()
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.workspaces.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.roles.Run(ctx) })
	wg.Go(func() { c.workspaces.Run(ctx, workers) })
	wg.Wait()
	return nil
}

// fill makes the rules of a workspace's aggregated roles what they should be.
func (c *Controller) fill(ctx context.Context, workspace logicalcluster.Name) error {
	if is, err := client.InWorkspace(ctx, c.clients, c.informers, workspace); !is || err != nil {
		return err
	}
	ctx = client.In(ctx, workspace)
	all, err := c.list(ctx)
	if err != nil {
		return fmt.Errorf("list ClusterRoles of workspace %q: %w", workspace, err)
	}
	changed, err := outdated(all)
	if errors.Is(err, rbac.ErrUnsettled) {
		return c.tell(ctx, workspace, err) // the next change of a role brings it back
	}
	if err != nil {
		return fmt.Errorf("sum up ClusterRoles of workspace %q: %w", workspace, err)
	}
	roles := c.clients.Kube.RbacV1().ClusterRoles()
	var errs []error
	for _, role := range changed { // that one cannot be written, because it has become too large, is nothing to the others
		_, err := roles.Apply(ctx, configuration(role), metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("apply the rules of ClusterRole %q of workspace %q: %w", role.Name, workspace, err))
		}
	}
	return errors.Join(errs...)
}

// tell puts an event into the workspace, unless there is one: who makes its roles can change that.
func (c *Controller) tell(ctx context.Context, workspace logicalcluster.Name, why error) error {
	now := metav1.NewTime(time.Now())
	_, err := c.clients.Kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: FieldManager},
		InvolvedObject: corev1.ObjectReference{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		Type:           corev1.EventTypeWarning, Reason: "NotAggregated", Message: why.Error(),
		Source: corev1.EventSource{Component: FieldManager}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsForbidden(err): // it has no room for Events; trying again would not make any
		klog.FromContext(ctx).Info("Could not tell a workspace", "workspace", workspace, "reason", "NotAggregated", "message", why.Error(), "err", err)
		return nil
	}
	return fmt.Errorf("tell workspace %q that %w: %w", workspace, why, err)
}

// outdated returns the roles whose rules should be others, with those. It copies and compares no rules of others, which may be
// a workspace's all.
func outdated(roles []rbacv1.ClusterRole) ([]rbacv1.ClusterRole, error) {
	filled := slices.Clone(roles) // Aggregate puts other rules into them, and changes none
	if err := rbac.Aggregate(filled); err != nil {
		return nil, err
	}
	var changed []rbacv1.ClusterRole
	for i := range filled {
		if filled[i].AggregationRule != nil && !rbac.SameRules(filled[i].Rules, roles[i].Rules) {
			changed = append(changed, filled[i])
		}
	}
	return changed, nil
}

// configuration is the rules of a role and nothing else.
func configuration(role rbacv1.ClusterRole) *rbacv1apply.ClusterRoleApplyConfiguration {
	config := rbacv1apply.ClusterRole(role.Name)
	for _, r := range role.Rules {
		config.WithRules(&rbacv1apply.PolicyRuleApplyConfiguration{
			Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames, NonResourceURLs: r.NonResourceURLs,
		})
	}
	return config
}
