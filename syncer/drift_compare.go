package syncer

import (
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

const (
	// mostDifferences is how many places of an object are looked at where it is not as it should be.
	mostDifferences = 64
	// mostPaths and mostManagers are how many are named in an event, longestPath and longestManager how long, in bytes: names may be
	// whatever somebody there writes.
	mostPaths, longestPath       = 5, 100
	mostManagers, longestManager = 3, 64
	// mostKeys is how many keys of list items are read of an object's managedFields.
	mostKeys = 1 << 16
)

// step is one on the way to a place in an object.
type step struct {
	// name is that of a field, or what an item of a list is shown as.
	name string
	// items are, of an item, as it should be and as it is, as far as there is one; nil for a field.
	items []any
	// bare says that there is nothing in what it is a step into.
	bare bool
}

// place is one where an object is not as it should be.
type place struct {
	steps []step
	// want is what should be there, nil if nothing asks for what is.
	want any
	// have stands for what is there, of which bare says that there is nothing in it.
	have uint64
	bare bool
}

// path is where the place is. It is the same for the same place.
func (p place) path() string {
	var b strings.Builder
	for i, s := range p.steps {
		switch {
		case s.items != nil, strings.ContainsAny(s.name, "./[]"):
			b.WriteString("[" + s.name + "]")
		case i > 0:
			b.WriteString("." + s.name)
		default:
			b.WriteString(s.name)
		}
	}
	return b.String()
}

// shown is the path as people are told it: never a value, and of a Secret not what its values are called either.
func (p place) shown(kind string) string {
	if secret := p.steps[0].name; kind == "Secret" && (secret == "data" || secret == "stringData") {
		return secret
	}
	return printable(p.path(), longestPath)
}

// printable returns text without what cannot be printed, and no longer than most bytes and dots.
func printable(text string, most int) string {
	return cut(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text), most)
}

// comparison is where an object is not as it should be.
type comparison struct {
	found []place
	more  bool // there are more than are in found
	sum   maphash.Hash
}

// compareObjects returns where live is not what want says, which is nowhere if and only if it is upToDate.
func compareObjects(want, live *unstructured.Unstructured) *comparison {
	c := &comparison{}
	c.sum.SetSeed(digestSeed)
	for _, field := range slices.Sorted(maps.Keys(want.Object)) {
		if field != "metadata" {
			c.compare([]step{{name: field}}, want.Object[field], live.Object[field])
		}
	}
	for _, m := range []struct {
		field      string
		want, have map[string]string
	}{{"labels", want.GetLabels(), live.GetLabels()}, {"annotations", want.GetAnnotations(), live.GetAnnotations()}} {
		for _, name := range slices.Sorted(maps.Keys(m.want)) {
			if have, ok := m.have[name]; !ok || have != m.want[name] {
				c.add([]step{{name: "metadata"}, {name: m.field}, {name: name, bare: len(m.have) == 0}}, m.want[name], have)
			}
		}
	}
	return c
}

func (c *comparison) add(at []step, want, have any) {
	p := place{slices.Clone(at), want, digest(have), empty(have)}
	_, _ = c.sum.WriteString(p.path())
	maphash.WriteComparable(&c.sum, p.have)
	if len(c.found) == mostDifferences {
		c.more = true
		return
	}
	c.found = append(c.found, p)
}

// compare finds what covers does not take.
func (c *comparison) compare(at []step, want, have any) {
	switch want := want.(type) {
	case map[string]any:
		fields, ok := have.(map[string]any)
		if !ok {
			if len(want) > 0 {
				c.add(at, want, have)
			}
			return
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			below := append(at, step{name: name, bare: len(fields) == 0})
			if got, ok := fields[name]; ok {
				c.compare(below, want[name], got)
			} else if !empty(want[name]) {
				c.add(below, want[name], nil)
			}
		}
	case []any:
		items, ok := have.([]any)
		switch {
		case !ok && len(want) > 0:
			c.add(at, want, have)
		case ok && !covers(want, items):
			c.compareLists(at, want, items)
		}
	default:
		if !apiequality.Semantic.DeepEqual(want, have) {
			c.add(at, want, have)
		}
	}
}

// compareLists finds which items of lists differ: by their names where all have some, else one by one where there are as many;
// else it is the list that does.
func (c *comparison) compareLists(at []step, want, have []any) {
	asked, ok := byName(want)
	there, also := byName(have)
	switch n := len(c.found); {
	case ok && also:
		for _, item := range want {
			name := nameOf(item).(string)
			if got, ok := there[name]; ok {
				c.compare(append(at, step{name: name, items: []any{item, got}}), item, got)
			} else {
				c.add(append(at, step{name: name, items: []any{item}, bare: len(have) == 0}), item, nil)
			}
		}
		for _, item := range have {
			if name := nameOf(item).(string); asked[name] == nil {
				c.add(append(at, step{name: name, items: []any{item}}), nil, item)
			}
		}
		if len(c.found) == n && !c.more { // their order
			c.add(at, want, have)
		}
	case len(want) == len(have):
		for i, item := range want {
			c.compare(append(at, step{name: strconv.Itoa(i), items: []any{item, have[i]}}), item, have[i])
		}
	default:
		c.add(at, want, have)
	}
}

// byName returns the items of a list by their names, if each is an object and has one of its own.
func byName(list []any) (map[string]any, bool) {
	items := make(map[string]any, len(list))
	for _, item := range list {
		name, ok := nameOf(item).(string)
		if !ok || items[name] != nil {
			return nil, false
		}
		items[name] = item
	}
	return items, true
}

// stays says whether a place differs as it did before, as far as is known.
func (c *comparison) stays(before place) bool {
	return c.more || slices.ContainsFunc(c.found, func(p place) bool { return p.have == before.have && p.path() == before.path() })
}

// leftover is what a write of ours has left; nil if nothing.
func (c *comparison) leftover() *leftover {
	if len(c.found) == 0 {
		return nil
	}
	const most = 16
	l := &leftover{sum: c.sum.Sum64(), all: !c.more && len(c.found) <= most}
	for _, p := range c.found[:min(len(c.found), most)] {
		path := p.path()
		if len(path) > longestPath {
			l.all = false // too much to be kept of each object
			continue
		}
		l.paths = append(l.paths, path)
	}
	return l
}

// managers are who has set what of an object, by its managedFields.
type managers struct {
	of   []manager
	ours time.Time // when we last did
	// keys is how many keys of list items may still be read.
	keys int
}

type manager struct {
	name   string
	at     time.Time
	fields map[string]any
}

// managersOf reads managedFields, which may be whatever the physical cluster answers.
func managersOf(o *unstructured.Unstructured) *managers {
	all := &managers{keys: mostKeys}
	field, _, _ := unstructured.NestedFieldNoCopy(o.Object, "metadata", "managedFields")
	entries, _ := field.([]any)
	for _, entry := range entries {
		e, _ := entry.(map[string]any)
		fields, _ := e["fieldsV1"].(map[string]any)
		if len(fields) == 0 {
			continue
		}
		m := manager{fields: fields}
		m.name, _ = e["manager"].(string)
		text, _ := e["time"].(string)
		m.at, _ = time.Parse(time.RFC3339, text)
		if m.name == workloadv1alpha1.FieldManager && m.at.After(all.ours) {
			all.ours = m.at
		}
		all.of = append(all.of, m)
	}
	return all
}

// changed says whether somebody else has changed a place, and who has set what is there, as far as that is known. What we have
// set ourselves is as it is by our own hand, or by what the cluster makes of our writes. Of what was not held before us, as after
// a start, it has to be another's since we wrote the same: what we never set is nobody's change.
func (m *managers) changed(p place, held, sameRendering bool) (by []string, theirs bool) {
	since := false
	for _, one := range m.of {
		fields, left, ok := m.find(one.fields, p.steps)
		at := p.steps[:len(p.steps)-len(left)]
		switch {
		case !ok, len(left) > 0 && m.isShared(at):
		case one.name != workloadv1alpha1.FieldManager:
			by, since = append(by, one.name), since || !one.at.Before(m.ours)
		case len(left) > 0 && left[0].bare: // others have taken out what we had set in it, and it alone is left
		case len(left) == 0 && len(fields) == 0 && holds(p.want) && (p.bare || m.isShared(at)): // so here
		case p.want == nil || m.all(fields, p.want):
			return nil, false
		}
	}
	if m.keys <= 0 {
		return nil, false // it is not known
	}
	return by, held || sameRendering && since
}

// find returns what a manager has set at a place, and below. Where it is said to have set a field and nothing in it, which is all
// that is in it or no more than that there is such a field, left is what of the way is left.
func (m *managers) find(fields map[string]any, steps []step) (found map[string]any, left []step, ok bool) {
	for i, s := range steps {
		if len(fields) == 0 {
			return nil, steps[i:], true
		}
		if fields, ok = m.child(fields, s); !ok {
			return nil, nil, false
		}
	}
	return fields, nil, true
}

// isShared says whether anybody has set something in what is at a place: then nobody has set all that is in it by its name alone.
func (m *managers) isShared(at []step) bool {
	return slices.ContainsFunc(m.of, func(one manager) bool {
		fields, left, ok := m.find(one.fields, at)
		_, itself := fields["."]
		return ok && len(left) == 0 && (len(fields) > 1 || len(fields) == 1 && !itself)
	})
}

// holds says whether a value has something in it.
func holds(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return !empty(value)
	}
	return false
}

// child returns what a manager has set in one step.
func (m *managers) child(fields map[string]any, s step) (map[string]any, bool) {
	if s.items == nil {
		found, ok := fields["f:"+s.name].(map[string]any)
		return found, ok
	}
	for name, value := range fields {
		found, ok := value.(map[string]any)
		if m.keys--; m.keys <= 0 {
			return nil, false
		}
		if ok && slices.ContainsFunc(s.items, func(item any) bool { return isKeyOf(name, item) }) {
			return found, true
		}
	}
	return nil, false
}

// all says whether a manager has set all of a value.
func (m *managers) all(fields map[string]any, value any) bool {
	if len(fields) == 0 {
		return true
	}
	has := func(s step, value any) bool {
		found, ok := m.child(fields, s)
		return ok && m.all(found, value)
	}
	switch value := value.(type) {
	case map[string]any:
		for name, v := range value {
			if !empty(v) && !has(step{name: name}, v) {
				return false
			}
		}
	case []any:
		for _, item := range value {
			if !has(step{items: []any{item}}, item) {
				return false
			}
		}
	}
	return true
}

// isKeyOf says whether a name of managedFields is that of an item of a list: k:{"name":"web"}, or v:"web".
func isKeyOf(name string, item any) bool {
	var is any
	prefix, text, _ := strings.Cut(name, ":")
	if prefix != "k" && prefix != "v" || utiljson.Unmarshal([]byte(text), &is) != nil {
		return false
	}
	if prefix == "v" {
		return reflect.DeepEqual(is, item)
	}
	fields, _ := item.(map[string]any)
	key, _ := is.(map[string]any)
	for field, value := range key {
		if !reflect.DeepEqual(fields[field], value) {
			return false
		}
	}
	return len(key) > 0
}
