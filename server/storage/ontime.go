//go:build !late

package storage

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// late is for tests of what goes on while caches are behind (late.go). Without the build tag nothing is late.
func late(live watch.Interface, _ schema.GroupResource) watch.Interface { return live }
