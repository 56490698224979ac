package cli

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
)

const (
	clustersPrefix = "/clusters/"
	systemPrefix   = "system:"
	root           = "root"
)

// Root is the workspace at the top of the tree.
var Root = logicalcluster.NewPath(root)

// Address is what the server URL of a kubeconfig says: where an Atoll is, and which of its logical clusters.
type Address struct {
	// Base is the URL of the server, without /clusters.
	Base string
	// Path is a workspace's path or a logical cluster's name; empty if the URL names none.
	Path logicalcluster.Path
}

// ParseAddress splits a server URL of a kubeconfig.
func ParseAddress(server string) (Address, error) {
	u, err := url.Parse(server)
	if err != nil {
		return Address{}, fmt.Errorf("server URL: %w", err)
	}
	if u.Opaque != "" || u.RawQuery != "" || u.ForceQuery || strings.Contains(server, "#") {
		// What follows would be added behind it.
		return Address{}, fmt.Errorf("server URL %s: want https://host:port, and a path at most", server)
	}
	before, after, found := strings.Cut(u.Path, clustersPrefix)
	u.Path, u.RawPath = strings.TrimRight(before, "/"), ""
	if u.Host == "" && strings.HasPrefix(u.Path, "//") {
		return Address{}, fmt.Errorf("server URL %s: it names no host: want https://host:port, and a path at most", server)
	}
	if strings.HasSuffix(u.Path, strings.TrimRight(clustersPrefix, "/")) {
		return Address{}, fmt.Errorf("server URL %s: it names no workspace after /clusters/", server)
	}
	a := Address{Base: u.String()}
	if !found {
		return a, nil
	}
	path := logicalcluster.NewPath(strings.TrimSuffix(after, "/"))
	if err := validatePath(path); err != nil {
		return Address{}, fmt.Errorf("server URL %s: %w", server, err)
	}
	a.Path = path
	return a, nil
}

// String is the URL that ParseAddress reads.
func (a Address) String() string {
	if a.Path.Empty() {
		return a.Base
	}
	return a.Base + clustersPrefix + a.Path.String()
}

// ResolvePath returns the path that arg means, seen from the workspace current:
//
//	shop, org:team     below current
//	..  .              above it; itself
//	root, root:org     from the top; so does system:admin
//	:abc               a logical cluster by its name
//
// Whether there is such a workspace is not its question.
func ResolvePath(current logicalcluster.Path, arg string) (logicalcluster.Path, error) {
	var path logicalcluster.Path
	switch {
	case arg == "":
		return path, fmt.Errorf("the workspace's name is empty")
	case arg == ".":
		path = current
	case arg == "..":
		above, ok := parent(current)
		if !ok {
			return path, fmt.Errorf("there is no workspace above %q", current)
		}
		return above, nil
	case strings.Contains(arg, "/"):
		return path, fmt.Errorf("workspace path %q: its names are separated by colons: %q", arg, strings.ReplaceAll(strings.Trim(arg, "/"), "/", ":"))
	case strings.HasSuffix(arg, ":"), strings.Contains(arg, "::"):
		return path, fmt.Errorf("workspace path %q: a name is missing beside a colon: give a path such as %q", arg, "root:org")
	case strings.HasPrefix(arg, ":"):
		path = logicalcluster.NewPath(arg[1:])
	case arg == root || strings.HasPrefix(arg, root+":") || strings.HasPrefix(arg, systemPrefix):
		path = logicalcluster.NewPath(arg)
	case current.Empty():
		return path, fmt.Errorf("the kubeconfig's context names no workspace, from which %q could be reached: give a path such as %q", arg, "root:"+arg)
	default:
		path = logicalcluster.NewPath(current.String() + ":" + arg)
	}
	if err := validatePath(path); err != nil {
		return logicalcluster.Path{}, err
	}
	return path, nil
}

// Ancestors returns path and every path above it, the nearest first.
func Ancestors(path logicalcluster.Path) []logicalcluster.Path {
	all := []logicalcluster.Path{path}
	for {
		above, ok := parent(path)
		if !ok {
			return all
		}
		all, path = append(all, above), above
	}
}

// parent is Path.Parent for what has one: the colon in system:admin separates nothing.
func parent(path logicalcluster.Path) (logicalcluster.Path, bool) {
	if strings.HasPrefix(path.String(), systemPrefix) {
		return logicalcluster.Path{}, false
	}
	above, ok := path.Parent()
	return above, ok && !above.Empty()
}

var segment = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func validatePath(path logicalcluster.Path) error {
	for _, s := range strings.Split(path.String(), ":") {
		if !segment.MatchString(s) {
			return fmt.Errorf("workspace path %q: %q must be lower-case letters, digits and inner hyphens, at most 63 characters", path, s)
		}
	}
	return nil
}
