package embeddedetcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"k8s.io/klog/v2"
)

// examined is what is known of a store before etcd has opened it.
type examined struct {
	newest   uint64 // revision of which there is a checksum; 0: of none
	complete bool   // the file of checksums is there, and can be appended to
}

// examine looks for damage in the files of the store in dir, before etcd opens them: etcd ends the process at some of it, cuts its log off
// at some, and serves the rest.
func examine(log klog.Logger, dir string) (examined, error) {
	data := filepath.Join(dir, dataDir)
	snaps := filepath.Join(data, "member", "snap")
	db := filepath.Join(snaps, "db")
	if _, err := os.Stat(db); errors.Is(err, fs.ErrNotExist) {
		return examined{}, nil
	}
	if neverWritten(data) {
		return examined{}, nil
	}
	found, position, err := examineStore(db, filepath.Join(data, checksumsFile))
	if err != nil {
		return examined{}, err
	}
	if err := examineLog(filepath.Join(data, "member", "wal"), position); err != nil {
		return examined{}, err
	}
	tellBrokenSnaps(log, snaps)
	return found, nil
}

// neverWritten says that a store was begun, and nothing written to it: its first start ended before its file had a head, which is before there
// is a log.
func neverWritten(data string) bool {
	info, err := os.Stat(filepath.Join(data, "member", "snap", "db"))
	if err != nil || info.Size() > 0 {
		return false
	}
	logs, err := filepath.Glob(filepath.Join(data, "member", "wal", "*.wal"))
	return err == nil && len(logs) == 0
}

// lookAtTheDisk is what to do about a file that is damaged.
const lookAtTheDisk = "Look at the disk; keep the files aside and bring back the last backup with `atoll restore`"

// damaged is the error of a file that is damaged.
func damaged(file string, why error) error {
	return fmt.Errorf("%s is damaged: %w. Nothing was changed. %s", file, why, lookAtTheDisk)
}

// examineStore reads the file of the store and compares its rows with their checksums. position is how far in its log the store is.
func examineStore(db, sums string) (found examined, position uint64, err error) {
	data, done, err := mapFile(db)
	if err != nil {
		return found, 0, damaged(db, err)
	}
	defer done()
	known, closeSums, err := openChecksums(sums)
	if err != nil {
		return found, 0, fmt.Errorf("read the checksums of the store: %w", err)
	}
	defer closeSums()
	c := &comparison{known: known}
	position, err = readStore(data, c)
	if err != nil {
		return found, 0, damaged(db, err)
	}
	if c.damage.rows > 0 {
		return found, 0, c.damage.refusal(db, sums)
	}
	// What is left is newer than the file: it comes from the log.
	if err := c.rest(); err != nil {
		return found, 0, fmt.Errorf("read the checksums of the store: %w", err)
	}
	if position < known.position {
		return found, 0, damaged(db, fmt.Errorf("it is at entry %d of its log, and was at %d", position, known.position))
	}
	return examined{newest: known.newest, complete: known.newest > 0 && known.ended && !known.cut}, position, nil
}

// refusal is why a store with such rows is not opened.
func (d damage) refusal(db, sums string) error {
	return fmt.Errorf("%w. Or go on with these rows as they are now: move %s away, start, and look at those objects", damaged(db, d), sums)
}

// Error says which rows are damaged.
func (d damage) Error() string {
	more := ""
	if d.rows > len(d.first) {
		more = ", and others"
	}
	return fmt.Sprintf("%d rows are not what was written: %s%s", d.rows, strings.Join(d.first, "; "), more)
}

// readStore reads all of a file of the store.
func readStore(data []byte, c *comparison) (position uint64, err error) {
	p, err := readPages(data)
	if err != nil {
		return 0, err
	}
	buckets, err := p.buckets()
	if err != nil {
		return 0, err
	}
	// What a compaction may have taken is written down in one, for the other.
	if meta := slices.IndexFunc(buckets, func(b row) bool { return string(b.key) == string(schema.Meta.Name()) }); meta > 0 {
		buckets[0], buckets[meta] = buckets[meta], buckets[0]
	}
	var compacted uint64
	for _, bucket := range buckets {
		err := p.rows(bucket, func(r row) error {
			switch string(bucket.key) {
			case string(schema.Meta.Name()):
				switch string(r.key) {
				case string(schema.MetaConsistentIndexKeyName):
					if len(r.value) != 8 {
						return fmt.Errorf("%s has %d bytes", r.key, len(r.value))
					}
					position = binary.BigEndian.Uint64(r.value)
				case string(schema.ScheduledCompactKeyName):
					if len(r.value) < revisionSize {
						return fmt.Errorf("%s has %d bytes", r.key, len(r.value))
					}
					compacted = binary.BigEndian.Uint64(r.value)
				}
			case string(schema.Key.Name()):
				return c.row(r, compacted)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return position, p.whole()
}

// nameOf is the key of a row as people know it.
func nameOf(r row) string {
	kv := &mvccpb.KeyValue{}
	if err := kv.Unmarshal(r.value); err != nil || len(kv.Key) == 0 {
		return "a row that cannot be read"
	}
	return fmt.Sprintf("%q", kv.Key)
}

// examineLog returns an error if the log in dir does not reach to where the store is already: etcd takes what it cannot read at its end for
// what was not acknowledged, cuts it off, and would not carry out what it writes there anew.
func examineLog(dir string, position uint64) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return err
	}
	// The last file that begins at or before the position, and those after it.
	from := 0
	for i, name := range names {
		var number, first uint64
		if _, err := fmt.Sscanf(filepath.Base(name), "%016x-%016x.wal", &number, &first); err != nil {
			return damaged(name, fmt.Errorf("what is it: %w", err))
		}
		if first <= position {
			from = i
		}
	}
	var last uint64
	for i, name := range names[from:] {
		entry, err := lastEntry(name)
		last = max(last, entry)
		if torn := errors.Is(err, io.ErrUnexpectedEOF) && from+i == len(names)-1; err != nil && !(torn && last >= position) {
			return damaged(name, fmt.Errorf("after entry %d: %w", last, err))
		}
	}
	if len(names) > 0 && last < position {
		return damaged(names[len(names)-1], fmt.Errorf("it ends at entry %d, and the store has what came until %d", last, position))
	}
	return nil
}

// lastEntry reads a file of the log and returns the number of its last entry.
func lastEntry(name string) (uint64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var last uint64
	record := &walpb.Record{}
	decoder := wal.NewDecoder(fileutil.NewFileReader(f))
	for {
		switch err := decoder.Decode(record); {
		case errors.Is(err, io.EOF):
			return last, nil
		case err != nil:
			return last, err
		}
		switch record.Type {
		case wal.EntryType:
			entry := raftpb.Entry{}
			if err := entry.Unmarshal(record.Data); err != nil {
				return last, err
			}
			last = entry.Index
		case wal.SnapshotType: // what a leader sent stands for all entries before it
			snapshot := walpb.Snapshot{}
			if err := snapshot.Unmarshal(record.Data); err != nil {
				return last, err
			}
			last = max(last, snapshot.Index)
		case wal.CrcType:
			decoder.UpdateCRC(record.Crc)
		}
	}
}

// tellBrokenSnaps logs which of etcd's snapshots are damaged. etcd goes on with an older one, or with the log alone.
func tellBrokenSnaps(log klog.Logger, dir string) {
	names, err := filepath.Glob(filepath.Join(dir, "*.snap"))
	if err != nil {
		return // the pattern is right
	}
	for _, name := range names {
		if _, err := snap.Read(zap.NewNop(), name); err != nil {
			log.Error(err, "A snapshot of etcd is damaged, and it goes on without. Look at the disk", "file", name)
		}
	}
}
