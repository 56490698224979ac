package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// The file of a store never becomes smaller by itself, and is in memory as far as it was read. It is written anew where it has
	// been mostly free for mostlyFreeFor, which is longer than the history that the API server keeps: at most mostlyFree per cent of it
	// are in use. It has to be worth it, by leastFree bytes, and quick, by mostCopied bytes in use: nobody reads or writes meanwhile.
	mostlyFree    = 25
	mostlyFreeFor = 6 * time.Minute
	leastFree     = 16 << 20
	mostCopied    = 32 << 20
	// leftOnDisk is what has to be left on the disk beside the copy: etcd's log begins segments of 64 MiB meanwhile.
	leftOnDisk = 192 << 20
	// It is tried again soon where somebody reads the store, which has to end first, and else after long: what hindered it does not
	// pass, or it took longer than others should wait for room.
	soon, long = 10 * time.Second, time.Hour
	tooSlow    = 2 * time.Second
)

// errNotDurable says that a store may not be used: what is acknowledged from now on might not be there after the machine ends.
var errNotDurable = errors.New("the new file of the store cannot be brought to the disk")

// isMostlyFree says whether the file is worth to be written anew.
func (s space) isMostlyFree() bool {
	return s.inUse <= mostCopied && s.file-s.inUse >= leastFree && s.inUse*100 <= s.file*mostlyFree
}

// thrift decides when the file of a store is written anew.
type thrift struct {
	after time.Duration // for which it has to be mostly free
	since time.Time     // when it became so; zero: it is not
	next  time.Time     // before which it is not tried
}

// due says whether the file of a store that is so full is written anew now.
func (t *thrift) due(now time.Time, s space) bool {
	switch {
	case !s.isMostlyFree():
		t.since = time.Time{}
	case t.since.IsZero():
		t.since = now
	default:
		return now.Sub(t.since) >= t.after && !now.Before(t.next)
	}
	return false
}

// giveBack writes the file of a store anew if nothing speaks against it: it is never worth what a server would end by.
func (h *spaceHolder) giveBack(ctx context.Context) error {
	log, before := klog.FromContext(ctx), spaceOf(h.server)
	left := func(next time.Duration, why error) {
		h.saving.next = time.Now().Add(next)
		if why != nil && ctx.Err() == nil {
			log.Error(why, "The file of the store is mostly free, and stays as large as it is", "dir", h.dir, "fileBytes", before.file, "bytesInUse", before.inUse, "triedAgainAfter", next)
		}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(h.dir, &disk); err != nil {
		left(long, fmt.Errorf("ask for the room on the disk of %s: %w", h.dir, err))
		return nil
	}
	if has, needs := int64(disk.Bavail)*int64(disk.Bsize), before.inUse+leftOnDisk; has < needs {
		left(long, fmt.Errorf("the disk of %s has %d bytes left, %d are needed", h.dir, has, needs))
		return nil
	}
	began := time.Now()
	// All of it is read and written: a row that is damaged would be the only one that is left.
	done, err := h.writeAnew(func() error { return errors.Join(h.sums.keep(ctx, true), h.sums.found()) })
	switch took := time.Since(began); {
	case errors.Is(err, errNotDurable):
		return err
	case err != nil:
		left(long, err)
	case !done:
		left(soon, nil)
	default:
		log.Info("The file of the store was mostly free, and was written anew", "dir", h.dir, "bytesBefore", before.file, "bytes", spaceOf(h.server).file, "took", took.Round(time.Millisecond))
		if took > tooSlow {
			left(24*long, nil)
		}
		if err := h.sums.keep(ctx, true); err != nil && ctx.Err() == nil {
			log.Error(err, "The rows of the new file of the store are not compared with their checksums yet", "dir", h.dir)
		}
	}
	return nil
}

// writeAnew writes the file of a store anew, without what is free in it, unless somebody in this process takes a snapshot or the store has
// ended: done is whether it did. Nothing else is read or written meanwhile. sound, if there is one, has to find nothing wrong before.
func (h *spaceHolder) writeAnew(sound func() error) (done bool, _ error) {
	// Who reads the whole store takes his time: he would be waited for, by everybody else as well.
	if !h.snapshots.TryLock() {
		return false, nil
	}
	defer h.snapshots.Unlock()
	if sound != nil {
		if err := sound(); err != nil {
			return false, err
		}
	}
	outcome := make(chan error, 1)
	h.server.GoAttach(func() { outcome <- h.defragment() }) // which a server that ends waits for, and does not begin
	select {
	case err := <-outcome:
		return err == nil, err
	case <-h.server.StopNotify():
		return false, nil
	}
}

func (h *spaceHolder) defragment() error {
	h.sums.mu.Lock() // it notes how far the file is
	defer h.sums.mu.Unlock()
	s, config := spaceOf(h.server), h.server.Config()
	if err := h.server.Backend().Defrag(); err != nil {
		return fmt.Errorf("write the file of the store anew, of whose %d bytes %d are in use: %w", s.file, s.inUse, err)
	}
	// Without its name on the disk the machine would start with the file of before, when what it lacks is in no log any more.
	if err := h.syncDir(filepath.Dir(config.BackendPath())); err != nil {
		return fmt.Errorf("%w: %w", errNotDurable, err)
	}
	return nil
}
