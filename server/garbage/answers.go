package garbage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// answered is for how long what etcd has said a logical cluster may have is good, or twice as long: an owner may wait for days.
const answered = 5 * time.Second

// answers are the resources that logical clusters may have objects of, as etcd has said, for all objects that are older than the
// question: of a foreground deletion each leaf would ask anew. Only those of the last moments are kept.
type answers struct {
	mu         sync.Mutex // guards what follows
	young, old map[logicalcluster.Name]answer
	since      time.Time // that young has been filled
}

type answer struct {
	resources []schema.GroupResource
	// revision is that of something which was there when it was asked.
	revision uint64
}

// get returns those of a logical cluster, if they were asked for when a revision was there.
func (a *answers) get(cluster logicalcluster.Name, revision uint64, now time.Time) ([]schema.GroupResource, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tidy(now)
	got, ok := a.young[cluster]
	if !ok {
		got, ok = a.old[cluster]
	}
	return got.resources, ok && got.revision >= revision
}

// put takes those that were asked for when a revision was there.
func (a *answers) put(cluster logicalcluster.Name, revision uint64, resources []schema.GroupResource, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tidy(now)
	if before, ok := a.young[cluster]; ok && before.revision > revision {
		return
	}
	if a.young == nil {
		a.young, a.since = map[logicalcluster.Name]answer{}, now
	}
	a.young[cluster] = answer{resources, revision}
}

// tidy drops what is too old. Callers hold mu.
func (a *answers) tidy(now time.Time) {
	switch age := now.Sub(a.since); {
	case age >= 2*answered:
		a.young, a.old = nil, nil
	case age >= answered:
		a.young, a.old, a.since = nil, a.young, a.since.Add(answered)
	}
}

// resourcesOf returns the resources that a logical cluster may have objects of, as etcd has them now or had them when a revision
// was there already.
func (c *Collector) resourcesOf(ctx context.Context, cluster logicalcluster.Name, revision uint64) ([]schema.GroupResource, error) {
	if known, ok := c.answers.get(cluster, revision, time.Now()); ok {
		return known, nil
	}
	stores, err := c.kinds.Of(ctx, cluster)
	if err != nil {
		return nil, fmt.Errorf("ask what logical cluster %q may have: %w", cluster, err)
	}
	resources := make([]schema.GroupResource, 0, len(stores))
	for _, store := range stores {
		resources = append(resources, store.GroupResource)
	}
	c.answers.put(cluster, revision, resources, time.Now())
	return resources, nil
}
