package builtin

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// DefaultEventTTL is how long events are kept, kube-apiserver's default.
const DefaultEventTTL = time.Hour

var (
	// DefaultServiceIPRange is what cluster IPs of workspaces are taken from. Nothing routes them: traffic flows in
	// physical clusters, with the IPs those give. The range is at the far end of 10.0.0.0/8, away from the ranges that
	// installers choose for real clusters (10.96.0.0/12, 10.43.0.0/16, 10.0.0.0/24, 172.20.0.0/16), so that nobody takes
	// an address seen in a workspace for one that could be reached.
	DefaultServiceIPRange = netip.MustParsePrefix("10.255.0.0/16")

	// DefaultNodePortRange is kube-apiserver's default.
	DefaultNodePortRange = utilnet.PortRange{Base: 30000, Size: 2768}
)

// Config is what the built-in resources need beside their stores.
type Config struct {
	// Authorizer answers SubjectAccessReviews and the registries' own questions. Required.
	Authorizer authorizer.Authorizer
	// RuleResolver answers SelfSubjectRulesReviews. Required.
	RuleResolver authorizer.RuleResolver
	// Reviewer answers TokenReviews, in the logical cluster of the request's context; without it they say nothing.
	Reviewer authenticator.Request
	// Audiences are those of the API in a logical cluster. Required.
	Audiences Audiences

	// RBAC serves rbac.authorization.k8s.io; see server/rbac. Required.
	RBAC controlplaneapiserver.RESTStorageProvider

	// ServiceAccountIssuer makes the tokens of serviceaccounts/token. Required.
	ServiceAccountIssuer serviceaccount.TokenGenerator
	// ServiceAccountMaxExpiration bounds the lifetime of these tokens; zero is no bound.
	ServiceAccountMaxExpiration time.Duration

	// Ways lead to where pods run. Required.
	Ways *Ways
	// Budgets lead to what evictions ask. Required.
	Budgets Budgets

	// ServiceIPRange holds the cluster IPs, an IPv4 prefix of at most 30 bits. Defaults to DefaultServiceIPRange.
	ServiceIPRange netip.Prefix
	// NodePortRange holds the node ports. Defaults to DefaultNodePortRange.
	NodePortRange utilnet.PortRange
	// NodePorts locks node ports. Required.
	NodePorts NodePorts

	// Objects reads what a logical cluster has, for what the mirrors of physical clusters show of workspaces. Required.
	Objects Objects

	// EventTTL is how long events are kept. Defaults to DefaultEventTTL.
	EventTTL time.Duration
}

// Audiences are what the tokens of a logical cluster are for.
type Audiences interface {
	// Default is what a token is for if its request does not say.
	Default(logicalcluster.Name) authenticator.Audiences
	// Audiences are those that the API takes.
	Audiences(logicalcluster.Name) authenticator.Audiences
}

func (c *Config) complete() error {
	switch {
	case c.Authorizer == nil:
		return fmt.Errorf("built-in resources need an authorizer")
	case c.RuleResolver == nil:
		return fmt.Errorf("built-in resources need a rule resolver")
	case c.RBAC == nil:
		return fmt.Errorf("built-in resources need a provider of rbac.authorization.k8s.io")
	case c.Audiences == nil || c.ServiceAccountIssuer == nil:
		return fmt.Errorf("built-in resources need an issuer of tokens and their audiences")
	case c.Objects == nil:
		return fmt.Errorf("built-in resources need to read what is stored")
	case c.Ways == nil:
		return fmt.Errorf("built-in resources need a way to where pods run")
	case c.Budgets == nil:
		return fmt.Errorf("built-in resources need a way to disruption budgets")
	case c.NodePorts == nil:
		return fmt.Errorf("built-in resources need locks for node ports")
	}
	if !c.ServiceIPRange.IsValid() {
		c.ServiceIPRange = DefaultServiceIPRange
	}
	if !c.ServiceIPRange.Addr().Is4() || c.ServiceIPRange.Bits() > 30 {
		return fmt.Errorf("service IP range %s must be an IPv4 prefix of at most 30 bits", c.ServiceIPRange)
	}
	c.ServiceIPRange = c.ServiceIPRange.Masked()
	if c.NodePortRange.Size == 0 {
		c.NodePortRange = DefaultNodePortRange
	}
	if c.EventTTL == 0 {
		c.EventTTL = DefaultEventTTL
	}
	return nil
}
