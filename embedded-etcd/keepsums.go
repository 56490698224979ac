package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

const (
	// noteSums is how often the checksums of new rows are written down: damage to what is younger shows only where it cannot be read.
	noteSums = 10 * time.Second
	// compareRows is how often all rows are compared with their checksums while the server runs.
	compareRows = time.Hour
	// rowsAtOnce are read at a time: some tenths of a millisecond, for which writes wait.
	rowsAtOnce = 200
)

// damagedRows is how many rows of the embedded etcd of this process are known to be damaged.
var damagedRows = metrics.NewGauge(&metrics.GaugeOpts{
	Name:           "atoll_embedded_etcd_damaged_rows",
	Help:           "Rows of the embedded etcd's store that are not what was written.",
	StabilityLevel: metrics.ALPHA,
})

func init() { legacyregistry.MustRegister(damagedRows) }

// keeper keeps the checksums of the rows of a store that is open.
type keeper struct {
	server *etcdserver.EtcdServer
	db     string
	file   string

	mu sync.Mutex // guards what follows
	// newest is the main revision up to which the file has checksums, and complete whether it can be appended to.
	newest   uint64
	complete bool

	damage atomic.Pointer[damage] // that was found last; nil: nobody has looked
}

func newKeeper(server *etcdserver.EtcdServer, dir string, found examined) *keeper {
	data := filepath.Join(dir, dataDir)
	return &keeper{
		server: server, db: filepath.Join(data, "member", "snap", "db"), file: filepath.Join(data, checksumsFile),
		newest: found.newest, complete: found.complete,
	}
}

// missing returns an error if the store has less than there are checksums of.
func (k *keeper) missing() error {
	if has := uint64(k.server.KV().Rev()); has < k.newest {
		return damaged(k.db, fmt.Errorf("it is at revision %d, and was at %d", has, k.newest))
	}
	return nil
}

// found returns an error if rows are damaged.
func (k *keeper) found() error {
	if d := k.damage.Load(); d != nil && d.rows > 0 {
		return d
	}
	return nil
}

// run keeps the checksums until ctx ends, and then once more.
func (k *keeper) run(ctx context.Context) {
	log := klog.FromContext(ctx)
	note := time.NewTicker(noteSums)
	defer note.Stop()
	compare := time.NewTicker(compareRows)
	defer compare.Stop()
	do := func(all bool) {
		if err := k.keep(log, all); err != nil {
			log.Error(err, "The checksums of the store cannot be kept: damage to what is written from now on is not found until they can", "file", k.file)
		}
	}
	do(false)
	for {
		select {
		case <-ctx.Done():
			do(false)
			return
		case <-note.C:
			do(false)
		case <-compare.C:
			do(true)
		}
	}
}

// keep notes the checksums of new rows, or, if the file cannot be appended to or it is time, compares all rows and writes it anew.
func (k *keeper) keep(log klog.Logger, all bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.complete || all {
		return k.renew(log)
	}
	if uint64(k.server.KV().Rev()) == k.newest {
		return nil
	}
	k.complete = false // until a block is whole
	newest, err := k.append()
	if err != nil {
		return err
	}
	k.newest, k.complete = newest, true
	return nil
}

// append appends the checksums of all rows that are newer than those it has.
func (k *keeper) append() (newest uint64, err error) {
	f, err := os.OpenFile(k.file, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := sumWriter{f: f}
	until := uint64(k.server.KV().Rev())
	err = k.read(k.newest+1, until, &w.position, func(r row, _ uint64) error {
		s, err := sumOf(r)
		if err != nil {
			return err
		}
		return w.add(s)
	})
	return until, errors.Join(err, w.flush())
}

// renew compares all rows with their checksums, and writes the file anew with what is there.
func (k *keeper) renew(log klog.Logger) (err error) {
	known, done, err := openChecksums(k.file)
	if err != nil {
		return err
	}
	defer done()
	f, err := os.OpenFile(k.file+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err == nil {
			err = errors.Join(os.Rename(f.Name(), k.file), syncDir(filepath.Dir(k.file)))
		} else {
			_ = os.Remove(f.Name()) // the next one begins it anew
		}
	}()
	newest := uint64(k.server.KV().Rev())
	w := sumWriter{f: f}
	c := &comparison{known: known, keep: w.add}
	var compacted uint64
	err = k.read(1, newest, &w.position, func(r row, until uint64) error {
		compacted = until
		return c.row(r, until)
	})
	if err != nil {
		return err
	}
	if err := c.upTo(revision{main: newest + 1}, compacted); err != nil {
		return err
	}
	if err := errors.Join(w.flush(), f.Sync()); err != nil {
		return err
	}
	k.newest, k.complete = newest, true
	if before := k.damage.Swap(&c.damage); c.damage.rows > 0 && (before == nil || before.rows != c.damage.rows) {
		log.Error(c.damage, "The store is damaged. It goes on with what it has, and does not start again before that is decided. Look at the disk", "file", k.db)
	}
	damagedRows.Set(float64(c.damage.rows))
	return nil
}

// read reads all rows of revisions up to one that was written, in their order, and sets the position in the log up to which all of the store
// is on the disk. each is told of every row, which is there only meanwhile, and up to which revision a compaction may have taken rows.
func (k *keeper) read(from, until uint64, position *uint64, each func(r row, compacted uint64) error) error {
	b := k.server.Backend()
	// What is not in the file of the store yet is in no order with what is, in parts (backend.UnsafeRange).
	b.ForceCommit()
	first := mvcc.RevToBytes(mvcc.Revision{Main: int64(from)}, mvcc.NewRevBytes())
	last := mvcc.RevToBytes(mvcc.Revision{Main: int64(until) + 1}, mvcc.NewRevBytes())
	part := func() (more bool, err error) {
		// Nobody writes meanwhile. Upstream's transactions in which others do may have rows twice.
		tx := b.ReadTx()
		tx.RLock()
		defer tx.RUnlock()
		keys, values := tx.UnsafeRange(schema.Key, first, last, rowsAtOnce)
		*position, _ = schema.UnsafeReadConsistentIndex(tx)
		compacted, _ := mvcc.UnsafeReadScheduledCompact(tx)
		for i := range keys {
			if err := each(row{keys[i], values[i]}, uint64(compacted)); err != nil {
				return false, err
			}
			first = append(append(first[:0], keys[i]...), 0)
		}
		return len(keys) == rowsAtOnce, nil
	}
	for more := true; more; {
		var err error
		if more, err = part(); err != nil {
			return err
		}
	}
	return nil
}

// sumWriter writes sums in blocks.
type sumWriter struct {
	f        *os.File
	position uint64
	sums     []sum
	buf      []byte
}

func (w *sumWriter) add(s sum) error {
	if w.sums = append(w.sums, s); len(w.sums) < blockSums {
		return nil
	}
	return w.flush()
}

// flush writes what was added. A block without sums says how far the store is.
func (w *sumWriter) flush() error {
	w.buf = appendBlock(w.buf[:0], w.position, w.sums)
	w.sums = w.sums[:0]
	_, err := w.f.Write(w.buf)
	return err
}
