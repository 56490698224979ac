package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

const (
	// fullPart is how many percent of etcd's quota may be in use for rows to be written anew: what they were before stays until
	// it is compacted, and above the quota nobody can write anything.
	fullPart = 70
	// lookForRoom is how often it is looked whether there is room, spacePatience how long one member of etcd may take to answer,
	// and noRoomTold how often it is said that there is none.
	lookForRoom   = time.Second
	spacePatience = 2 * time.Second
	noRoomTold    = 10 * time.Minute
)

// spaceOfEtcd is how many bytes of etcd's store are in use, and its quota; 0 for what etcd does not tell. Free pages of the file are
// not in use: they are written to before it grows.
func (b *Backend) spaceOfEtcd(ctx context.Context) (inUse, quota int64, err error) {
	endpoints := b.client.Endpoints()
	if len(endpoints) == 0 { // in process
		endpoints = []string{""}
	}
	var errs []error
	for _, endpoint := range endpoints {
		asking, cancel := context.WithTimeout(ctx, spacePatience)
		status, err := b.client.Status(asking, endpoint)
		cancel()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// The fullest counts: it stops all.
		if quota == 0 || status.DbSizeInUse > inUse {
			inUse, quota = status.DbSizeInUse, status.DbSizeQuota
		}
	}
	if len(errs) == len(endpoints) {
		return 0, 0, fmt.Errorf("ask etcd how large it is: %w", errors.Join(errs...))
	}
	return inUse, quota, nil
}

// room waits until there is room for rows that are written anew.
func (r *rewrite) room(ctx context.Context) error {
	if time.Since(r.looked) < r.backend.roomEvery {
		return nil
	}
	var told time.Time
	for {
		inUse, quota, err := r.backend.space(ctx)
		if err != nil {
			return err
		}
		if r.looked = time.Now(); quota <= 0 || inUse < quota/100*fullPart {
			return nil
		}
		if time.Since(told) > noRoomTold {
			klog.FromContext(ctx).Info("The store has no room to write rows anew; waiting until a compaction, or whoever deletes something, makes some", "inUse", inUse, "quota", quota)
			told = time.Now()
		}
		timer := time.NewTimer(r.backend.roomEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}
