package client

import (
	"github.com/kcp-dev/logicalcluster/v3"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// MirrorOf returns the mirror of a SyncTarget, or of its twin there. It is empty while there is none, and where the status
// names what cannot be one: whoever may write it must not get objects put into a logical cluster of his choice by it.
func MirrorOf(t *workloadv1alpha1.SyncTarget) logicalcluster.Name {
	if !lcctx.IsNewName(t.Status.Mirror) {
		return ""
	}
	return logicalcluster.Name(t.Status.Mirror)
}
