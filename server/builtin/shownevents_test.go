package builtin

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestInWords(t *testing.T) {
	const from, to = "shop-1a", "shop"
	for message, want := range map[string]string{
		"":                                     "",
		"Scaled up":                            "Scaled up",
		"shop-1a":                              "shop",
		"assigned shop-1a/web to node-7":       "assigned shop/web to node-7",
		`secret "shop-1a/key", in shop-1a`:     `secret "shop/key", in shop`,
		"svc.shop-1a.svc":                      "svc.shop.svc",
		"shop-1a-2/web, my-shop-1a, Xshop-1a0": "shop-1a-2/web, my-shop-1a, Xshop-1a0",
		"bank-9z":                              "bank-9z",
	} {
		if got := inWords(message, from, to); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
	if got := inWords("in shop", "shop", "shop"); got != "in shop" {
		t.Errorf("a namespace that keeps its name: %q", got)
	}
}

func FuzzInWords(f *testing.F) {
	f.Add("assigned shop-1a/web", "shop-1a", "shop")
	f.Fuzz(func(t *testing.T, message, from, to string) {
		if got := inWords(message, from, from); got != message {
			t.Errorf("%q: %q, want nothing changed", message, got)
		}
		if got := inWords(message, from, to); !strings.Contains(message, from) && got != message {
			t.Errorf("%q: %q, want nothing changed where %q is not named", message, got, from)
		}
		if got := shortened(message, 16); len(got) > 16 || utf8.ValidString(message) && !utf8.ValidString(got) {
			t.Errorf("%q: %q, want at most 16 bytes, of whole characters", message, got)
		}
	})
}

// TestEventNames: each event of each mirror has a name of its own, which is that of an object.
func TestEventNames(t *testing.T) {
	east, west := &space{cluster: "east", namespace: "shop-1a"}, &space{cluster: "west", namespace: "shop-1a"}
	long := strings.Repeat("a", 199) + ".b"
	names := map[string]bool{}
	for _, name := range []string{
		east.eventName("uid-1", "web"), east.eventName("uid-2", "web"), west.eventName("uid-1", "web"),
		(&space{cluster: "east", namespace: "shop-2b"}).eventName("uid-1", "web"), east.eventName("uid-1", long),
	} {
		if names[name] || len(name) > 253 || strings.Contains(name, "..") {
			t.Errorf("%q is another's name, or none", name)
		}
		names[name] = true
	}
	if again := (&space{cluster: "east", namespace: "shop-1a"}).eventName("uid-1", "web"); !names[again] {
		t.Errorf("an event that is put again is called %q, want the same name", again)
	}
}

// TestEventPace: who has used up what he may put at once has one a minute; others have theirs.
func TestEventPace(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	p := newEventPace(clk)
	passed := func(n int, take func() bool) (passed int) {
		for range n {
			if take() {
				passed++
			}
		}
		return passed
	}
	web := func() bool { return p.takeOfObject("east", "web") }
	if got := passed(100, web); got != burstOfObject {
		t.Errorf("%d of one object pass at once, want %d", got, burstOfObject)
	}
	if got := passed(1, func() bool { return p.takeOfObject("east", "api") }) + passed(1, func() bool { return p.takeOfObject("west", "web") }); got != 2 {
		t.Error("another object, or that of another cluster, waits for it")
	}
	clk.Step(10 * time.Minute)
	if got := passed(100, web); got != 10 {
		t.Errorf("%d pass after 10 minutes, want 10", got)
	}
	if got := passed(2*burstOfMirror, func() bool { return p.takeOfMirror("east") }); got != burstOfMirror {
		t.Errorf("%d of one cluster pass at once, want %d", got, burstOfMirror)
	}
	if !p.takeOfMirror("west") {
		t.Error("another cluster waits for it")
	}
}
