package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// nodeAddress is that of the node, of its API server and DNS, and of what --reach names, in the network namespace. Every cluster has the same.
const nodeAddress = "10.254.0.1"

// machineName is what pods call nodeAddress: a name that leads nowhere else.
const machineName = "machine.realnode.test"

type options struct {
	name           string
	dir            string   // absolute after complete
	securePort     int      // 0: the port of the last start, or a free one
	kubeconfig     string   // empty: physical's default
	images         []string // archives
	reach          []int    // ports of this machine's loopback
	physicalFlags  []string
	plugins        string // directory of the CNI plugins
	workspaceNames bool
	exitWithParent bool

	programs string // directory of the others, that of this one
	system   string // where the machine's own programs are, as PATH has it
}

func newOptions() *options {
	// Not the caller's PATH: where root's programs are is not in everybody's.
	return &options{name: "physical", plugins: "/usr/lib/cni", system: "/usr/sbin:/usr/bin:/sbin:/bin"}
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.name, "name", o.name, "Name of the cluster. Its node is NAME-node-0.")
	fs.StringVar(&o.dir, "root-directory", o.dir, "Directory of the cluster (required), not below /var or /run. A later start with the same directory continues the same cluster.")
	fs.IntVar(&o.securePort, "secure-port", o.securePort, "Port of the apiserver on 127.0.0.1. 0: the port of the last start, or a free one.")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "File to write the administrator's kubeconfig to. Default: DIR/admin.kubeconfig.")
	fs.StringArrayVar(&o.images, "image", nil, "An image that the node has, as a tar archive of docker or OCI. May be given several times.")
	fs.IntSliceVar(&o.reach, "reach", nil, "Ports of 127.0.0.1 on this machine that pods reach at "+machineName+". Nothing else outside is reached by them.")
	fs.StringArrayVar(&o.physicalFlags, "physical-flag", nil, "A further flag of physical, such as --physical-flag=--audit-log=false. May be given several times.")
	fs.StringVar(&o.plugins, "cni-plugins", o.plugins, "Directory of the CNI plugins ptp, host-local and loopback.")
	fs.BoolVar(&o.workspaceNames, "workspace-names", o.workspaceNames, "Have DNS answer pods of workspaces by the names of their workspaces (contrib/dns). The user coredns is to be let list and watch pods.")
	fs.BoolVar(&o.exitWithParent, "exit-with-parent", o.exitWithParent, "Stop when stdin is closed.")
}

// complete fills in defaults and returns every mistake it finds.
func (o *options) complete() error {
	var errs []error
	for _, msg := range validation.IsDNS1123Label(o.name) {
		errs = append(errs, fmt.Errorf("--name %q: %s", o.name, msg))
	}
	if o.dir == "" {
		errs = append(errs, errors.New("--root-directory is required"))
	}
	if o.securePort < 0 || o.securePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d is not between 0 and 65535", o.securePort))
	}
	for _, port := range o.reach {
		switch {
		case port < 1 || port > 65535:
			errs = append(errs, fmt.Errorf("--reach %d is not between 1 and 65535", port))
		case port == o.securePort || port == dnsPort || port == kubeletPort:
			errs = append(errs, fmt.Errorf("--reach %d is a port of the node's own", port))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("look for the other programs: %w", err)
	}
	o.programs = filepath.Dir(self)
	for _, path := range o.paths() {
		if *path, err = real(*path); err != nil {
			return err
		}
	}
	return nil
}

// Ports of the node's address that are others' than those of --reach.
const (
	dnsPort     = 53
	kubeletPort = 10250
)

// paths are those that are to be the same in the node's namespaces.
func (o *options) paths() []*string {
	paths := []*string{&o.dir, &o.plugins, &o.programs}
	if o.kubeconfig != "" {
		paths = append(paths, &o.kubeconfig)
	}
	for i := range o.images {
		paths = append(paths, &o.images[i])
	}
	return paths
}

// real returns where a path leads, of which the end need not be there yet.
func real(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) || path == "/" {
		return resolved, err
	}
	parent, err := real(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// hidden says whether the namespaces show something else at a path.
func hidden(path string) bool {
	return strings.HasPrefix(path+"/", "/var/") || strings.HasPrefix(path+"/", "/run/")
}

// flags are those with which another process of this program has the same options.
func (o *options) flags() []string {
	flags := []string{"--name=" + o.name, "--root-directory=" + o.dir, "--secure-port=" + strconv.Itoa(o.securePort), "--cni-plugins=" + o.plugins, "--workspace-names=" + strconv.FormatBool(o.workspaceNames)}
	if o.kubeconfig != "" {
		flags = append(flags, "--kubeconfig="+o.kubeconfig)
	}
	for _, image := range o.images {
		flags = append(flags, "--image="+image)
	}
	for _, flag := range o.physicalFlags {
		flags = append(flags, "--physical-flag="+flag)
	}
	return flags
}

// path returns the path of a file in the cluster's directory.
func (o *options) path(elem ...string) string {
	return filepath.Join(append([]string{o.dir}, elem...)...)
}

func (o *options) node() string { return o.name + "-node-0" }

// cgroup is the name below which all cgroups of the node are: the same for each start on a directory, and of no other one.
func (o *options) cgroup() string {
	sum := sha256.Sum256([]byte(o.dir))
	return "atoll-" + o.name + "-" + hex.EncodeToString(sum[:4])
}
