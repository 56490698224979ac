package customresources

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Definition is a CustomResourceDefinition of one logical cluster. Who gets one shares it with others and copies before
// changing anything: the spec is one object in memory for all logical clusters that have it. Its managedFields, and the
// annotation in which kubectl keeps what was applied, are left out.
type Definition struct {
	*apiextensionsv1.CustomResourceDefinition
	// Hash is equal for definitions that are served alike, in whatever logical cluster: it is of the spec and the accepted
	// names.
	Hash string

	shared *sharedSpec
}

// Definitions are the CustomResourceDefinitions of all logical clusters, kept up to date by one watch (Run).
type Definitions struct {
	feed  *feed
	specs specs
	// builtin says which resources are served by others; definitions of them never are.
	builtin Names
	// changed is told of every change, with the definition before and after, of which one may be nil; unheld of a hash that
	// no definition has any more. They are set before Run.
	changed func(before, after *Definition)
	unheld  func(hash string)

	synced chan struct{}

	mu       sync.Mutex // guards what follows
	clusters map[logicalcluster.Name]*definitionsOfCluster
	held     map[string]int // definitions by hash
	// position is the resourceVersion up to which the watch has told everything.
	position uint64
}

// definitionsOfCluster are those of one logical cluster, by name.
type definitionsOfCluster struct {
	byName map[string]*held
	served []Definition // nil if it has to be made anew
}

// held is a definition, and the watches of its objects that end with it.
type held struct {
	*Definition
	version uint64

	watches context.Context // nil before there is one
	end     context.CancelCauseFunc
}

// Served returns the definitions of a logical cluster whose resources are served there, ordered by name. It costs no more
// than a look into a map; callers do not change the slice. Before WaitSynced some may be missing.
func (d *Definitions) Served(cluster logicalcluster.Name) []Definition {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.clusters[cluster]
	if of == nil {
		return nil
	}
	if of.served == nil {
		of.served = make([]Definition, 0, len(of.byName))
		for _, h := range of.byName {
			if d.isServed(h.Definition) {
				of.served = append(of.served, *h.Definition)
			}
		}
		slices.SortFunc(of.served, func(a, b Definition) int { return strings.Compare(a.Name, b.Name) })
	}
	return of.served
}

// WaitSynced blocks until the definitions that etcd held at the start are known, or ctx ends.
func (d *Definitions) WaitSynced(ctx context.Context) error {
	select {
	case <-d.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the CustomResourceDefinitions of all logical clusters: %w", context.Cause(ctx))
	}
}
