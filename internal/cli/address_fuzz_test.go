package cli

import (
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
)

// FuzzParseAddress: the address of a kubeconfig is the same when it is written out and read again, also with another
// workspace, as when one is entered.
func FuzzParseAddress(f *testing.F) {
	for _, server := range []string{"", "https://h:6443", "https://h:6443/", "https://h/atoll/clusters/root:a:b/", "https://h/clusters/*", "https://h/clusters/root?a=b",
		"https://h/clusters/root#a", "https://h?a=b", "https://h?", "https://h///clusters/root", "https://h/a%2Fb/clusters/root", "https://h/clusters/a%2Fb", "h:6443", "//h/clusters/root",
		"/clusters/root", "https://h/clusters/../clusters/root", "https://user:word@h/clusters/root", "mailto:a", "https://h/clusters/clusters/root", "0/clusters", "/%2F ", "https://h/clusters"} {
		f.Add(server)
	}
	f.Fuzz(func(t *testing.T, server string) {
		address, err := ParseAddress(server)
		if err != nil {
			return
		}
		if strings.ContainsAny(address.Path.String(), "/*.") {
			t.Fatalf("ParseAddress(%q) is of workspace %q", server, address.Path)
		}
		for _, path := range []logicalcluster.Path{address.Path, Root, logicalcluster.NewPath("system:admin")} {
			want := Address{Base: address.Base, Path: path}
			if again, err := ParseAddress(want.String()); err != nil || again != want {
				t.Fatalf("ParseAddress(%q) = %+v; %q reads back as %+v, %v", server, address, want, again, err)
			}
		}
	})
}

// FuzzResolvePath: what a person types leads to a path of names, and below the current workspace unless it says otherwise.
func FuzzResolvePath(f *testing.F) {
	for _, arg := range []string{"", ".", "..", "shop", "org:team", "root", "root:org", "rooted", "system:admin", "system:", ":abc", "::", ":", "a::b", "a/b", "*", "root:*", "../b", "a:..", "A", "root:"} {
		f.Add("root:shop", arg)
		f.Add("system:admin", arg)
		f.Add("", arg)
	}
	f.Fuzz(func(t *testing.T, current, arg string) {
		from := logicalcluster.NewPath(current)
		if !from.Empty() && validatePath(from) != nil {
			return
		}
		path, err := ResolvePath(from, arg)
		if err != nil {
			return
		}
		if err := validatePath(path); err != nil {
			t.Fatalf("ResolvePath(%q, %q) = %q: %v", current, arg, path, err)
		}
		absolute := strings.HasPrefix(arg, ":") || strings.HasPrefix(arg+":", root+":") || strings.HasPrefix(arg, systemPrefix)
		if !absolute && arg != "." && arg != ".." && path.String() != current+":"+arg {
			t.Errorf("ResolvePath(%q, %q) = %q", current, arg, path)
		}
	})
}
