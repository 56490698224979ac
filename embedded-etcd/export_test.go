package embeddedetcd

import (
	"bytes"
	"context"
	"math"
	"time"

	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

const (
	KeptHistory = keptHistory
	Room        = room
)

// GivesBackAfter says for how long the file of a store has to be mostly free to be written anew.
func (o *Options) GivesBackAfter(d time.Duration) { o.mostlyFreeFor = d }

// Syncs has sync called where the name of a new file is brought to the disk.
func (o *Options) Syncs(sync func(dir string) error) { o.syncDir = sync }

// GiveBack writes the file of a store anew, unless something speaks against it.
func (e *Etcd) GiveBack(ctx context.Context) error { return e.space.giveBack(ctx) }

// FlipRow changes a row of the store where nobody sees it, and back.
func (e *Etcd) FlipRow() {
	tx := e.keeper.server.Backend().BatchTx()
	tx.LockOutsideApply()
	defer tx.Unlock()
	keys, values := tx.UnsafeRange(schema.Key, mvcc.RevToBytes(mvcc.Revision{Main: 1}, mvcc.NewRevBytes()), mvcc.RevToBytes(mvcc.Revision{Main: math.MaxInt64}, mvcc.NewRevBytes()), 1)
	value := bytes.Clone(values[0])
	value[len(value)-1] ^= 1
	tx.UnsafePut(schema.Key, keys[0], value)
}

// Compare compares all rows with their checksums.
func (e *Etcd) Compare(ctx context.Context) error { return e.keeper.keep(ctx, true) }

// Forget does what the end of the process would: the lock is given back, and nothing else happens.
func (r *Restoration) Forget() {
	_ = r.snapshot.Close() // it may be closed
	r.unlock()
}

// Syncs has sync called where the names in the directory are brought to the disk.
func (r *Restoration) Syncs(sync func(dir string) error) { r.sync = sync }
