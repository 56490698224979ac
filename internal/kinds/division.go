package kinds

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
)

// Division is what of a Divided object each of its clusters has its own of, and what its status says of that.
type Division struct {
	// Replicas points into the object, to how many pods it asks for.
	Replicas **int32
	// Strategy points into the object, to how pods of an earlier template are replaced; nil for a kind that replaces none.
	Strategy *appsv1.DeploymentStrategy
	// Pods are those that there are, Updated those of them that are of the present template, as all are where none is replaced, and Available those
	// that serve. Terminating are on their way out besides, as far as that is told.
	Pods, Updated, Available, Terminating int32
}

// Asked is how many pods are asked for.
func (d Division) Asked() int32 { return ptr.Deref(*d.Replicas, 1) }

// Mixed says that there are pods of an earlier template that are to be replaced, whether their cluster still goes on with it or has given up.
func (d Division) Mixed() bool { return d.Updated < d.Pods }

// Recreates says that no pod is made before all that it replaces are gone.
func (d Division) Recreates() bool {
	return d.Strategy != nil && d.Strategy.Type == appsv1.RecreateDeploymentStrategyType
}

// Fenceposts is how many of so many pods may be unavailable, and in surplus, while they are replaced; none where none is.
func (d Division) Fenceposts(desired int32) (maxUnavailable, maxSurge int32) {
	if d.Strategy == nil {
		return 0, 0
	}
	return Fenceposts(d.Strategy.RollingUpdate, desired)
}
