package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/server/storage"
)

const (
	// keysRow is the name of the row that holds the keys.
	keysRow = "serviceaccount-keys"
	// keysVersion is the version of the row's format.
	keysVersion = 1

	// readEvery is how long a server uses what it has read of the row.
	readEvery = time.Minute
	// readUnknown is how often the row is read, at most, because a token names a key or an issuer that is not known.
	readUnknown = time.Second
	// readAgain is how long what was read last is used after the row could not be read.
	readAgain = 5 * time.Second
	// readTimeout bounds one attempt.
	readTimeout = 5 * time.Second
)

// errStored is the error of a row that cannot be used. What parsed it is not wrapped: its error may quote the row.
var errStored = errors.New("the stored keys for tokens of ServiceAccounts cannot be read: bring back the row from a backup, or delete /atoll/installation/" + keysRow +
	" from etcd, which makes new keys and ends all tokens of ServiceAccounts")

// Rows are the rows of the installation; see storage.Backend.
type Rows interface {
	ReadInstallation(ctx context.Context, name string) (storage.InstallationRow, error)
	WriteInstallation(ctx context.Context, name string, value []byte, revision int64) (bool, error)
}

// stored is the row.
type stored struct {
	Version int   `json:"version"`
	Keys    []key `json:"keys"`
}

// snapshot is what was read of the row. It does not change.
type snapshot struct {
	keys    []key
	private []any                      // parsed, as keys
	public  []serviceaccount.PublicKey // as keys
	bases   []string                   // of the issuers of what the keys signed
	readAt  time.Time
	// soughtAt is when the row was last read because a token named a key or an issuer that was not known; zero if it
	// never was.
	soughtAt time.Time
}

// Keys are the keys of the installation.
type Keys struct {
	rows    Rows
	base    string // in the issuers of what this server signs
	longest time.Duration
	clock   clock.PassiveClock

	mu   sync.Mutex // held while the row is read
	held atomic.Pointer[snapshot]
}

// OpenKeys reads the keys, or makes the first, for a server that signs as those issuers. longest is how long a token may be
// valid at most.
func OpenKeys(ctx context.Context, rows Rows, issuers Issuers, longest time.Duration, c clock.PassiveClock) (*Keys, error) {
	k := &Keys{rows: rows, base: issuers.bases[0], longest: longest, clock: c}
	if _, err := k.current(ctx); err != nil {
		return nil, err
	}
	return k, nil
}

// current returns the keys, read anew if that was long ago.
func (k *Keys) current(ctx context.Context) (*snapshot, error) { return k.read(ctx, false) }

// read returns the keys: as they were read not longer ago than readEvery or, if something is sought that is not among
// them, read for that, but not more often than every readUnknown. When they were read otherwise does not matter then:
// a key may have been made right afterwards. While another request reads, and when the row cannot be read, it returns those
// that there are.
func (k *Keys) read(ctx context.Context, sought bool) (*snapshot, error) {
	young := func() (*snapshot, bool) {
		held := k.held.Load()
		switch {
		case held == nil:
			return nil, false
		case sought:
			return held, k.clock.Since(held.soughtAt) < readUnknown
		default:
			return held, k.clock.Since(held.readAt) < readEvery
		}
	}
	held, ok := young()
	if ok {
		return held, nil
	}
	if held == nil {
		k.mu.Lock()
	} else if !k.mu.TryLock() {
		return held, nil
	}
	defer k.mu.Unlock()
	if held, ok = young(); ok {
		return held, nil
	}
	// Others wait for this one, whose client may go away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	found, err := k.load(ctx)
	if err != nil {
		if held == nil {
			return nil, err
		}
		klog.FromContext(ctx).Error(err, "The keys for tokens of ServiceAccounts cannot be read now; those read before are used")
		again := *held
		again.readAt = k.clock.Now().Add(readAgain - readEvery)
		found = &again
	}
	switch {
	case sought:
		found.soughtAt = k.clock.Now()
	case held != nil:
		found.soughtAt = held.soughtAt
	}
	k.held.Store(found)
	return found, nil
}

// load reads the row, and writes it where the keys should be others.
func (k *Keys) load(ctx context.Context) (*snapshot, error) {
	for {
		row, err := k.rows.ReadInstallation(ctx, keysRow)
		if err != nil {
			return nil, err
		}
		have := stored{Version: keysVersion}
		if row.Value != nil {
			have = stored{}
			if json.Unmarshal(row.Value, &have) != nil {
				return nil, errStored
			}
		}
		if have.Version != keysVersion {
			return nil, fmt.Errorf("the stored keys for tokens of ServiceAccounts are of format %d, and this server knows %d: use the newer server that wrote them", have.Version, keysVersion)
		}
		now := k.clock.Now().UTC().Truncate(time.Second)
		keys, err := rotate(have.Keys, now, k.longest, k.base, keyutil.MakeEllipticPrivateKeyPEM)
		if err != nil {
			return nil, fmt.Errorf("make a key for tokens of ServiceAccounts: %w", err)
		}
		found, err := parse(keys, k.clock.Now())
		if err != nil {
			return nil, err
		}
		want, err := json.Marshal(stored{Version: keysVersion, Keys: keys})
		if err != nil {
			return nil, err
		}
		if !row.Stale && bytes.Equal(want, row.Value) {
			return found, nil
		}
		written, err := k.rows.WriteInstallation(ctx, keysRow, want, row.Revision)
		if err != nil {
			return nil, err
		}
		if !written {
			continue // another server was first; the deadline of ctx bounds how often
		}
		for i, made := range keys {
			if !slices.ContainsFunc(have.Keys, func(old key) bool { return bytes.Equal(old.Private, made.Private) }) {
				klog.FromContext(ctx).Info("Made a key for tokens of ServiceAccounts", "keyID", found.public[i].KeyID,
					"signsFrom", made.SignsFrom.Format(time.RFC3339), "signsUntil", made.SignsUntil.Format(time.RFC3339))
			}
		}
		return found, nil
	}
}

// parse returns the keys ready for use.
func parse(keys []key, now time.Time) (*snapshot, error) {
	s := &snapshot{keys: keys, readAt: now}
	for _, k := range keys {
		private, err := keyutil.ParsePrivateKeyPEM(k.Private)
		if err != nil {
			return nil, errStored
		}
		s.private = append(s.private, private)
		s.bases = append(s.bases, k.Bases...)
	}
	s.bases = slices.Compact(slices.Sorted(slices.Values(s.bases)))
	getter, err := serviceaccount.StaticPublicKeysGetter(s.private)
	if err != nil {
		return nil, errStored
	}
	s.public = getter.GetPublicKeys(context.Background(), "")
	return s, nil
}

// signing returns the private key that signs now.
func (k *Keys) signing(ctx context.Context) (any, time.Time, error) {
	s, err := k.current(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	i := signer(s.keys, k.clock.Now())
	if i < 0 {
		return nil, time.Time{}, errors.New("no key signs tokens now: the clocks of the servers differ, or etcd could not be read for long")
	}
	return s.private[i], s.keys[i].VerifiesUntil, nil
}

// verifying returns the public keys of which a token may be valid now.
func (k *Keys) verifying(s *snapshot) []serviceaccount.PublicKey {
	now := k.clock.Now()
	var public []serviceaccount.PublicKey
	for i, p := range s.public {
		if !now.After(s.keys[i].VerifiesUntil) {
			public = append(public, p)
		}
	}
	return public
}

// GetPublicKeys implements serviceaccount.PublicKeysGetter. It returns none if the keys cannot be read.
func (k *Keys) GetPublicKeys(ctx context.Context, keyID string) []serviceaccount.PublicKey {
	for _, sought := range []bool{false, true} {
		s, err := k.read(ctx, sought)
		if err != nil {
			klog.FromContext(ctx).Error(err, "No token of a ServiceAccount can be verified")
			return nil
		}
		public := k.verifying(s)
		if keyID == "" {
			return public
		}
		for _, p := range public {
			if p.KeyID == keyID {
				return []serviceaccount.PublicKey{p}
			}
		}
	}
	return nil
}

// AddListener implements serviceaccount.PublicKeysGetter. Nobody needs to be told: what depends on the keys is made when it
// is asked for.
func (*Keys) AddListener(serviceaccount.Listener) {}

// GetCacheAgeMaxSeconds implements serviceaccount.PublicKeysGetter: how long others may keep the published keys, an hour
// as with upstream's static keys and much shorter than the announcement of a new one.
func (*Keys) GetCacheAgeMaxSeconds() int { return 3600 }
