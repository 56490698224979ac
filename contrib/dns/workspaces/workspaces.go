package workspaces

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/client-go/tools/cache"
)

var log = clog.NewWithPlugin(Name)

const (
	// startTimeout is how long the server waits at its start until the pods of the cluster are known.
	startTimeout = 5 * time.Second
	// negativeTTL, in seconds, is for how long a resolver may remember that there is no such name, as CoreDNS has it for names of Services.
	negativeTTL = 5
)

// answered counts queries for names and addresses of the cluster by what who asks is told. Where pods of workspaces ask and nobody is told names of one, something asks in their name.
var answered = promauto.NewCounterVec(prometheus.CounterOpts{
	Namespace: plugin.Namespace, Subsystem: Name, Name: "requests_total",
	Help: "Queries for names and addresses of the cluster, by what who asks is told: names of a workspace, or that there is none; as without this plugin (other); nothing, since it is not known who asks, or by an error.",
}, []string{"server", "result"})

const (
	resultWorkspace = "workspace"
	resultNoName    = "noname"
	resultOther     = "other"
	resultUnknown   = "unknown"
	resultError     = "error"
)

// Workspaces is the plugin.
type Workspaces struct {
	Next plugin.Handler

	zones     plugin.Zones
	api       name // the Service of the physical cluster that leads to the API of workspaces; empty if there is none
	directory *directory

	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// Name implements plugin.Handler.
func (w *Workspaces) Name() string { return Name }

// Ready implements ready.Readiness.
func (w *Workspaces) Ready() bool { return w.directory.synced() }

func (w *Workspaces) start() error {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.ended.Go(func() { w.directory.run(ctx) })
	wait, end := context.WithTimeout(ctx, startTimeout)
	defer end()
	if !cache.WaitForCacheSync(wait.Done(), w.directory.synced) {
		log.Warning("The pods and namespaces of the cluster are not known yet. Until they are, names of the cluster are answered with SERVFAIL")
	}
	return nil
}

func (w *Workspaces) stop() error {
	w.cancel()
	w.ended.Wait()
	return nil
}

// ServeDNS implements plugin.Handler.
func (w *Workspaces) ServeDNS(ctx context.Context, out dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: out, Req: r}
	zone := w.zones.Matches(state.Name())
	_, named := parseName(state.Name(), zone)
	if !named && reverseZone(state.Name()) == "" {
		return plugin.NextOrFailure(w.Name(), w.Next, ctx, out, r)
	}
	v, ok, err := w.view(ctx, out, r)
	count := func(result string) { answered.WithLabelValues(metrics.WithServer(ctx), result).Inc() }
	if err != nil {
		count(resultUnknown)
		return dns.RcodeServerFailure, plugin.Error(Name, err)
	}
	if !ok {
		count(resultOther)
		return plugin.NextOrFailure(w.Name(), w.Next, ctx, out, r)
	}
	var m *dns.Msg
	code := dns.RcodeSuccess
	if named {
		m, code, err = v.named(ctx, r.Question[0].Name, state.QType(), maxAliases)
	} else {
		m, code, err = v.reverse(ctx, r.Question[0].Name, state.QType())
	}
	if m == nil { // whoever asks is told by the server
		count(resultError)
		return code, err
	}
	if m.Rcode == dns.RcodeNameError {
		count(resultNoName)
		if len(m.Ns) == 0 {
			m.Ns = []dns.RR{authority(cmp.Or(zone, reverseZone(state.Name())))}
		}
	} else {
		count(resultWorkspace)
	}
	m.Id, m.Question = r.Id, r.Question
	if err := out.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return m.Rcode, nil
}

// reverseZone is the zone of addresses that a name is in, empty if it is in none.
func reverseZone(name string) string { return plugin.Zones{"in-addr.arpa.", "ip6.arpa."}.Matches(name) }

// authority says of which zone it is that there is no such name, and for how long that may be remembered.
func authority(zone string) dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: negativeTTL},
		Ns:  "ns.dns." + zone, Mbox: "hostmaster." + zone, Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: negativeTTL,
	}
}

// view is the physical cluster as a pod of a workspace is to see it.
type view struct {
	*Workspaces
	out dns.ResponseWriter
	r   *dns.Msg // what it asks
	own string   // its namespace, in the physical cluster
	of  workspace
}

// view returns that of who asks; false if it is no pod of a workspace.
func (w *Workspaces) view(ctx context.Context, out dns.ResponseWriter, r *dns.Msg) (view, bool, error) {
	state := request.Request{W: out}
	address, err := netip.ParseAddr(state.IP())
	if err != nil {
		return view{}, false, fmt.Errorf("who asks has no address: %w", err)
	}
	own, err := w.directory.client(ctx, address.WithZone("").Unmap())
	if err != nil || own == "" {
		return view{}, false, err
	}
	p, ok := w.directory.place(own)
	return view{w, out, r, own, p.workspace}, ok, nil
}

// physical is what a namespace that a pod names is called in the physical cluster; false if the workspace has none of that name there. The pod's
// own is meant by the search list that its node gives it, and others by who has learnt what they are called there.
func (v view) physical(namespace string) (string, bool) {
	if namespace == v.own {
		return v.own, true
	}
	if physical, ok := v.directory.physical(place{v.of, namespace}); ok {
		return physical, true
	}
	p, ok := v.directory.place(namespace)
	return namespace, ok && p.workspace == v.of
}

// inside is what a name is in the physical cluster; false if there is no such name in the workspace there.
func (v view) inside(n name) (name, bool) {
	namespace, ok := v.physical(n.namespace)
	if v.api != (name{}) {
		of := n
		if p, known := v.directory.place(namespace); ok && known {
			of.namespace = p.namespace
		}
		if api, is := of.instead(apiName, v.api); is {
			return api, true
		}
	}
	n.namespace = namespace
	return n, ok
}

// shown is a name as the workspace has it. Those that name nothing in a namespace stay as they are; false for one in a namespace that is not the workspace's.
func (v view) shown(text string) (string, bool) {
	n, ok := parseName(text, v.zones.Matches(text))
	if !ok {
		return text, true
	}
	if v.api != (name{}) {
		if k, is := n.instead(v.api, apiName); is {
			return k.String(), true
		}
	}
	if p, ok := v.directory.place(n.namespace); ok && p.workspace == v.of {
		n.namespace = p.namespace
		return n.String(), true
	}
	return text, false
}

// look asks what is behind for a name of the physical cluster. Nothing is nil where it has not answered.
func (v view) look(ctx context.Context, name string, qtype uint16) (*dns.Msg, int, error) {
	asked := v.r.Copy()
	asked.Question[0].Name, asked.Question[0].Qtype = name, qtype
	kept := nonwriter.New(v.out)
	code, err := plugin.NextOrFailure(v.Name(), v.Next, ctx, kept, asked)
	if err != nil || kept.Msg == nil {
		return nil, code, err
	}
	return kept.Msg.Copy(), code, nil // a cache may have it, too
}

// named answers for a name in a namespace, as the workspace has it.
func (v view) named(ctx context.Context, text string, qtype uint16, aliases int) (*dns.Msg, int, error) {
	n, ok := parseName(text, v.zones.Matches(text))
	if ok {
		n, ok = v.inside(n)
	}
	if !ok {
		m := new(dns.Msg).SetRcode(v.r, dns.RcodeNameError)
		m.Authoritative = true
		return m, m.Rcode, nil
	}
	question := n.String()
	m, code, err := v.look(ctx, question, qtype)
	if m == nil {
		return nil, code, err
	}
	if qtype == dns.TypeA || qtype == dns.TypeAAAA {
		alias, err := v.aliasWithin(ctx, m, question)
		if err != nil {
			return nil, dns.RcodeServerFailure, err
		}
		if alias != nil {
			alias.Hdr.Name = text
			return v.follow(ctx, alias, qtype, aliases)
		}
	}
	// What CoreDNS knows beside what was asked for is of whoever has the name in the physical cluster.
	m.Extra = slices.DeleteFunc(m.Extra, func(rr dns.RR) bool {
		_, ok := v.shown(rr.Header().Name)
		return !ok
	})
	for _, records := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		v.show(records, question, text)
	}
	return m, m.Rcode, nil
}

// maxAliases is how many aliases in a row are followed.
const maxAliases = 8

// aliasWithin is the alias that a name is of another within the cluster (a Service of type ExternalName); nil if it is none. The backend of CoreDNS has followed it already, as a name of the physical cluster, and says
// nothing of one that leads to none there.
func (v view) aliasWithin(ctx context.Context, m *dns.Msg, question string) (*dns.CNAME, error) {
	alias := aliasIn(m, question)
	if alias == nil && len(m.Answer) == 0 && m.Rcode == dns.RcodeSuccess {
		only, _, err := v.look(ctx, question, dns.TypeCNAME)
		if err != nil {
			return nil, err
		}
		if only != nil {
			alias = aliasIn(only, question)
		}
	}
	if alias == nil {
		return nil, nil
	}
	if _, within := parseName(alias.Target, v.zones.Matches(alias.Target)); !within {
		return nil, nil
	}
	return alias, nil
}

// follow answers with an alias and what it leads to, as the workspace has that name.
func (v view) follow(ctx context.Context, alias *dns.CNAME, qtype uint16, aliases int) (*dns.Msg, int, error) {
	if aliases == 0 {
		return nil, dns.RcodeServerFailure, fmt.Errorf("%d aliases lead from one to the next, the last to %s", maxAliases, alias.Target)
	}
	m, code, err := v.named(ctx, alias.Target, qtype, aliases-1)
	if m != nil {
		m.Answer = append([]dns.RR{alias}, m.Answer...)
	}
	return m, code, err
}

// aliasIn is the alias that a name is, nil if it is none.
func aliasIn(m *dns.Msg, name string) *dns.CNAME {
	for _, rr := range m.Answer {
		if alias, ok := rr.(*dns.CNAME); ok && dns.CanonicalName(alias.Hdr.Name) == dns.CanonicalName(name) {
			return alias
		}
	}
	return nil
}

// show puts the names of the workspace into records, and what was asked for in place of the name by which it was looked up.
func (v view) show(records []dns.RR, question, asked string) {
	for _, record := range records {
		header := record.Header()
		if dns.CanonicalName(header.Name) == dns.CanonicalName(question) {
			header.Name = asked
		} else {
			header.Name, _ = v.shown(header.Name)
		}
		switch r := record.(type) {
		case *dns.SRV:
			r.Target, _ = v.shown(r.Target)
		case *dns.MX:
			r.Mx, _ = v.shown(r.Mx)
		case *dns.NS:
			r.Ns, _ = v.shown(r.Ns)
		}
	}
}

// reverse answers for an address: by no name that is not the workspace's.
func (v view) reverse(ctx context.Context, text string, qtype uint16) (*dns.Msg, int, error) {
	m, code, err := v.look(ctx, text, qtype)
	if m == nil {
		return nil, code, err
	}
	names := m
	if qtype != dns.TypePTR { // that there is such a name is told as well by that it has nothing else
		if names, code, err = v.look(ctx, text, dns.TypePTR); names == nil {
			return nil, code, err
		}
	}
	some := len(names.Answer) > 0
	names.Answer = slices.DeleteFunc(names.Answer, func(rr dns.RR) bool {
		ptr, ok := rr.(*dns.PTR)
		if !ok {
			return false
		}
		ptr.Ptr, ok = v.shown(ptr.Ptr)
		return !ok
	})
	if some && len(names.Answer) == 0 {
		m = new(dns.Msg).SetRcode(v.r, dns.RcodeNameError)
		m.Authoritative = true
	}
	return m, m.Rcode, nil
}
