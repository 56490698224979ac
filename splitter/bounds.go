package splitter

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// ensureBounds writes what bounds the pods of a root's namespace, as a LimitRange or a NetworkPolicy does (kinds.WithNamespace), into a mirror, before what
// makes pods there: its syncer has it down before them (syncer/bounds.go). What there is, is read uncached: who applies a LimitRange, and then a
// Deployment, may find the informer of the first behind that of the second. What the hub refuses holds nothing up: its owner is told of it by its own key.
func (c *Controller) ensureBounds(ctx context.Context, root client.Key, mirror logicalcluster.Name) error {
	for _, k := range kinds.All {
		if k.Goes != kinds.WithNamespace {
			continue
		}
		s := c.sources[k.GVK.Kind]
		if !c.carries(mirror, s) {
			continue
		}
		list := s.NewList()
		switch err := c.clients.Objects.List(client.In(ctx, root.Cluster), list, ctrlclient.InNamespace(root.Namespace)); {
		case err == nil:
		case isUnreadable(err):
			continue // one that cannot be read keeps nobody from running
		default:
			return fmt.Errorf("list the %s that hold for the pods of %s: %w", s.GVR.Resource, root, err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			bound := o.(ctrlclient.Object)
			if bound.GetDeletionTimestamp() != nil {
				return nil
			}
			if _, _, err := c.putWhole(ctx, s, bound, mirror, leafIn(mirror, s.leaves(client.KeyOf(bound))), false); err != nil && refusedByHub(err) == nil {
				return err
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
