package workspaces

import (
	"strings"

	"github.com/miekg/dns"
)

// name is one of a Service or a pod in the zone of a cluster: web.shop.svc.cluster.local., or _http._tcp.web.shop.svc.cluster.local.
type name struct {
	host      string // with the dot behind it, and empty for the namespace itself
	namespace string
	rest      string // "svc.cluster.local."
}

// parseName returns the parts of a name, in lower case; false if it names nothing in a namespace. The zone is one that it is in, or none.
func parseName(text, zone string) (n name, ok bool) {
	if zone == "" {
		return name{}, false
	}
	text = dns.CanonicalName(text)
	at := dns.Split(text) // where each label begins
	inner := len(at) - dns.CountLabel(zone)
	if inner < 2 {
		return name{}, false
	}
	namespace, kind := at[inner-2], at[inner-1]
	n = name{host: text[:namespace], namespace: text[namespace : kind-1], rest: text[kind:]}
	is := strings.HasPrefix(n.rest, "svc.") || strings.HasPrefix(n.rest, "pod.")
	return n, is
}

// apiName is how pods know the API of their cluster.
var apiName = name{host: "kubernetes.", namespace: "default"}

// instead returns the name of one Service, or of a port of it, as that of another Service; false if it is not of the one.
func (n name) instead(one, other name) (name, bool) {
	ports, ok := strings.CutSuffix("."+n.host, "."+one.host)
	if !ok || n.namespace != one.namespace || !strings.HasPrefix(n.rest, "svc.") {
		return name{}, false
	}
	return name{host: strings.TrimPrefix(ports+".", ".") + other.host, namespace: other.namespace, rest: n.rest}, true
}

func (n name) String() string { return n.host + n.namespace + "." + n.rest }
