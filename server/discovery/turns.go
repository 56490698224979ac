package discovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"atoll.dev/atoll/internal/turns"
)

const (
	// How many documents of OpenAPI are made at a time, for all logical clusters.
	makers = 2
	// How many requests of one logical cluster may make a document or wait to: each of them is one of those that the server
	// answers at a time for everybody.
	waiters = 50
)

// makerTurns lets documents be made: one at a time for a logical cluster, however many it asks for, and a few for all.
type makerTurns struct {
	*turns.Few[logicalcluster.Name]
}

func newMakerTurns(makers, waiters int) *makerTurns {
	return &makerTurns{turns.NewFew[logicalcluster.Name](makers, waiters)}
}

// take waits for the turn of a logical cluster, as long as ctx lasts. Who has made the document calls done.
func (t *makerTurns) take(ctx context.Context, cluster logicalcluster.Name) (done func(), err error) {
	done, err = t.Take(ctx, cluster)
	switch {
	case errors.Is(err, turns.ErrTooMany):
		return nil, apierrors.NewTooManyRequests("too many requests wait for the OpenAPI documents of this logical cluster", 1)
	case err != nil:
		return nil, apierrors.NewTimeoutError(fmt.Sprintf("other OpenAPI documents are being made (%v)", err), 1)
	}
	return done, nil
}
