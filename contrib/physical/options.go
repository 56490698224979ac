package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-base/version"
)

type options struct {
	name           string
	dir            string // absolute after complete
	securePort     int    // 0: the port of the last start, or a free one
	kubeconfig     string // default DIR/admin.kubeconfig
	nodes          int
	realNode       realNode // zero: nodes are simulated
	auditLog       bool
	logFile        string // empty: stderr
	kwok           string // default: beside this executable
	exitWithParent bool
	execOnHost     bool

	controllerManagerFlags []string // of kube-controller-manager, after our own

	// For comparing a kube-apiserver with another server under equal conditions:

	onlyAPIServer  bool
	noScheduler    bool
	onlyEtcd       bool
	etcdServers    []string // empty: the etcd of this process
	etcdFsync      bool
	etcdQuotaBytes int64    // 0: etcd's own
	apiserverFlags []string // of kube-apiserver, after our own

	// For an etcd of several members, each in a process of its own:

	etcdMember                   string // its name
	etcdAddress                  net.IP // where it listens and is reached
	etcdClientPort, etcdPeerPort int    // 0: free ones
	etcdCluster                  string // NAME=PEERURL,... of all members; empty: it is alone
}

// realNode is a node with a kubelet, which is not ours.
type realNode struct {
	name    string
	address net.IP // of the kubelet, the apiserver and, to pods, the whole machine
}

// Set reads NAME=ADDRESS.
func (n *realNode) Set(value string) error {
	name, address, _ := strings.Cut(value, "=")
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("name %q: %s", name, strings.Join(problems, ", "))
	}
	ip := net.ParseIP(address)
	if ip == nil || ip.IsLoopback() || ip.IsUnspecified() {
		return fmt.Errorf("address %q: want an IP address at which pods reach the apiserver, such as 10.254.0.1", address)
	}
	*n = realNode{name: name, address: ip}
	return nil
}

func (n *realNode) String() string {
	if n.name == "" {
		return ""
	}
	return n.name + "=" + n.address.String()
}

func (n *realNode) Type() string { return "NAME=ADDRESS" }

func newOptions() *options {
	return &options{name: "physical", nodes: 3, auditLog: true, etcdMember: "default", etcdAddress: net.IPv4(127, 0, 0, 1)}
}

// logFileInDir is the value of --log-file given without one.
const logFileInDir = "DIR/physical.log"

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.name, "name", o.name, "Name of the cluster, also of its nodes' zones and of the kubeconfig context.")
	fs.StringVar(&o.dir, "root-directory", o.dir, "Directory of the cluster (required). A later start with the same directory continues the same cluster.")
	fs.IntVar(&o.securePort, "secure-port", o.securePort, "Port of the apiserver on 127.0.0.1. 0: the port of the last start, or a free one.")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "File to write the administrator's kubeconfig to. Default: DIR/admin.kubeconfig.")
	fs.IntVar(&o.nodes, "nodes", o.nodes, "Simulated nodes, each of 32 CPUs, 256 GiB and 110 pods, spread over 3 zones.")
	fs.Var(&o.realNode, "real-node", "The only node, with a kubelet that somebody else starts (contrib/realnode), instead of simulated ones. The apiserver listens at all addresses, so give it in a network namespace that is the node's alone, and from the first start on.")
	fs.BoolVar(&o.auditLog, "audit-log", o.auditLog, "Write who changed what to DIR/audit.log.")
	fs.StringVar(&o.logFile, "log-file", o.logFile, "Write logs to this file instead of stderr; without a value, to "+logFileInDir+".")
	fs.Lookup("log-file").NoOptDefVal = logFileInDir
	fs.StringVar(&o.kwok, "kwok", o.kwok, "The kwok executable that simulates nodes and pods. Default: kwok beside this executable.")
	fs.BoolVar(&o.onlyAPIServer, "only-apiserver", o.onlyAPIServer, "Run no controller manager, no scheduler and no nodes.")
	fs.BoolVar(&o.noScheduler, "no-scheduler", o.noScheduler, "Run no scheduler and no nodes: pods stay Pending.")
	fs.BoolVar(&o.onlyEtcd, "only-etcd", o.onlyEtcd, "Run etcd alone. Its URL is in DIR/ready; clients use DIR/pki/etcd-ca.crt and DIR/pki/apiserver-etcd-client.{crt,key}.")
	fs.StringSliceVar(&o.etcdServers, "etcd-servers", o.etcdServers, "URLs of an external etcd, comma separated; without it an etcd runs in this process. How to reach it over TLS, --apiserver-flag says.")
	fs.BoolVar(&o.etcdFsync, "etcd-fsync", o.etcdFsync, "Let the etcd of this process keep what was acknowledged over a crash of the machine, too.")
	fs.Int64Var(&o.etcdQuotaBytes, "etcd-quota-bytes", 0, "Size of that etcd's store at which it takes no more writes. 0: etcd's default.")
	fs.StringVar(&o.etcdMember, "etcd-member", o.etcdMember, "Name of the etcd of this process among the members of its cluster. It is part of the data: a later start must use the same.")
	fs.IPVar(&o.etcdAddress, "etcd-address", o.etcdAddress, "IP address on which that etcd listens and is reached.")
	fs.IntVar(&o.etcdClientPort, "etcd-client-port", 0, "Its port for clients. 0: a free one.")
	fs.IntVar(&o.etcdPeerPort, "etcd-peer-port", 0, "Its port for the other members. 0: a free one.")
	fs.StringVar(&o.etcdCluster, "etcd-cluster", "", "NAME=URL of the port for members of each member of its cluster, this one among them, comma separated; their DIR/pki need the same etcd-ca. Without it, this etcd is the only one.")
	fs.StringArrayVar(&o.apiserverFlags, "apiserver-flag", o.apiserverFlags, "A further flag of kube-apiserver, for example --apiserver-flag=--etcd-prefix=/peer. May be given several times.")
	fs.StringArrayVar(&o.controllerManagerFlags, "controller-manager-flag", o.controllerManagerFlags, "The same for kube-controller-manager, for example --controller-manager-flag=--resource-quota-sync-period=10s.")
	fs.BoolVar(&o.execOnHost, "exec-on-host", o.execOnHost, "Run the commands of kubectl exec on this machine, as the user who starts the cluster and in no container: whoever may exec in a pod there can do whatever that user can. Without it there is no exec.")
	fs.BoolVar(&o.exitWithParent, "exit-with-parent", o.exitWithParent, "Stop when stdin is closed.")
}

// complete fills in defaults and returns every mistake it finds.
func (o *options) complete() error {
	var errs []error
	for _, msg := range validation.IsDNS1123Label(o.name) {
		errs = append(errs, fmt.Errorf("--name %q: %s", o.name, msg))
	}
	if o.nodes < 0 {
		errs = append(errs, fmt.Errorf("--nodes %d is negative", o.nodes))
	}
	if o.realNode.name != "" {
		o.nodes = 1
	}
	if o.onlyAPIServer || o.noScheduler || o.onlyEtcd {
		o.nodes = 0
	}
	if o.securePort < 0 || o.securePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d is not between 0 and 65535", o.securePort))
	}
	if o.dir == "" {
		errs = append(errs, errors.New("--root-directory is required"))
	}
	if v := version.Get().GitVersion; strings.HasPrefix(v, "v0.0.0") {
		errs = append(errs, fmt.Errorf("this executable reports Kubernetes version %s, which clients refuse; build it with contrib/physical/build.sh", v))
	}
	if o.kwok == "" {
		self, err := os.Executable()
		if err != nil {
			errs = append(errs, fmt.Errorf("look for kwok: %w", err))
		}
		o.kwok = filepath.Join(filepath.Dir(self), "kwok")
	}
	if _, err := os.Stat(o.kwok); err != nil && o.nodes > 0 && o.realNode.name == "" {
		errs = append(errs, fmt.Errorf("--kwok: %w; contrib/physical/build.sh builds it", err))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}

	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return fmt.Errorf("--root-directory %q: %w", o.dir, err)
	}
	o.dir = dir
	if o.kubeconfig == "" {
		o.kubeconfig = o.path("admin.kubeconfig")
	}
	if o.kubeconfig, err = filepath.Abs(o.kubeconfig); err != nil {
		return fmt.Errorf("--kubeconfig %q: %w", o.kubeconfig, err)
	}
	if o.logFile == logFileInDir {
		o.logFile = o.path("physical.log")
	}
	return nil
}

// path returns the path of a file in the cluster's directory.
func (o *options) path(elem ...string) string {
	return filepath.Join(append([]string{o.dir}, elem...)...)
}
