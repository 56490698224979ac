package webhooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

func TestAddresses(t *testing.T) {
	ranges := func(texts ...string) []netip.Prefix {
		t.Helper()
		p, err := ParsePrefixes(texts)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tc := range []struct {
		reason    string
		addresses Addresses
		addr      string
		want      string // part of the refusal; empty if the address may be dialed
	}{
		{"public", Addresses{}, "203.0.113.7", ""},
		{"public, IPv6", Addresses{}, "2001:db8::1", ""},
		{"a private network is the operator's choice", Addresses{}, "10.1.2.3", ""},
		{"which he may make", Addresses{Refused: ranges("10.0.0.0/8")}, "10.1.2.3", "the server's operator refuses 10.0.0.0/8"},
		{"with exceptions", Addresses{Refused: ranges("10.0.0.0/8"), Allowed: ranges("10.1.2.3")}, "10.1.2.3", ""},
		{"loopback", Addresses{}, "127.0.0.1", "a loopback address"},
		{"all of loopback", Addresses{}, "127.8.9.10", "a loopback address"},
		{"loopback, IPv6", Addresses{}, "::1", "a loopback address"},
		{"loopback, IPv4 in IPv6", Addresses{}, "::ffff:127.0.0.1", "a loopback address"},
		{"loopback, by NAT64", Addresses{}, "64:ff9b::127.0.0.1", "a loopback address"},
		{"loopback, IPv4-compatible", Addresses{}, "::7f00:1", "a loopback address"},
		{"loopback, allowed", Addresses{Allowed: ranges("127.0.0.0/8")}, "127.0.0.1", ""},
		{"the other loopback is not allowed with it", Addresses{Allowed: ranges("127.0.0.0/8")}, "::1", "a loopback address"},
		{"allowed as IPv4 in IPv6", Addresses{Allowed: ranges("::ffff:127.0.0.0/104")}, "127.0.0.1", ""},
		{"metadata of clouds", Addresses{}, "169.254.169.254", "a link-local address"},
		{"metadata of clouds, IPv6", Addresses{}, "fd00:ec2::254", "metadata"},
		{"metadata of Azure", Addresses{}, "168.63.129.16", "metadata"},
		{"metadata of Alibaba", Addresses{}, "100.100.100.200", "metadata"},
		{"metadata of Oracle", Addresses{}, "192.0.0.192", "metadata"},
		{"next to it", Addresses{}, "100.100.100.201", ""},
		{"metadata of clouds, by 6to4", Addresses{}, "2002:a9fe:a9fe::1", "a link-local address"},
		{"public, by 6to4", Addresses{}, "2002:cb00:7107::1", ""},
		{"an operator's own NAT64", Addresses{}, "64:ff9b:1:a9fe:a9:fe00::", "the network translates"},
		{"an operator's own NAT64, allowed", Addresses{Allowed: ranges("64:ff9b:1::/48")}, "64:ff9b:1:a9fe:a9:fe00::", ""},
		{"link-local", Addresses{}, "fe80::1%eth0", "a link-local address"},
		{"any address is this machine", Addresses{}, "0.0.0.0", "no address of a server"},
		{"any address is this machine, IPv6", Addresses{}, "::", "no address of a server"},
		{"multicast", Addresses{}, "239.1.1.1", "no address of a server"},
	} {
		err := tc.addresses.Check(netip.MustParseAddr(tc.addr))
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %s: %v, want %q", tc.reason, tc.addr, err, tc.want)
		}
	}
	for _, text := range []string{"", "10.0.0.0/33", "localhost", "10.0.0.0-10.0.0.9", "::ffff:0.0.0.0/64"} {
		if got, err := ParsePrefixes([]string{text}); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

func client(t *testing.T, c *Caller) *http.Client {
	t.Helper()
	config, err := c.Resolver(Conversion, "shop", nil)(nil).ClientConfigFor("kubernetes.default.svc:443")
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func loopback() Addresses {
	return Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}}
}

// What a name resolves to is looked at, and no proxy is asked to go there instead.
func TestRefusedAddressesAreNotDialed(t *testing.T) {
	called := func(http.ResponseWriter, *http.Request) { t.Error("was called") }
	hook := httptest.NewServer(http.HandlerFunc(called))
	defer hook.Close()
	proxy := httptest.NewServer(http.HandlerFunc(called))
	defer proxy.Close()
	for _, variable := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy"} {
		t.Setenv(variable, proxy.URL)
	}
	to, err := url.Parse(hook.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "[::ffff:127.0.0.1]"} {
		resp, err := client(t, NewCaller(Addresses{})).Post("http://"+host+":"+to.Port(), "application/json", strings.NewReader("{}"))
		if err == nil {
			resp.Body.Close()
			t.Errorf("%s was called: %s", host, resp.Status)
		} else if (host == "127.0.0.1" || host == "localhost") && !strings.Contains(err.Error(), "a loopback address of the server's own machine") {
			t.Errorf("%s: %v, want the reason", host, err)
		}
	}
}

// A webhook is called at its URL, and nobody else for it; without a credential.
func TestWebhooksAreNotRedirected(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer other.Close()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "" {
			t.Error("the webhook was shown a credential")
		}
		if req.URL.Path == "/moved" {
			http.Redirect(w, req, other.URL, http.StatusTemporaryRedirect)
		}
	}))
	defer hook.Close()
	c := client(t, NewCaller(loopback()))
	resp, err := c.Post(hook.URL+"/here", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	resp, err = c.Post(hook.URL+"/moved", "application/json", strings.NewReader("{}"))
	if err == nil {
		resp.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "redirects are not followed") {
		t.Errorf("a redirect: %v, want an error that says why", err)
	}
}

// TestServices: a Service is where is said when it is connected to, and an address that is said is looked at as any other.
func TestServices(t *testing.T) {
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { _, _ = fmt.Fprintf(w, "{%q: 1}", req.Host) }))
	defer hook.Close()
	at := hook.Listener.Addr().String()
	var dialed int
	where := func(_ context.Context, namespace, name string, port int32) (Way, error) {
		switch fmt.Sprintf("%s/%s:%d", namespace, name, port) {
		case "default/outside:443":
			return Way{Address: at}, nil
		case "default/pods:443":
			return Way{Dial: func(ctx context.Context) (net.Conn, error) {
				dialed++
				return (&net.Dialer{}).DialContext(ctx, "tcp", at)
			}}, nil
		case "default/broken:443":
			return Way{Dial: func(context.Context) (net.Conn, error) { return nil, errors.New("its cluster is away") }}, nil
		}
		return Way{}, errors.New("there is none")
	}
	for _, tc := range []struct {
		name      string
		addresses Addresses
		want      string // error, or empty
	}{
		{"outside", loopback(), ""},
		{"outside", Addresses{}, "a loopback address of the server's own machine"},
		{"pods", Addresses{}, ""}, // it is known by other means than its address
		{"broken", Addresses{}, "the Service default/broken cannot be called: its cluster is away"},
		{"absent", Addresses{}, "the Service default/absent cannot be called: there is none"},
	} {
		to, err := Services().ResolveEndpoint("default", tc.name, 443)
		if err != nil {
			t.Fatal(err)
		}
		config, err := NewCaller(tc.addresses).Resolver(Conversion, "shop", where)(nil).ClientConfigForService(tc.name, "default", 443)
		if err != nil {
			t.Fatal(err)
		}
		c, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Post("http://"+to.Host, "application/json", strings.NewReader("{}"))
		switch {
		case err != nil:
			if tc.want == "" || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
			}
		default:
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if tc.want != "" || err != nil || string(text) != fmt.Sprintf("{%q: 1}", tc.name+".default.svc:443") {
				t.Errorf("%s: it is called as %q, %v, want %q", tc.name, text, err, tc.want)
			}
		}
		c.CloseIdleConnections()
	}
	if dialed != 1 {
		t.Errorf("what is known by other means is dialed %d times, want once", dialed)
	}
}

// TestServiceIsNotWaitedForInVain: who looks for a Service is told when nobody waits any more.
func TestServiceIsNotWaitedForInVain(t *testing.T) {
	asked, cancel := context.WithCancel(t.Context())
	dial := NewCaller(Addresses{}).dialService(func(ctx context.Context, _, _ string, _ int32) (Way, error) {
		cancel()
		<-ctx.Done()
		return Way{}, context.Cause(ctx)
	}, "default", "slow", 443)
	if _, err := dial(asked, "tcp", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was cancelled", err)
	}
}
