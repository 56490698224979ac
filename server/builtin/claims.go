package builtin

import "slices"

// claims are the locks of one kind (cluster IPs or node ports) that one write of one Service works with. Upstream's
// registry commits an update's allocations before the Service is written, and may then try again; here nothing is given
// up before the outcome of the whole write is known. It decides only, and touches no storage.
type claims[K comparable] struct {
	held    []K // locked by the running attempt
	spare   []K // locked by an earlier attempt, which was not written
	release []K // of the old Service, no longer in the new one
}

// retry makes what the last attempt locked available to the next one.
func (c *claims[K]) retry() {
	c.spare = append(c.spare, c.held...)
	c.held, c.release = nil, nil
}

func (c *claims[K]) hold(k K) { c.held = append(c.held, k) }

// reuse moves k from the spare ones to the held ones, and says whether it was there.
func (c *claims[K]) reuse(k K) bool {
	i := slices.Index(c.spare, k)
	if i < 0 {
		return false
	}
	c.spare = slices.Delete(c.spare, i, i+1)
	c.hold(k)
	return true
}

// reuseAny is reuse of any spare one.
func (c *claims[K]) reuseAny() (k K, ok bool) {
	if len(c.spare) == 0 {
		return k, false
	}
	k = c.spare[0]
	return k, c.reuse(k)
}

// letGo notes that the Service will not hold k. What this attempt locked stays held: upstream says so when an attempt
// fails, and then the outcome decides.
func (c *claims[K]) letGo(k K) {
	if !slices.Contains(c.held, k) {
		c.release = append(c.release, k)
	}
}

// outcome is what became of a write.
type outcome int

const (
	written   outcome = iota // the Service is stored as the last attempt made it
	refused                  // certainly not stored
	uncertain                // storage did not say
)

// unlock returns what may be given up. After an uncertain outcome nothing may: if the Service was not stored, the locks
// are stale and whoever wants them takes them over later.
func (c *claims[K]) unlock(o outcome) []K {
	switch o {
	case written:
		return slices.Concat(c.release, c.spare)
	case refused:
		return slices.Concat(c.held, c.spare)
	default:
		return nil
	}
}
