package syncer

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// longestVersion is how long a resource version may be that is remembered, in bytes: one of Kubernetes has 20 digits at most.
const longestVersion = 64

// writes remembers what was written downstream until an informer shows it. An informer that is behind shows the object as
// it was before: a leaf that is changed and changed back would look as if it were applied, with a status of before.
type writes struct {
	mu sync.Mutex // guards versions
	// versions are the resource versions that the physical cluster answered with; empty while it has not.
	versions map[key]string
}

func (w *writes) add(k key, version string) {
	if len(version) > longestVersion {
		version = "" // whoever answers so is read anew each time, and not remembered for each object
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.versions == nil {
		w.versions = map[key]string{}
	}
	w.versions[k] = version
}

func (w *writes) get(k key) (version string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	version, ok = w.versions[k]
	return version, ok
}

func (w *writes) forget(k key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.versions, k)
}

// notBefore returns the object of ours downstream, nil if there is none: seen, which is what the informer shows, or what a
// fresh read shows if seen may be from before our last write.
func (s *Syncer) notBefore(ctx context.Context, k key, seen *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	version, ok := s.writes.get(k)
	if !ok {
		return seen, nil
	}
	if seen != nil {
		if order, err := resourceversion.CompareResourceVersion(seen.GetResourceVersion(), version); err == nil && order >= 0 {
			s.writes.forget(k)
			return seen, nil
		}
	}
	live, err := s.physical.dynamic.Resource(k.resource).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	switch {
	case gone(err):
		live = nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", k, err)
	case !owned(live, types.UID(s.config.UID)):
		live = nil
	}
	if live == nil && seen == nil || live != nil && seen != nil && live.GetResourceVersion() == seen.GetResourceVersion() {
		s.writes.forget(k) // the informer is right
	}
	return live, nil
}
