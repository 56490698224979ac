package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// termsSlack is by how much the number of goroutines of a server with nothing to do varies. What a term would leave behind, a
// watch or a controller, is at least one for each of them.
const termsSlack = 4

// TestTermsOfALeader takes the Lease from a leader again and again, as another server does that is first after an outage of
// etcd. The process goes on and serves, its controllers end, and run again as soon as the Lease is free; nothing of a term is
// left in the process.
func TestTermsOfALeader(t *testing.T) {
	t.Parallel() // half of it is waiting
	const terms = 6
	a := framework.StartAtoll(t, framework.StartEtcd(t).Flags()...)
	r := &replicas{t: t, servers: []*framework.Atoll{a}, clients: []*client.Clients{a.Clients()}}
	http, err := rest.HTTPClientFor(a.Config())
	must(t, err)
	admin := &leaking{Atoll: a, admin: http}
	r.led(0)
	pid := a.PID()
	in := client.In(t.Context(), "system:admin")
	leases := r.clients[0].Kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	take := func(holder string, seconds int32) {
		t.Helper()
		framework.Eventually(t, patience, holder+" has the Lease", func() string {
			lease, err := leases.Get(in, "atoll-controllers", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			now := metav1.NowMicro()
			lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &holder, ptr.To(seconds)
			lease.Spec.AcquireTime, lease.Spec.RenewTime = &now, &now
			_, err = leases.Update(in, lease, metav1.UpdateOptions{})
			return problemOf(err)
		})
	}
	var first map[string]float64
	var inFirst float64
	for term := 1; term <= terms; term++ {
		began := time.Now()
		take("another", 3600)
		framework.Eventually(t, patience, "the controllers have ended", func() string {
			if n := strings.Count(a.Log(), termOver); n != term {
				return fmt.Sprintf("%d terms are over, want %d", n, term)
			}
			return ""
		})
		ended := time.Since(began)
		if text := readyzText(t, a); a.PID() != pid || text != "" {
			t.Fatalf("the server is process %d, was %d, and /readyz says %q", a.PID(), pid, text)
		}
		var now float64
		if term == 1 || term == terms {
			// Requests take a moment to end.
			framework.Eventually(t, time.Minute, "nothing of a term is left", func() string {
				byStart, n := admin.goroutines(t)
				if now = n; term == 1 {
					first, inFirst = byStart, n
				}
				if now > inFirst+termsSlack {
					return fmt.Sprintf("%.0f goroutines after term %d, %.0f after the first; more are:\n%s", now, term, inFirst, more(first, byStart))
				}
				return ""
			})
		}
		take("nobody", 1)
		r.led(0)
		t.Logf("term %d ended %s after another took the Lease; the next leads after %s; %.0f goroutines in between", term, ended.Round(10*time.Millisecond), time.Since(began).Round(10*time.Millisecond), now)
	}
}
