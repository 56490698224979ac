package webhooks

import (
	"fmt"
	"net/netip"
)

// Addresses says where webhooks may be.
type Addresses struct {
	// Allowed are among those that are refused otherwise; they win over Refused.
	Allowed []netip.Prefix
	// Refused are refused besides those that nobody should have to name.
	Refused []netip.Prefix
}

// refused is an address range where no tenant's webhook can be, and what it is, for people.
type refused struct {
	prefix netip.Prefix
	what   string
}

var alwaysRefused = []refused{
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address of the server's own machine"},
	{netip.MustParsePrefix("::1/128"), "a loopback address of the server's own machine"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("fd00:ec2::/32"), "an address of a cloud's metadata"},
	// What clouds serve to their machines at addresses that are not link-local: Azure, Alibaba, Oracle.
	{netip.MustParsePrefix("168.63.129.16/32"), "an address of a cloud's metadata"},
	{netip.MustParsePrefix("100.100.100.200/32"), "an address of a cloud's metadata"},
	{netip.MustParsePrefix("192.0.0.192/32"), "an address of a cloud's metadata"},
	// Where in it the IPv4 address is depends on that translator (RFC 8215): it may be any of these.
	{netip.MustParsePrefix("64:ff9b:1::/48"), "an address that the network translates to an IPv4 one"},
	{netip.MustParsePrefix("0.0.0.0/8"), "no address of a server"}, // connecting to 0.0.0.0 reaches loopback
	{netip.MustParsePrefix("::/128"), "no address of a server"},
	{netip.MustParsePrefix("224.0.0.0/4"), "no address of a server"},
	{netip.MustParsePrefix("240.0.0.0/4"), "no address of a server"},
	{netip.MustParsePrefix("ff00::/8"), "no address of a server"},
}

// IPv6 addresses that stand for an IPv4 one, and at which of their bytes that begins.
var embedding = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64
	{netip.MustParsePrefix("::/96"), 12},        // IPv4-compatible
	{netip.MustParsePrefix("2002::/16"), 2},     // 6to4
}

// Check returns an error that says why a webhook may not be at an address, or nil.
func (a Addresses) Check(addr netip.Addr) error {
	addr = plain(addr)
	for _, p := range a.Allowed {
		if p.Contains(addr) {
			return nil
		}
	}
	for _, r := range alwaysRefused {
		if r.prefix.Contains(addr) {
			return fmt.Errorf("webhooks may not be at %s, %s: name one that this server reaches by another address, or ask its operator to allow this one (--webhook-allowed-addresses)", addr, r.what)
		}
	}
	for _, p := range a.Refused {
		if p.Contains(addr) {
			return fmt.Errorf("webhooks may not be at %s: the server's operator refuses %s (--webhook-refused-addresses)", addr, p)
		}
	}
	return nil
}

// plain is the address that is meant: without a zone, and the IPv4 one where that is written as IPv6.
func plain(addr netip.Addr) netip.Addr {
	addr = addr.WithZone("").Unmap()
	for _, e := range embedding {
		bytes := addr.As16()
		if addr.Is6() && e.prefix.Contains(addr) && addr != netip.IPv6Unspecified() && addr != netip.IPv6Loopback() {
			return netip.AddrFrom4([4]byte(bytes[e.at:]))
		}
	}
	return addr
}

// ParsePrefixes reads ranges as people write them in flags: 10.0.0.0/8, or one address.
func ParsePrefixes(given []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, text := range given {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			addr, notOne := netip.ParseAddr(text)
			if notOne != nil || addr.Zone() != "" {
				return nil, fmt.Errorf("%q: want a range such as 10.0.0.0/8, or an address, without a zone: it holds on every link", text)
			}
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		if p.Bits() >= 96 && plain(p.Addr()).Is4() && !p.Addr().Unmap().Is4() {
			// Check looks at the IPv4 address that is meant, which this would never match.
			return nil, fmt.Errorf("%q: write IPv4 ranges as IPv4", text)
		}
		if p.Addr().Is4In6() {
			if p.Bits() < 96 {
				return nil, fmt.Errorf("%q: write IPv4 ranges as IPv4", text)
			}
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}
