package webhooks

import (
	"net/netip"
	"strings"
	"testing"
)

// FuzzParsePrefixes: an address that is accepted is refused where it is to be, and allowed where it is to be, in whatever
// form it is written; and what is read is the same when it is written out and read again.
func FuzzParsePrefixes(f *testing.F) {
	for _, text := range []string{"", "10.0.0.0/8", "10.1.2.3", "::1", "::", "::ffff:10.0.0.0/104", "::ffff:0:0/90", "64:ff9b::a00:1", "64:ff9b::/96",
		"64:ff9b::/64", "::a00:1", "::/0", "0.0.0.0/0", "fe80::1%eth0", "fe80::1%eth0/64", "::%/", "127.0.0.1/33", "10.0.0.0/-1", "*", "2001:db8::/32"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		prefixes, err := ParsePrefixes([]string{text})
		if err != nil {
			return
		}
		if len(prefixes) != 1 || !prefixes[0].IsValid() {
			t.Fatalf("ParsePrefixes(%q) = %v", text, prefixes)
		}
		again, err := ParsePrefixes([]string{prefixes[0].String()})
		if err != nil || again[0] != prefixes[0] {
			t.Errorf("ParsePrefixes(%q) = %v, which reads back as %v, %v", text, prefixes, again, err)
		}
		address, _, isRange := strings.Cut(text, "/")
		addr, err := netip.ParseAddr(address)
		if err != nil {
			t.Fatalf("ParsePrefixes(%q) = %v of no address: %v", text, prefixes, err)
		}
		if err := (Addresses{Refused: prefixes}).Check(addr); err == nil {
			// One of an IPv6 range that is wider than those that stand for IPv4 is judged as the IPv4 address that it means.
			if prefixes[0].Bits() >= 96 || plain(addr) == addr.WithZone("").Unmap() {
				t.Errorf("%s is not refused, although %q is", addr, text)
			}
		}
		if err := (Addresses{Allowed: prefixes}).Check(addr); err != nil && !isRange {
			t.Errorf("%q is allowed, and refused: %v", text, err)
		}
	})
}
