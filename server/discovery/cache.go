package discovery

import (
	"container/list"
	"sync"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/lru"
)

// cacheKey is what a document is found by: equal only for equal documents.
type cacheKey [32]byte

// documentCache keeps documents as long as they fit in a number of bytes; the ones longest unused go first.
type documentCache struct {
	limit  int
	making singleflight.Group

	mu    sync.Mutex // guards what follows
	size  int
	byKey map[cacheKey]*list.Element // of cached
	used  *list.List                 // the last used first
}

type cached struct {
	key cacheKey
	*document
}

func newDocumentCache(bytes int) *documentCache {
	return &documentCache{limit: bytes, byKey: map[cacheKey]*list.Element{}, used: list.New()}
}

// get returns the document of that key, which is made, once for all who wait for it, if it is not there.
func (c *documentCache) get(key cacheKey, make func() (*document, error)) (*document, error) {
	if found, ok := c.lookUp(key); ok {
		return found, nil
	}
	found, err, _ := c.making.Do(string(key[:]), func() (any, error) {
		// It may have been made since.
		if found, ok := c.lookUp(key); ok {
			return found, nil
		}
		made, err := make()
		if err != nil {
			return nil, err
		}
		c.add(key, made)
		return made, nil
	})
	if err != nil {
		return nil, err
	}
	return found.(*document), nil
}

func (c *documentCache) lookUp(key cacheKey) (*document, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.byKey[key]
	if !ok {
		return nil, false
	}
	c.used.MoveToFront(element)
	return element.Value.(cached).document, true
}

// add keeps what was made for a key that is not there. What is larger than all that fits is not kept.
func (c *documentCache) add(key cacheKey, made *document) {
	if len(made.gzipped) > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byKey[key] = c.used.PushFront(cached{key, made})
	c.size += len(made.gzipped)
	for c.size > c.limit {
		oldest := c.used.Remove(c.used.Back()).(cached)
		delete(c.byKey, oldest.key)
		c.size -= len(oldest.gzipped)
	}
}

// tags keeps the ETags of documents, the last used ones.
type tags struct{ byKey *lru.Cache }

func newTags(number int) *tags { return &tags{lru.New(number)} }

func (t *tags) get(key cacheKey) (string, bool) {
	found, ok := t.byKey.Get(key)
	if !ok {
		return "", false
	}
	return found.(string), true
}

func (t *tags) add(key cacheKey, etag string) { t.byKey.Add(key, etag) }
