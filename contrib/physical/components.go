package main

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	cliflag "k8s.io/component-base/cli/flag"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	controllermanageroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// The components are built from their options, not from their commands: each command installs a signal handler of
// its own, and only one may. The options are set through flags, since flags are their documented interface.

const (
	serviceCIDR    = "10.96.0.0/16"
	firstServiceIP = "10.96.0.1"
	podCIDR        = "10.244.0.0/16" // a /24 for each node: 256 nodes
)

//go:embed config/audit-policy.yaml
var auditPolicy []byte

// listen opens the apiserver's port. Without one in the options it is the port of the last start, so that
// kubeconfigs stay valid, or on the first start a free one.
func listen(o *options) (net.Listener, error) {
	port, file := o.securePort, o.path("secure-port")
	if port == 0 {
		data, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("read the port of the last start: %w", err)
		}
		if err == nil {
			if port, err = strconv.Atoi(string(data)); err != nil {
				return nil, fmt.Errorf("read the port of the last start from %s: %w", file, err)
			}
		}
	}
	address := "127.0.0.1"
	if o.realNode.name != "" {
		address = "0.0.0.0" // in a network namespace of its own
	}
	listener, err := net.Listen("tcp4", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("open the apiserver's port (--secure-port sets another): %w", err)
	}
	port = listener.Addr().(*net.TCPAddr).Port
	return listener, writeFile(file, []byte(strconv.Itoa(port)))
}

// startAPIServer returns when the apiserver is running, before it is ready. etcdURL is that of the etcd of this process.
func startAPIServer(ctx context.Context, parts *parts, o *options, p pki, etcdURL string, listener net.Listener) error {
	args := []string{
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--client-ca-file=" + p.cert(clusterCA),
		"--enable-admission-plugins=NodeRestriction",
		"--kubelet-certificate-authority=" + p.cert(kubeletCA),
		"--kubelet-client-certificate=" + p.cert(kubeletClient),
		"--kubelet-client-key=" + p.key(kubeletClient),
		// Nodes have a made-up address, too, which leads nowhere.
		"--kubelet-preferred-address-types=" + string(kubeletAddress) + "," + string(corev1.NodeInternalIP),
		"--proxy-client-cert-file=" + p.cert("front-proxy-client"),
		"--proxy-client-key-file=" + p.key("front-proxy-client"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-client-ca-file=" + p.cert(frontProxyCA),
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		// Else the server waits up to a minute for open watches when it stops.
		"--shutdown-watch-termination-grace-period=1s",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + p.key(serviceAccountKey),
		"--service-account-signing-key-file=" + p.key(serviceAccountKey),
		"--service-cluster-ip-range=" + serviceCIDR,
		"--tls-cert-file=" + p.cert("apiserver"),
		"--tls-private-key-file=" + p.key("apiserver"),
	}
	if o.realNode.name != "" {
		args = append(args, "--advertise-address="+o.realNode.address.String())
	} else {
		args = append(args,
			"--advertise-address=127.0.0.1",
			// The endpoints of Service default/kubernetes may not be loopback addresses, and nothing else is served.
			"--endpoint-reconciler-type=none",
		)
	}
	if len(o.etcdServers) > 0 {
		args = append(args, "--etcd-servers="+strings.Join(o.etcdServers, ","))
	} else {
		args = append(args,
			"--etcd-servers="+etcdURL,
			"--etcd-cafile="+p.cert(etcdCA),
			"--etcd-certfile="+p.cert("apiserver-etcd-client"),
			"--etcd-keyfile="+p.key("apiserver-etcd-client"),
		)
	}
	if o.auditLog {
		policy := o.path("audit-policy.yaml")
		if err := writeFile(policy, auditPolicy); err != nil {
			return err
		}
		args = append(args,
			"--audit-policy-file="+policy,
			"--audit-log-path="+o.path("audit.log"),
			"--audit-log-maxsize=0",     // never rotated: a reader sees one file
			"--audit-log-mode=blocking", // an answered request is in the file
		)
	}
	s := apiserveroptions.NewServerRunOptions()
	if err := parse(s.Flags(), append(args, o.apiserverFlags...)); err != nil {
		return err
	}
	s.SecureServing.Listener = listener
	if err := s.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	completed, err := s.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return utilerrors.NewAggregate(errs)
	}
	parts.add("kube-apiserver", func(ctx context.Context) error { return apiserver.Run(ctx, completed) })
	return nil
}

func startControllerManager(ctx context.Context, parts *parts, o *options, p pki) error {
	s, err := controllermanageroptions.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	all, disabled, aliases := controllermanager.KnownControllers(), controllermanager.ControllersDisabledByDefault(), controllermanager.ControllerAliases()
	err = parse(s.Flags(all, disabled, aliases), append([]string{
		"--kubeconfig=" + o.path("pki", controllerManagerUser+kubeconfigSuffix),
		"--allocate-node-cidrs=true",
		"--cluster-cidr=" + podCIDR,
		"--service-cluster-ip-range=" + serviceCIDR,
		"--cluster-name=" + o.name,
		"--cluster-signing-cert-file=" + p.cert(clusterCA),
		"--cluster-signing-key-file=" + p.key(clusterCA),
		"--root-ca-file=" + p.cert(clusterCA),
		"--service-account-private-key-file=" + p.key(serviceAccountKey),
		"--use-service-account-credentials=true",
		"--leader-elect=false",
		"--secure-port=0",
		// The default pace of 20 requests a second is meant to spare an apiserver shared with users.
		"--kube-api-qps=500", "--kube-api-burst=1000",
	}, o.controllerManagerFlags...))
	if err != nil {
		return err
	}
	config, err := s.Config(ctx, all, disabled, aliases)
	if err != nil {
		return err
	}
	parts.add("kube-controller-manager", func(ctx context.Context) error { return controllermanager.Run(ctx, config.Complete()) })
	return nil
}

func startScheduler(parts *parts, o *options) error {
	s := scheduleroptions.NewOptions()
	err := parse(*s.Flags, []string{
		"--kubeconfig=" + o.path("pki", schedulerUser+kubeconfigSuffix),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=500", "--kube-api-burst=1000", // as for the controller manager
	})
	if err != nil {
		return err
	}
	parts.add("kube-scheduler", func(ctx context.Context) error {
		config, sched, err := scheduler.Setup(ctx, s)
		if err != nil {
			return err
		}
		return scheduler.Run(ctx, config, sched)
	})
	return nil
}

// parse sets options by their flags.
func parse(named cliflag.NamedFlagSets, args []string) error {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, set := range named.FlagSets {
		fs.AddFlagSet(set)
	}
	return fs.Parse(args)
}
