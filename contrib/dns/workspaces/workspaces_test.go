package workspaces

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

func TestParseName(t *testing.T) {
	for text, want := range map[string]string{
		"web.shop.svc.cluster.local.":             "web.|shop|svc.cluster.local.",
		"WEB.Shop.svc.Cluster.local.":             "web.|shop|svc.cluster.local.",
		"_http._tcp.web.shop.svc.cluster.local.":  "_http._tcp.web.|shop|svc.cluster.local.",
		"10-0-0-1.shop.pod.cluster.local.":        "10-0-0-1.|shop|pod.cluster.local.",
		"shop.svc.cluster.local.":                 "|shop|svc.cluster.local.",
		`a\.b.shop.svc.cluster.local.`:            `a\.b.|shop|svc.cluster.local.`,
		"svc.cluster.local.":                      "",
		"cluster.local.":                          "",
		"dns-version.cluster.local.":              "",
		"web.shop.other.cluster.local.":           "",
		"web.shop.svcs.cluster.local.":            "",
		"web.svc.svc.cluster.local.":              "web.|svc|svc.cluster.local.",
		"web.shop.svc.cluster.local.example.org.": "",
	} {
		zones := plugin.Zones{"cluster.local."}
		n, ok := parseName(text, zones.Matches(text))
		got := ""
		if ok {
			got = n.host + "|" + n.namespace + "|" + n.rest
		}
		if got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
		if ok && n.String() != dns.CanonicalName(text) {
			t.Errorf("%s put together is %s", text, n)
		}
	}
}

// namespace is one that a syncer made for a namespace of a workspace, or one of the physical cluster's own.
func namespace(name, of, root string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if of != "" {
		ns.Labels = map[string]string{syncTargetLabel: "east", workspaceLabel: of, "team": "a"}
		ns.Annotations = map[string]string{rootAnnotation: "/" + root}
	}
	return ns
}

func pod(namespace, name, address string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}}, PodIPs: []corev1.PodIP{{IP: address}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// Who asks.
const (
	front    = "10.0.0.1" // of the workspace shop
	frontV6  = "2001:db8::1"
	other    = "10.0.0.2" // of another
	operator = "10.0.0.3" // of the cluster itself
	ended    = "10.0.0.4" // of a pod of shop, until it ended
	reused   = "10.0.0.5" // of a pod of shop that is not known to be gone, and now of another workspace's
	node     = "192.0.2.1"
	unknown  = "10.0.0.9"
)

// cluster has two workspaces, which both have a namespace back. One has a namespace that is called as another is in the physical cluster; and another installation of Atoll has one there, too.
func cluster() []apiruntime.Object {
	others := namespace("back-hhh", "shop", "back")
	others.Labels[syncTargetLabel] = "west"
	return []apiruntime.Object{
		others, namespace("odd-ggg", "shop", "front-aaa"),
		namespace("front-aaa", "shop", "front"), namespace("back-bbb", "shop", "back"), namespace("twin-ddd", "shop", "monitoring-x"),
		namespace("back-ccc", "bank", "back"), namespace("vault-eee", "bank", "vault"),
		namespace("monitoring", "", ""), namespace("default", "", ""),
		pod("front-aaa", "web", front, func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "2001:0db8:0::1"}) }),
		pod("back-ccc", "db", other),
		pod("monitoring", "prometheus", operator),
		pod("front-aaa", "job", ended, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("front-aaa", "old", reused, func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(1, 0) }),
		pod("back-ccc", "new", reused, func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(2, 0) }),
		pod("front-aaa", "agent", node, func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
	}
}

// records are what the cluster's DNS has, by its own names.
var records = map[string][]string{
	"db.front-aaa.svc.cluster.local.": {"A 10.96.0.1"},
	"db.back-bbb.svc.cluster.local.":  {"A 10.96.0.2"},
	"db.back-ccc.svc.cluster.local.":  {"A 10.96.0.3"},
	"db.monitoring.svc.cluster.local.": {
		"A 10.96.0.4"},
	"kubernetes.default.svc.cluster.local.":             {"A 10.96.0.5"},
	"_sql._tcp.db.back-bbb.svc.cluster.local.":          {"SRV 0 100 5432 db-0.db.back-bbb.svc.cluster.local."},
	"alias.front-aaa.svc.cluster.local.":                {"CNAME db.back.svc.cluster.local."},
	"spy.front-aaa.svc.cluster.local.":                  {"CNAME db.monitoring.svc.cluster.local."},
	"thief.front-aaa.svc.cluster.local.":                {"CNAME db.back-ccc.svc.cluster.local."},
	"twice.front-aaa.svc.cluster.local.":                {"CNAME alias.front.svc.cluster.local."},
	"round.front-aaa.svc.cluster.local.":                {"CNAME round.front.svc.cluster.local."},
	"_sql._tcp.spy.front-aaa.svc.cluster.local.":        {"SRV 0 100 5432 db.monitoring.svc.cluster.local."},
	"ext.front-aaa.svc.cluster.local.":                  {"CNAME db.example.org."},
	"atoll.atoll-system.svc.cluster.local.":             {"A 10.96.0.6"},
	"_https._tcp.atoll.atoll-system.svc.cluster.local.": {"SRV 0 100 443 atoll.atoll-system.svc.cluster.local."},
	"6.0.96.10.in-addr.arpa.":                           {"PTR atoll.atoll-system.svc.cluster.local."},
	"1.0.96.10.in-addr.arpa.":                           {"PTR db.front-aaa.svc.cluster.local."},
	"2.0.96.10.in-addr.arpa.":                           {"PTR db.back-bbb.svc.cluster.local."},
	"3.0.96.10.in-addr.arpa.":                           {"PTR db.back-ccc.svc.cluster.local."},
	"4.0.96.10.in-addr.arpa.":                           {"PTR db.monitoring.svc.cluster.local."},
	"8.8.8.8.in-addr.arpa.":                             {"PTR dns.example.org."},
	"10-0-0-7.back-bbb.pod.cluster.local.":              {"A 10.0.0.7"},
	"example.org.":                                      {"A 198.51.100.1"},
	"cluster.local.":                                    {"A 10.96.0.10"},
}

// behind answers as the plugins behind it would.
type behind struct{ asked []string }

func (*behind) Name() string { return "behind" }

func (n *behind) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	asked := r.Question[0].Name
	n.asked = append(n.asked, asked)
	m := new(dns.Msg).SetReply(r)
	found, ok := records[dns.CanonicalName(asked)]
	for _, text := range found {
		rr, err := dns.NewRR(asked + " 5 IN " + text)
		if err != nil {
			return dns.RcodeServerFailure, err
		}
		m.Answer = append(m.Answer, rr)
		if srv, ok := rr.(*dns.SRV); ok {
			extra, err := dns.NewRR(srv.Target + " 5 IN A 10.0.0.7")
			if err != nil {
				return dns.RcodeServerFailure, err
			}
			m.Extra = append(m.Extra, extra)
		}
	}
	if qtype := r.Question[0].Qtype; qtype == dns.TypeA && len(m.Answer) == 1 {
		if alias, is := m.Answer[0].(*dns.CNAME); is && dns.IsSubDomain("cluster.local.", alias.Target) {
			// As CoreDNS's backend does: what it finds it adds, and without that it says nothing.
			if m.Answer = nil; len(records[alias.Target]) > 0 && strings.HasPrefix(records[alias.Target][0], "A ") {
				rr, err := dns.NewRR(alias.Target + " 5 IN " + records[alias.Target][0])
				if err != nil {
					return dns.RcodeServerFailure, err
				}
				m.Answer = []dns.RR{alias, rr}
			}
		}
	}
	if !ok {
		m.Rcode = dns.RcodeNameError
	}
	return m.Rcode, w.WriteMsg(m)
}

// served is the plugin before behind.
type served struct {
	*Workspaces
	behind *behind
	client *fake.Clientset
}

func serve(t *testing.T, objects ...apiruntime.Object) *served {
	t.Helper()
	client := fake.NewClientset(objects...)
	d, err := newDirectory(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &behind{}
	w := &Workspaces{Next: n, zones: plugin.Zones{"cluster.local."}, directory: d}
	if err := w.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
	return &served{w, n, client}
}

// ask returns the code and the records of an answer, and the name by which it was looked up, empty if it was not.
func (s *served) ask(t *testing.T, from, question string) (answer, inside string) {
	t.Helper()
	text, qtype, _ := strings.Cut(question, " ")
	r := new(dns.Msg).SetQuestion(text, dns.StringToType[qtype])
	s.behind.asked = nil
	out := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: from})
	code, err := s.ServeDNS(t.Context(), out, r)
	if err != nil {
		return err.Error(), ""
	}
	if out.Msg == nil || code != out.Msg.Rcode {
		t.Fatalf("%s by %s: the code is %s, and the answer %v", question, from, dns.RcodeToString[code], out.Msg)
	}
	if got := out.Msg.Question[0].Name; got != text || r.Question[0].Name != text {
		t.Errorf("%s by %s: the answer is to %s, and the question became %s", question, from, got, r.Question[0].Name)
	}
	said := []string{dns.RcodeToString[out.Msg.Rcode]}
	for _, rr := range slices.Concat(out.Msg.Answer, out.Msg.Extra) {
		said = append(said, strings.Join(strings.Fields(rr.String()), " "))
	}
	return strings.Join(said, "; "), strings.Join(s.behind.asked, " ")
}

func TestServeDNS(t *testing.T) {
	s := serve(t, cluster()...)
	for _, test := range []struct {
		name, from, question string
		want, inside         string
	}{
		{"a Service of another namespace of the workspace", front, "db.back.svc.cluster.local. A", "NOERROR; db.back.svc.cluster.local. 5 IN A 10.96.0.2", "db.back-bbb.svc.cluster.local."},
		{"and by the pod's other address", frontV6, "db.back.svc.cluster.local. A", "NOERROR; db.back.svc.cluster.local. 5 IN A 10.96.0.2", "db.back-bbb.svc.cluster.local."},
		{"however it is written", front, "Db.BACK.svc.cluster.local. A", "NOERROR; Db.BACK.svc.cluster.local. 5 IN A 10.96.0.2", "db.back-bbb.svc.cluster.local."},
		{"its own namespace, by its name", front, "db.front.svc.cluster.local. A", "NOERROR; db.front.svc.cluster.local. 5 IN A 10.96.0.1", "db.front-aaa.svc.cluster.local."},
		{"its own namespace, by the search list", front, "db.front-aaa.svc.cluster.local. A", "NOERROR; db.front-aaa.svc.cluster.local. 5 IN A 10.96.0.1", "db.front-aaa.svc.cluster.local."},
		{"one of the workspace, by its name in the physical cluster", front, "db.back-bbb.svc.cluster.local. A", "NOERROR; db.back-bbb.svc.cluster.local. 5 IN A 10.96.0.2", "db.back-bbb.svc.cluster.local."},
		{"the same name in another workspace", other, "db.back.svc.cluster.local. A", "NOERROR; db.back.svc.cluster.local. 5 IN A 10.96.0.3", "db.back-ccc.svc.cluster.local."},
		{"a namespace of another workspace", front, "db.vault.svc.cluster.local. A", "NXDOMAIN", ""},
		{"and by its name in the physical cluster", front, "db.back-ccc.svc.cluster.local. A", "NXDOMAIN", ""},
		{"a namespace of the physical cluster", front, "db.monitoring.svc.cluster.local. A", "NXDOMAIN", ""},
		{"its API", front, "kubernetes.default.svc.cluster.local. A", "NXDOMAIN", ""},
		{"a Service that is not there", front, "none.back.svc.cluster.local. A", "NXDOMAIN", "none.back-bbb.svc.cluster.local."},
		{"a port", front, "_sql._tcp.db.back.svc.cluster.local. SRV",
			"NOERROR; _sql._tcp.db.back.svc.cluster.local. 5 IN SRV 0 100 5432 db-0.db.back.svc.cluster.local.; db-0.db.back.svc.cluster.local. 5 IN A 10.0.0.7", "_sql._tcp.db.back-bbb.svc.cluster.local."},
		{"a pod", front, "10-0-0-7.back.pod.cluster.local. A", "NOERROR; 10-0-0-7.back.pod.cluster.local. 5 IN A 10.0.0.7", "10-0-0-7.back-bbb.pod.cluster.local."},
		{"a name that is another's", front, "ext.front.svc.cluster.local. A", "NOERROR; ext.front.svc.cluster.local. 5 IN CNAME db.example.org.", "ext.front-aaa.svc.cluster.local."},
		{"an alias in the workspace", front, "alias.front.svc.cluster.local. A", "NOERROR; alias.front.svc.cluster.local. 5 IN CNAME db.back.svc.cluster.local.; db.back.svc.cluster.local. 5 IN A 10.96.0.2",
			"alias.front-aaa.svc.cluster.local. alias.front-aaa.svc.cluster.local. db.back-bbb.svc.cluster.local."},
		{"an alias of an alias", front, "twice.front.svc.cluster.local. A",
			"NOERROR; twice.front.svc.cluster.local. 5 IN CNAME alias.front.svc.cluster.local.; alias.front.svc.cluster.local. 5 IN CNAME db.back.svc.cluster.local.; db.back.svc.cluster.local. 5 IN A 10.96.0.2",
			"twice.front-aaa.svc.cluster.local. twice.front-aaa.svc.cluster.local. alias.front-aaa.svc.cluster.local. alias.front-aaa.svc.cluster.local. db.back-bbb.svc.cluster.local."},
		{"an alias of the cluster's own", front, "spy.front.svc.cluster.local. A", "NXDOMAIN; spy.front.svc.cluster.local. 5 IN CNAME db.monitoring.svc.cluster.local.", "spy.front-aaa.svc.cluster.local."},
		{"an alias of another workspace's", front, "thief.front.svc.cluster.local. A", "NXDOMAIN; thief.front.svc.cluster.local. 5 IN CNAME db.back-ccc.svc.cluster.local.", "thief.front-aaa.svc.cluster.local."},
		{"a port of such an alias", front, "_sql._tcp.spy.front.svc.cluster.local. SRV", "NOERROR; _sql._tcp.spy.front.svc.cluster.local. 5 IN SRV 0 100 5432 db.monitoring.svc.cluster.local.", "_sql._tcp.spy.front-aaa.svc.cluster.local."},
		{"what is not in a namespace", front, "cluster.local. A", "NOERROR; cluster.local. 5 IN A 10.96.0.10", "cluster.local."},
		{"what is not of the cluster", front, "example.org. A", "NOERROR; example.org. 5 IN A 198.51.100.1", "example.org."},
		{"an address of its namespace", front, "1.0.96.10.in-addr.arpa. PTR", "NOERROR; 1.0.96.10.in-addr.arpa. 5 IN PTR db.front.svc.cluster.local.", "1.0.96.10.in-addr.arpa."},
		{"an address of its workspace", front, "2.0.96.10.in-addr.arpa. PTR", "NOERROR; 2.0.96.10.in-addr.arpa. 5 IN PTR db.back.svc.cluster.local.", "2.0.96.10.in-addr.arpa."},
		{"an address of another workspace", front, "3.0.96.10.in-addr.arpa. PTR", "NXDOMAIN", "3.0.96.10.in-addr.arpa."},
		{"an address of the physical cluster", front, "4.0.96.10.in-addr.arpa. PTR", "NXDOMAIN", "4.0.96.10.in-addr.arpa."},
		{"what else an address of the cluster has", front, "4.0.96.10.in-addr.arpa. TXT", "NXDOMAIN", "4.0.96.10.in-addr.arpa. 4.0.96.10.in-addr.arpa."},
		{"an address elsewhere", front, "8.8.8.8.in-addr.arpa. PTR", "NOERROR; 8.8.8.8.in-addr.arpa. 5 IN PTR dns.example.org.", "8.8.8.8.in-addr.arpa."},
		{"by the cluster's own pod", operator, "db.back-ccc.svc.cluster.local. A", "NOERROR; db.back-ccc.svc.cluster.local. 5 IN A 10.96.0.3", "db.back-ccc.svc.cluster.local."},
		{"by the cluster's own pod, a name of a workspace", operator, "db.back.svc.cluster.local. A", "NXDOMAIN", "db.back.svc.cluster.local."},
		{"by the cluster's own pod, an address", operator, "3.0.96.10.in-addr.arpa. PTR", "NOERROR; 3.0.96.10.in-addr.arpa. 5 IN PTR db.back-ccc.svc.cluster.local.", "3.0.96.10.in-addr.arpa."},
		{"by a node, and a pod that has its address", node, "db.monitoring.svc.cluster.local. A", "NOERROR; db.monitoring.svc.cluster.local. 5 IN A 10.96.0.4", "db.monitoring.svc.cluster.local."},
		{"by this machine", "127.0.0.1", "db.monitoring.svc.cluster.local. A", "NOERROR; db.monitoring.svc.cluster.local. 5 IN A 10.96.0.4", "db.monitoring.svc.cluster.local."},
		{"by who has the address of two, the later", reused, "db.back.svc.cluster.local. A", "NOERROR; db.back.svc.cluster.local. 5 IN A 10.96.0.3", "db.back-ccc.svc.cluster.local."},
	} {
		got, inside := s.ask(t, test.from, test.question)
		if got != test.want || inside != test.inside {
			t.Errorf("%s: %s by %s is %q, looked up as %q; want %q, %q", test.name, test.question, test.from, got, inside, test.want, test.inside)
		}
	}
}

// TestAPI: the API of the workspaces is where the physical cluster's would be.
func TestAPI(t *testing.T) {
	s := serve(t, append(cluster(), namespace("default-fff", "shop", "default"), pod("default-fff", "web", "10.0.0.6"))...)
	s.api = name{host: "atoll.", namespace: "atoll-system"}
	for _, test := range []struct{ name, from, question, want, inside string }{
		{"by its name", front, "kubernetes.default.svc.cluster.local. A", "NOERROR; kubernetes.default.svc.cluster.local. 5 IN A 10.96.0.6", "atoll.atoll-system.svc.cluster.local."},
		{"by its short name, in its namespace", "10.0.0.6", "kubernetes.default-fff.svc.cluster.local. A", "NOERROR; kubernetes.default-fff.svc.cluster.local. 5 IN A 10.96.0.6", "atoll.atoll-system.svc.cluster.local."},
		{"in a workspace that has nothing in default there", other, "kubernetes.default.svc.cluster.local. A", "NOERROR; kubernetes.default.svc.cluster.local. 5 IN A 10.96.0.6", "atoll.atoll-system.svc.cluster.local."},
		{"its port", front, "_https._tcp.kubernetes.default.svc.cluster.local. SRV",
			"NOERROR; _https._tcp.kubernetes.default.svc.cluster.local. 5 IN SRV 0 100 443 kubernetes.default.svc.cluster.local.; kubernetes.default.svc.cluster.local. 5 IN A 10.0.0.7", "_https._tcp.atoll.atoll-system.svc.cluster.local."},
		{"its address", front, "6.0.96.10.in-addr.arpa. PTR", "NOERROR; 6.0.96.10.in-addr.arpa. 5 IN PTR kubernetes.default.svc.cluster.local.", "6.0.96.10.in-addr.arpa."},
		{"what only ends so", front, "mykubernetes.default.svc.cluster.local. A", "NXDOMAIN", "mykubernetes.default-fff.svc.cluster.local."},
		{"one of that name elsewhere", front, "kubernetes.front.svc.cluster.local. A", "NXDOMAIN", "kubernetes.front-aaa.svc.cluster.local."},
		{"by its name in the physical cluster", front, "atoll.atoll-system.svc.cluster.local. A", "NXDOMAIN", ""},
		{"by the cluster's own pod", operator, "kubernetes.default.svc.cluster.local. A", "NOERROR; kubernetes.default.svc.cluster.local. 5 IN A 10.96.0.5", "kubernetes.default.svc.cluster.local."},
	} {
		got, inside := s.ask(t, test.from, test.question)
		if got != test.want || inside != test.inside {
			t.Errorf("%s: %s by %s is %q, looked up as %q; want %q, %q", test.name, test.question, test.from, got, inside, test.want, test.inside)
		}
	}
}

// TestNoNameIsRemembered: a resolver may keep for a moment that there is no such name, and not for longer.
func TestNoNameIsRemembered(t *testing.T) {
	s := serve(t, cluster()...)
	out := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: front})
	if _, err := s.ServeDNS(t.Context(), out, new(dns.Msg).SetQuestion("db.vault.svc.cluster.local.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if len(out.Msg.Ns) != 1 || !out.Msg.Authoritative {
		t.Fatalf("the answer is %v", out.Msg)
	}
	if soa, ok := out.Msg.Ns[0].(*dns.SOA); !ok || soa.Minttl != negativeTTL || soa.Hdr.Name != "cluster.local." {
		t.Errorf("with it comes %v", out.Msg.Ns[0])
	}
}

// TestAnswersOfOthersStay: what a cache has is as the cluster names it, whoever asked first.
func TestAnswersOfOthersStay(t *testing.T) {
	s := serve(t, cluster()...)
	kept := new(dns.Msg).SetQuestion("db.back-bbb.svc.cluster.local.", dns.TypeA)
	kept.Answer = []dns.RR{test.A("db.back-bbb.svc.cluster.local. 5 IN A 10.96.0.2")}
	s.Next = plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		kept.Id = r.Id
		return dns.RcodeSuccess, w.WriteMsg(kept)
	})
	if got, _ := s.ask(t, front, "db.back.svc.cluster.local. A"); got != "NOERROR; db.back.svc.cluster.local. 5 IN A 10.96.0.2" {
		t.Errorf("the answer is %q", got)
	}
	if got := kept.Question[0].Name + kept.Answer[0].Header().Name; got != "db.back-bbb.svc.cluster.local.db.back-bbb.svc.cluster.local." {
		t.Errorf("what was kept became %s", got)
	}
}

// TestPodIsAwaited: a pod asks a moment before it is known to have its address.
func TestPodIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, cluster()...)
		began := time.Now()
		go func() {
			time.Sleep(patience / 2)
			if _, err := s.client.CoreV1().Pods("front-aaa").Create(t.Context(), pod("front-aaa", "late", unknown), metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}()
		got, inside := s.ask(t, unknown, "db.back.svc.cluster.local. A")
		if inside != "db.back-bbb.svc.cluster.local." || time.Since(began) != patience/2 {
			t.Errorf("after %s it is told %q, looked up as %q", time.Since(began), got, inside)
		}
	})
}

// TestStranger: who never comes to be known is served as the cluster's own, and waits once.
func TestStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, cluster()...)
		for _, test := range []struct {
			question string
			takes    time.Duration
		}{
			{"example.org. A", 0}, // nobody has to know who asks
			{"db.monitoring.svc.cluster.local. A", patience},
			{"db.monitoring.svc.cluster.local. A", 0},
		} {
			began := time.Now()
			got, _ := s.ask(t, unknown, test.question)
			if took := time.Since(began); took != test.takes || !strings.HasPrefix(got, "NOERROR") {
				t.Errorf("%s is answered with %q after %s, want %s", test.question, got, took, test.takes)
			}
		}
		began := time.Now()
		s.ask(t, node, "db.monitoring.svc.cluster.local. A")
		if took := time.Since(began); took != 0 {
			t.Errorf("a node waits %s", took)
		}
		// One whose pod has ended, too; and a pod that comes later is known, whoever had the address.
		if _, inside := s.ask(t, ended, "db.monitoring.svc.cluster.local. A"); inside == "" {
			t.Error("the address of what has ended is taken for its own")
		}
		if _, err := s.client.CoreV1().Pods("front-aaa").Create(t.Context(), pod("front-aaa", "late", unknown), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, _ := s.ask(t, unknown, "db.monitoring.svc.cluster.local. A"); got != "NXDOMAIN" {
			t.Errorf("a pod with the address of a stranger is told %q", got)
		}
		// And for no longer than it is remembered.
		time.Sleep(strangerFor + time.Second)
		began = time.Now()
		s.ask(t, ended, "db.monitoring.svc.cluster.local. A")
		if took := time.Since(began); took != patience {
			t.Errorf("after a minute it waits %s, want %s", took, patience)
		}
	})
}

// TestAliasesEnd: those that lead from one to the next are followed so far and no farther.
func TestAliasesEnd(t *testing.T) {
	s := serve(t, cluster()...)
	if got, _ := s.ask(t, front, "round.front.svc.cluster.local. A"); !strings.Contains(got, "8 aliases lead from one to the next, the last to round.front.svc.cluster.local.") {
		t.Errorf("it is told %q", got)
	}
}

// TestUnknownPod: who has an address of pods, and is none that is known, is told nothing that may be another's.
func TestUnknownPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, cluster()...)
		s.directory.networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
		for range 2 {
			if got, inside := s.ask(t, unknown, "db.monitoring.svc.cluster.local. A"); !strings.Contains(got, "no pod is known that has the address "+unknown) || inside != "" {
				t.Errorf("it is told %q, looked up as %q", got, inside)
			}
		}
		if got, _ := s.ask(t, "10.0.1.1", "db.monitoring.svc.cluster.local. A"); !strings.HasPrefix(got, "NOERROR") {
			t.Errorf("who is no pod is told %q", got)
		}
	})
}

// TestWaitingIsBounded: a flood from addresses that nobody has takes no memory without end.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, cluster()...)
		for range maxWaiting {
			s.directory.waiting <- struct{}{}
		}
		if _, err := s.directory.client(t.Context(), netip.MustParseAddr(unknown)); !errors.Is(err, errWaiting) {
			t.Errorf("one more waits: %v", err)
		}
		if got, err := s.directory.client(t.Context(), netip.MustParseAddr(front)); got != "front-aaa" || err != nil {
			t.Errorf("who is known is %q, %v", got, err)
		}
	})
}

// TestNothingIsKnown: until the cluster is known nobody is told a name that may be another's.
func TestNothingIsKnown(t *testing.T) {
	d, err := newDirectory(fake.NewClientset(cluster()...), nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &behind{}
	s := &served{Workspaces: &Workspaces{Next: n, zones: plugin.Zones{"cluster.local."}, directory: d}, behind: n}
	if s.Ready() {
		t.Error("it is ready")
	}
	if got, inside := s.ask(t, operator, "db.back-bbb.svc.cluster.local. A"); !strings.Contains(got, errNotSynced.Error()) || inside != "" {
		t.Errorf("it says %q, looked up as %q", got, inside)
	}
	if got, _ := s.ask(t, front, "example.org. A"); got != "NOERROR; example.org. 5 IN A 198.51.100.1" {
		t.Errorf("of what is not of the cluster it says %q", got)
	}
}

// TestRenamedNamespace: a namespace that is given to another workspace, or to none, is that one's at once.
func TestRenamedNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, cluster()...)
		if _, err := s.client.CoreV1().Namespaces().Update(t.Context(), namespace("back-bbb", "", ""), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, _ := s.ask(t, front, "db.back.svc.cluster.local. A"); got != "NXDOMAIN" {
			t.Errorf("it is told %q", got)
		}
	})
}

// TestWhatIsKept is what is looked at, and no more.
func TestWhatIsKept(t *testing.T) {
	full := pod("front-aaa", "web", front)
	full.Labels = map[string]string{"app": "web"}
	full.Spec.Containers = []corev1.Container{{Name: "web"}}
	kept, err := trimPod(full)
	if err != nil {
		t.Fatal(err)
	}
	want := &knownPod{namespace: "front-aaa", name: "web", addresses: []string{front}, hosts: []string{node}, created: full.CreationTimestamp.Unix()}
	if !reflect.DeepEqual(kept, want) {
		t.Errorf("of a pod %+v is kept, want %+v", kept, want)
	}
	ns := namespace("front-aaa", "shop", "front")
	if kept, err = trimNamespace(ns); err != nil {
		t.Fatal(err)
	}
	place, _ := placeOf(ns)
	if got, ok := placeOf(kept.(*corev1.Namespace)); !ok || got != place || len(kept.(*corev1.Namespace).Labels) != 2 {
		t.Errorf("of a namespace %+v is kept", kept)
	}
}

// TestMemory: what the README says of it, of pods as a cluster has them.
func TestMemory(t *testing.T) {
	const n, most = 20_000, 1000
	d, err := newDirectory(fake.NewClientset(), nil)
	if err != nil {
		t.Fatal(err)
	}
	used := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := used()
	for i := range n {
		kept, err := trimPod(pod(fmt.Sprintf("team-%08x", i%500), fmt.Sprintf("frontend-%010d-%05d", i, i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), func(p *corev1.Pod) {
			p.ResourceVersion = strconv.Itoa(1_000_000 + i)
			p.Status.HostIPs[0].IP = fmt.Sprintf("192.0.2.%d", i%200)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.pods.GetIndexer().Add(kept); err != nil {
			t.Fatal(err)
		}
	}
	each := (used() - before) / n
	t.Logf("%d bytes for each pod", each)
	if each > most {
		t.Errorf("it holds %d bytes for each pod, want %d at most", each, most)
	}
	if _, ok := d.podAt(netip.MustParseAddr("10.0.0.7")); !ok {
		t.Error("a pod is not known")
	}
}
