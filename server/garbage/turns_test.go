package garbage

import (
	"context"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/atoll/internal/queue"
)

// What is handled for a logical cluster is, or names it as, its tenant.
var _ = []queue.Tenanted{identity{}, kindIn{}, resourceOf{}}

// TestSearchesTakeTurns: a logical cluster that has many resources searched holds up nobody else.
func TestSearchesTakeTurns(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var order []string
	turns := newTurns("test", func(_ context.Context, of resourceOf, _ []suspect) ([]suspect, time.Duration, error) {
		order = append(order, string(of.cluster))
		if len(order) == 5 {
			cancel()
		}
		return nil, 0, nil
	})
	for _, of := range []resourceOf{
		{"shop", schema.GroupResource{Resource: "a"}}, {"shop", schema.GroupResource{Resource: "b"}}, {"shop", schema.GroupResource{Resource: "c"}},
		{"shop", schema.GroupResource{Resource: "d"}}, {"bank", schema.GroupResource{Resource: "a"}},
	} {
		turns.add(of, suspect{})
	}
	turns.run(ctx, 1)
	if want := []string{"shop", "bank", "shop", "shop", "shop"}; !slices.Equal(order, want) {
		t.Errorf("searched for %q, want %q", order, want)
	}
}
