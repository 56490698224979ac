package workspaces

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Name of the plugin, in a Corefile and in its metrics.
const Name = "workspaces"

func init() { plugin.Register(Name, setup) }

func setup(c *caddy.Controller) error {
	w, err := parse(c)
	if err != nil {
		return plugin.Error(Name, err)
	}
	c.OnStartup(w.start)
	c.OnShutdown(w.stop)
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		w.Next = next
		return w
	})
	return nil
}

// parse reads the plugin's part of a Corefile.
func parse(c *caddy.Controller) (*Workspaces, error) {
	var zones []string
	var api name
	var networks []netip.Prefix
	config := rest.InClusterConfig
	for i := 0; c.Next(); i++ {
		if i > 0 {
			return nil, plugin.ErrOnce
		}
		names := c.RemainingArgs()
		if len(names) == 0 {
			names = []string{"cluster.local"}
		}
		if zones = plugin.OriginsFromArgsOrServerBlock(names, nil); len(zones) == 0 {
			return nil, c.Errf("zones %q: want the cluster's domain, such as cluster.local", names)
		}
		for c.NextBlock() {
			switch option := c.Val(); option {
			case "kubeconfig":
				args := c.RemainingArgs()
				if len(args) == 0 || len(args) > 2 {
					return nil, c.Errf("kubeconfig %q: want a file, and a context of it or none", args)
				}
				overrides := &clientcmd.ConfigOverrides{}
				if len(args) == 2 {
					overrides.CurrentContext = args[1]
				}
				config = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: args[0]}, overrides).ClientConfig
			case "api":
				args := c.RemainingArgs()
				if len(args) != 2 {
					return nil, c.Errf("api %q: want a Service and its namespace", args)
				}
				for _, label := range args {
					if problems := validation.IsDNS1123Label(label); len(problems) > 0 {
						return nil, c.Errf("api %q: %s", label, strings.Join(problems, "; "))
					}
				}
				api = name{host: args[0] + ".", namespace: args[1]}
			case "pods":
				args := c.RemainingArgs()
				if len(args) == 0 {
					return nil, c.Err("pods: want the networks of pods, such as 10.244.0.0/16")
				}
				for _, arg := range args {
					network, err := netip.ParsePrefix(arg)
					if err != nil {
						return nil, c.Errf("pods %q: want the networks of pods, such as 10.244.0.0/16", arg)
					}
					networks = append(networks, network.Masked())
				}
			default:
				return nil, c.Errf("unknown property %q: want api, pods or kubeconfig", option)
			}
		}
	}
	of, err := config()
	if err != nil {
		return nil, fmt.Errorf("find the API of the cluster: %w", err)
	}
	of = rest.AddUserAgent(of, "coredns-"+Name)
	of.ContentType, of.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(of)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API of the cluster: %w", err)
	}
	d, err := newDirectory(client, networks)
	if err != nil {
		return nil, err
	}
	return &Workspaces{zones: zones, api: api, directory: d}, nil
}
