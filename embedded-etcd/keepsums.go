package embeddedetcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	// rowsAtOnce, of bytesAtOnce together unless one alone has more, are copied at a time: some tenths of a millisecond, for which writes wait.
	rowsAtOnce, bytesAtOnce = 200, 1 << 20
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
		return fmt.Errorf("%s is damaged: with its log it is at revision %d, and was at %d. %s", k.db, has, k.newest, lookAtTheDisk)
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
	// A disk that is full is not made fuller every ten seconds.
	var again time.Time
	wait := noteSums
	do := func(all bool) {
		if time.Now().Before(again) {
			return
		}
		err := k.keep(ctx, all)
		switch {
		case err == nil && wait > noteSums:
			log.Info("The checksums of the store are kept again", "file", k.file)
			again, wait = time.Time{}, noteSums
		case err == nil || ctx.Err() != nil:
		default:
			if wait == noteSums {
				log.Error(err, "The checksums of the store cannot be kept: damage to what is written from now on is not found until they can", "file", k.file)
			}
			wait = min(2*wait, compareRows)
			again = time.Now().Add(wait)
		}
	}
	do(false)
	for {
		select {
		case <-ctx.Done():
			if err := k.last(context.WithoutCancel(ctx)); err != nil {
				log.Error(err, "The checksums of the last rows are not kept: damage to them is not found", "file", k.file)
			}
			return
		case <-note.C:
			do(false)
		case <-compare.C:
			do(true)
		}
	}
}

// last notes the checksums of new rows if that is all there is to do: nobody waits for more.
func (k *keeper) last(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.complete {
		return nil
	}
	return k.note(ctx)
}

// keep notes the checksums of new rows, or, if the file cannot be appended to or it is time, compares all rows and writes it anew.
func (k *keeper) keep(ctx context.Context, all bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.complete || all {
		return k.renew(ctx)
	}
	return k.note(ctx)
}

// note appends the checksums of new rows, if there are any.
func (k *keeper) note(ctx context.Context) error {
	if uint64(k.server.KV().Rev()) == k.newest {
		return nil
	}
	newest, err := k.append(ctx)
	if err != nil {
		return err
	}
	k.newest = newest
	return nil
}

// append appends the checksums of all rows that are newer than those it has. Where that fails the file is as it was, or is written anew next.
func (k *keeper) append(ctx context.Context) (newest uint64, err error) {
	f, err := os.OpenFile(k.file, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		k.complete = false
		return 0, err
	}
	before, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		k.complete = false
		return 0, errors.Join(err, f.Close())
	}
	defer func() {
		if err != nil && f.Truncate(before) != nil {
			k.complete = false
		}
		err = errors.Join(err, f.Close())
	}()
	w := sumWriter{f: f}
	until := uint64(k.server.KV().Rev())
	_, err = k.read(ctx, k.newest+1, until, &w.position, func(r row, _ uint64) error {
		s, err := sumOf(r)
		if err != nil {
			return err
		}
		return w.add(s)
	})
	return until, errors.Join(err, w.flush())
}

// renew compares all rows with their checksums, and writes the file anew with what is there.
func (k *keeper) renew(ctx context.Context) (err error) {
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
	compacted, err := k.read(ctx, 1, newest, &w.position, c.row)
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
		klog.FromContext(ctx).Error(c.damage, "The store is damaged. It goes on with what it has, and does not start again before that is decided. Look at the disk", "file", k.db)
	}
	damagedRows.Set(float64(c.damage.rows))
	return nil
}

// read reads all rows of revisions up to one that was written, in their order, and sets the position in the log up to which all of the store
// is on the disk. each is told of every row, and up to which revision a compaction may have taken rows, which is returned as of the end.
func (k *keeper) read(ctx context.Context, from, until uint64, position *uint64, each func(r row, compacted uint64) error) (compacted uint64, err error) {
	b := k.server.Backend()
	select {
	case <-k.server.StopNotify():
		return 0, errors.New("etcd has ended")
	default:
	}
	// What is not in the file of the store yet is in no order with what is, in parts (backend.UnsafeRange).
	b.ForceCommit()
	first := mvcc.RevToBytes(mvcc.Revision{Main: int64(from)}, mvcc.NewRevBytes())
	last := mvcc.RevToBytes(mvcc.Revision{Main: int64(until) + 1}, mvcc.NewRevBytes())
	part := func() (rows []row, more bool) {
		// Nobody writes meanwhile. Upstream's transactions in which others do may have rows twice.
		tx := b.ReadTx()
		tx.RLock()
		defer tx.RUnlock()
		keys, values := tx.UnsafeRange(schema.Key, first, last, rowsAtOnce)
		*position, _ = schema.UnsafeReadConsistentIndex(tx)
		scheduled, _ := mvcc.UnsafeReadScheduledCompact(tx)
		compacted = uint64(scheduled)
		size := 0
		for i := range keys {
			if size += len(values[i]); i > 0 && size > bytesAtOnce {
				return rows, true
			}
			rows = append(rows, row{bytes.Clone(keys[i]), bytes.Clone(values[i])})
		}
		return rows, len(keys) == rowsAtOnce
	}
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		var rows []row
		rows, more = part()
		for _, r := range rows {
			if err := each(r, compacted); err != nil {
				return 0, err
			}
			first = append(append(first[:0], r.key...), 0)
		}
	}
	return compacted, nil
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
