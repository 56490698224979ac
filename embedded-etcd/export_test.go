package embeddedetcd

const (
	KeptHistory = keptHistory
	Room        = room
)

// Forget does what the end of the process would: the lock is given back, and nothing else happens.
func (r *Restoration) Forget() {
	_ = r.snapshot.Close() // it may be closed
	r.unlock()
}

// Syncs has sync called where the names in the directory are brought to the disk.
func (r *Restoration) Syncs(sync func(dir string) error) { r.sync = sync }
