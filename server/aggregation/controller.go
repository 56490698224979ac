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

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/server/rbac"
)

const (
	// FieldManager of what is applied, Kubernetes' own.
	FieldManager = "clusterrole-aggregation-controller"
	// workers of the queue: a key is one list, and a write for each role that changes.
	workers = 4
)

// Controller fills the aggregated ClusterRoles of all workspaces.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	roles     *client.Feed[*metav1.PartialObjectMetadata]
	// workspaces in which a ClusterRole was written.
	workspaces *queue.Queue[logicalcluster.Name]
}

// New returns the controller.
func New(clients *client.Clients, informers *client.Informers) (*Controller, error) {
	c := &Controller{clients: clients, informers: informers}
	c.workspaces = queue.New("clusterrole-aggregation", c.fill)
	kind := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}}
	// What was deleted while nobody watched is made up for by the roles that it was summed up in, which are told of.
	var err error
	c.roles, err = client.NewFeed(clients, kind, func(role *metav1.PartialObjectMetadata, _ bool) {
		c.workspaces.Add(lcctx.NameFrom(role))
	})
	return c, err
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
func (c *Controller) fill(ctx context.Context, workspace logicalcluster.Name) (time.Duration, error) {
	if is, err := client.InWorkspace(ctx, c.clients, c.informers, workspace); !is || err != nil {
		return 0, err
	}
	ctx = client.In(ctx, workspace)
	roles := c.clients.Kube.RbacV1().ClusterRoles()
	// From the watch cache, which has what the feed told of.
	list, err := roles.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, fmt.Errorf("list ClusterRoles of workspace %q: %w", workspace, err)
	}
	changed, err := outdated(list.Items)
	if errors.Is(err, rbac.ErrUnsettled) {
		return 0, c.tell(ctx, workspace, err) // the next change of a role brings it back
	}
	if err != nil {
		return 0, fmt.Errorf("sum up ClusterRoles of workspace %q: %w", workspace, err)
	}
	var errs []error
	for _, role := range changed { // that one cannot be written, because it has become too large, is nothing to the others
		_, err := roles.Apply(ctx, configuration(role), metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("apply the rules of ClusterRole %q of workspace %q: %w", role.Name, workspace, err))
		}
	}
	return 0, errors.Join(errs...)
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

// outdated returns the roles whose rules should be others, with those.
func outdated(roles []rbacv1.ClusterRole) ([]rbacv1.ClusterRole, error) {
	filled := slices.Clone(roles) // Aggregate puts other rules into them, and changes none
	if err := rbac.Aggregate(filled); err != nil {
		return nil, err
	}
	var changed []rbacv1.ClusterRole
	for i := range filled {
		if !rbac.SameRules(filled[i].Rules, roles[i].Rules) {
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
