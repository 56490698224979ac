package identity

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/clock"
)

const (
	// rememberFor is how long it is remembered what came of a token: authentication stands before anybody's turn, and would read
	// etcd and verify a signature for each request of a flood. kube-apiserver remembers for ten seconds.
	rememberFor = time.Second
	// rememberMost is how many tokens are remembered at most, some KB each, of all logical clusters: as many that are valid, and
	// as many that are not.
	rememberMost = 4096
)

// remembered are the tokens that were looked at a moment ago, each in its logical cluster. Upstream's cache of tokens does not
// ask again whether what one is bound to is there, and forgets the logical cluster of the request.
type remembered struct {
	clock clock.PassiveClock
	// Apart, so that who shows many that are refused has no others forgotten.
	valid, refused *utilcache.LRUExpireCache

	mu    sync.Mutex
	swept time.Time // when what is over was let go
}

// rememberedToken is a key of it.
type rememberedToken struct {
	cluster logicalcluster.Name
	hash    [sha256.Size]byte
}

// validity is what came of a token whose signature is genuine.
type validity struct {
	response *authenticator.Response
	refused  error     // as etcd says: what it depends on is gone, and does not come back
	keys     *snapshot // of which one signed it
	ended    uint64    // what was deleted before
	read     []reading // what it depends on
}

func newRemembered(c clock.PassiveClock) *remembered {
	return &remembered{
		clock: c, valid: utilcache.NewLRUExpireCacheWithClock(rememberMost, c), refused: utilcache.NewLRUExpireCacheWithClock(rememberMost, c),
	}
}

func keyOf(cluster logicalcluster.Name, token string) rememberedToken {
	return rememberedToken{cluster, sha256.Sum256([]byte(token))}
}

// add remembers a token, until it ends at most.
func (r *remembered) add(cluster logicalcluster.Name, token string, v validity) {
	ttl := min(rememberFor, endOfToken(token).Sub(r.clock.Now()))
	if ttl <= 0 {
		return
	}
	in := r.valid
	if v.refused != nil {
		in = r.refused
	}
	r.sweep()
	in.Add(keyOf(cluster, token), v, ttl)
}

// sweep lets go of what is over, not more often than that happens: of themselves the caches hold all that fits until somebody
// shows the same token again, and those of a workspace that is gone are not shown any more.
func (r *remembered) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if now.Sub(r.swept) < rememberFor {
		return
	}
	r.swept = now
	for _, c := range []*utilcache.LRUExpireCache{r.valid, r.refused} {
		// What is added meanwhile may go as well, and is looked at once more.
		live := sets.New(c.Keys()...)
		c.RemoveAll(func(key any) bool { return !live.Has(key) })
	}
}

// get returns what came of a token a moment ago, if the keys are the same and, of one that was valid, nothing was deleted since.
func (r *remembered) get(cluster logicalcluster.Name, token string, keys *snapshot, ended uint64) (validity, bool) {
	key := keyOf(cluster, token)
	if found, ok := r.valid.Get(key); ok {
		if v := found.(validity); v.keys == keys && v.ended == ended {
			return v, true
		}
	}
	if found, ok := r.refused.Get(key); ok {
		v := found.(validity)
		return v, v.keys == keys
	}
	return validity{}, false
}
