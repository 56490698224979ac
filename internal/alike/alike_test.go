package alike

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// same says whether two maps are one.
func same(a, b map[string]string) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// forgotten leaves nothing to the test that comes next, whose clock may be another.
func forgotten(t *testing.T) {
	t.Helper()
	forget := func() {
		ofProcess.mu.Lock()
		defer ofProcess.mu.Unlock()
		ofProcess.young, ofProcess.old, ofProcess.takes, ofProcess.timed = nil, nil, 0, false
	}
	forget()
	t.Cleanup(forget)
}

// Objects share what says the same, in whatever logical cluster; what says something else stays their own.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forgotten(t)
		of := func(labels, annotations map[string]string) *metav1.ObjectMeta {
			m := &metav1.ObjectMeta{Labels: labels, Annotations: annotations}
			Share(m)
			return m
		}
		name := func(s string) map[string]string { return map[string]string{"kubernetes.io/metadata.name": s} }
		cluster := func(s string) map[string]string {
			return map[string]string{lc.Annotation: s, "kcp.io/path": "root:" + s}
		}

		first, second, other := of(name("default"), cluster("aa")), of(name("default"), cluster("aa")), of(name("other"), cluster("bb"))
		if !same(first.Labels, second.Labels) || !same(first.Annotations, second.Annotations) {
			t.Error("two objects that say the same have maps each")
		}
		if other.Labels["kubernetes.io/metadata.name"] != "other" || other.Annotations[lc.Annotation] != "bb" || other.Annotations["kcp.io/path"] != "root:bb" {
			t.Errorf("an object got another's: %v, %v", other.Labels, other.Annotations)
		}
		crossed := of(map[string]string{"a": "1", "b": "2"}, map[string]string{"a": "2", "b": "1"})
		if crossed.Labels["a"] != "1" || crossed.Annotations["a"] != "2" {
			t.Errorf("the values of one are those of another: %v, %v", crossed.Labels, crossed.Annotations)
		}
		if o := of(nil, map[string]string{}); o.Labels != nil || o.Annotations == nil {
			t.Errorf("an object that says nothing got %v, %v", o.Labels, o.Annotations)
		}

		time.Sleep(rememberedFor)
		synctest.Wait()
		if later := of(name("default"), cluster("aa")); !same(first.Labels, later.Labels) || !same(first.Annotations, later.Annotations) {
			t.Errorf("what was asked for is forgotten after %s", rememberedFor)
		}
		time.Sleep(2 * rememberedFor)
		synctest.Wait()
		if len(ofProcess.young)+len(ofProcess.old) > 0 || ofProcess.takes != 0 || ofProcess.timed {
			t.Errorf("%d maps are remembered for longer than %s", len(ofProcess.young)+len(ofProcess.old), 2*rememberedFor)
		}
		if later := of(name("default"), cluster("aa")); same(first.Labels, later.Labels) || later.Labels["kubernetes.io/metadata.name"] != "default" {
			t.Error("what is forgotten is given to further objects")
		}
	})
}

// Two that say different things and have one hash are two.
func TestOneHash(t *testing.T) {
	forgotten(t)
	first, second := map[string]string{"a": "1"}, map[string]string{"a": "2"}
	hash, _, _ := ofProcess.hashOf(second)
	ofProcess.young = map[uint64]map[string]string{hash: first}
	if got := ofProcess.get(second); got["a"] != "2" {
		t.Errorf("got %v", got)
	}
}

// Who changes in place what caches hold is found.
func TestChangedInPlace(t *testing.T) {
	forgotten(t)
	labels := ofProcess.get(map[string]string{"app": "web"})
	labels["app"] = "of another tenant"
	defer func() {
		if recover() == nil {
			t.Error("nobody has noticed")
		}
	}()
	for range 2 {
		ofProcess.mu.Lock()
		forgotten := ofProcess.age()
		ofProcess.mu.Unlock()
		ofProcess.check(forgotten)
	}
}

// What is remembered is bounded, in all and each.
func TestRememberedIsBounded(t *testing.T) {
	forgotten(t)
	long := strings.Repeat("x", longestValue-10)
	for i := range 3 * mostRemembered / longestValue {
		ofProcess.get(map[string]string{"n": fmt.Sprint(long, i)})
	}
	held := 0
	for _, generation := range []map[uint64]map[string]string{ofProcess.young, ofProcess.old} {
		for _, m := range generation {
			held += len(m["n"])
		}
	}
	if held < mostRemembered/longestValue || held > mostRemembered {
		t.Errorf("maps of %d bytes are remembered, want at most %d and some", held, mostRemembered)
	}
	forgotten(t)
	for reason, entries := range map[string]int{"a long value": 1, "many entries": mostEntries + 1} {
		make := func() map[string]string {
			m := map[string]string{"n": strings.Repeat("x", longestValue+2-entries)}
			for i := 1; i < entries; i++ {
				m[fmt.Sprint(i)] = "x"
			}
			return m
		}
		if same(ofProcess.get(make()), ofProcess.get(make())) || len(ofProcess.young) > 0 {
			t.Errorf("%s: remembered", reason)
		}
	}
}

// Long values are held once, also those of maps that are not.
func TestData(t *testing.T) {
	forgotten(t)
	ca := func() string { return strings.Repeat("certificate ", 100) }
	alone := func() map[string]string { return map[string]string{"ca.crt": ca()} }
	if !same(Data(alone()), Data(alone())) {
		t.Error("equal data is held twice")
	}
	a, b := Data(map[string]string{"ca.crt": ca(), "b": "c"}), Data(map[string]string{"ca.crt": ca(), "b": "d"})
	if same(a, b) || unsafe.StringData(a["ca.crt"]) != unsafe.StringData(b["ca.crt"]) || a["b"] != "c" || b["b"] != "d" {
		t.Error("long values are held twice, or maps that say different things once")
	}
	if Data(nil) != nil {
		t.Error("no data became some")
	}
}
