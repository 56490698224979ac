package queue

// Tenanted is a key that belongs to somebody. A queue of such keys handles those of its tenants in turns, so that one with many
// keys, or whose keys come again and again, holds up none of the others by more than what is being handled.
type Tenanted interface {
	Tenant() string
}

// tenants is the order of a queue's keys: first come, first served among those of a tenant, and the tenants one key each in turn. There
// is nothing of a tenant for whom no key waits.
type tenants[K comparable] struct {
	waiting map[string][]K
	order   []string // tenants with keys that wait, each once
	n       int
}

func tenantOf[K comparable](key K) string {
	if t, ok := any(key).(Tenanted); ok {
		return t.Tenant()
	}
	return ""
}

// Touch is called for a key that waits already.
func (t *tenants[K]) Touch(K) {}

func (t *tenants[K]) Push(key K) {
	tenant := tenantOf(key)
	if len(t.waiting[tenant]) == 0 {
		t.order = append(t.order, tenant)
	}
	t.waiting[tenant] = append(t.waiting[tenant], key)
	t.n++
}

func (t *tenants[K]) Len() int { return t.n }

func (t *tenants[K]) Pop() K {
	tenant := t.order[0]
	t.order = t.order[1:]
	keys := t.waiting[tenant]
	key := keys[0]
	if len(keys) > 1 {
		t.waiting[tenant] = keys[1:]
		t.order = append(t.order, tenant)
	} else {
		delete(t.waiting, tenant)
	}
	t.n--
	return key
}
