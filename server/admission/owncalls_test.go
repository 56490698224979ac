package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/webhooks"
)

// callsFor are the server's own requests to webhooks of a logical cluster that answer after some time. It says whether they were
// called, and had their say.
func callsFor(ctx context.Context, o *ownCalls, cluster lc.Name, takes time.Duration) (called, done bool) {
	call, err := o.begin(ctx, cluster)
	if err != nil {
		return false, false
	}
	if call.class != slow {
		takes, done = min(takes, soon), takes < soon
	} else {
		done = true
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	o.end(call)
	return true, done
}

// is what is known of a logical cluster.
func (o *ownCalls) is(cluster lc.Name) pace {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[cluster]
}

// TestWhoHangsStopsNobody: twenty workspaces whose webhooks take as long as they may, and that want to be called all the time,
// keep others from nothing: not those whose webhooks answer soon, nor those of which nothing is known, also at the start, when
// that is of all, nor those that were slow once and are not any more; and those that are slow, and no more, are called, too.
func TestWhoHangsStopsNobody(t *testing.T) {
	for name, takes := range map[string]func(time.Duration) time.Duration{
		"hang": func(time.Duration) time.Duration { return 30 * time.Second },
		"answer soon, to be known": func(since time.Duration) time.Duration {
			return []time.Duration{10 * time.Millisecond, 30 * time.Second}[int(since/time.Minute)%2]
		},
		"are just soon enough":                 func(time.Duration) time.Duration { return soon - time.Millisecond },
		"take a tenth of that":                 func(time.Duration) time.Duration { return soon / 10 },
		"take as long as one waits for a turn": func(time.Duration) time.Duration { return turnWithin },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const hostiles, often = 20, 250 * time.Millisecond
				o := newOwnCalls()
				ctx, cancel := context.WithCancel(t.Context())
				var hostile sync.WaitGroup
				defer hostile.Wait()
				defer cancel()
				began := time.Now()
				for i := range hostiles {
					for range 3 { // of each
						hostile.Go(func() {
							for ctx.Err() == nil {
								callsFor(ctx, o, lc.Name(fmt.Sprint("hostile", i)), takes(time.Since(began)))
								time.Sleep(often)
							}
						})
					}
				}
				within := func(limit time.Duration, cluster lc.Name, takes time.Duration) {
					t.Helper()
					start := time.Now()
					for {
						if _, done := callsFor(ctx, o, cluster, takes); done {
							return
						}
						if time.Since(start) > limit {
							t.Fatalf("%s was not called for %s", cluster, limit)
						}
						time.Sleep(often)
					}
				}
				// At the start nothing is known of anybody, and each takes as long as it may once.
				within(hostiles*soon+10*time.Second, "first", 10*time.Millisecond)
				// One that takes two seconds once, as while its webhook starts, is quick again soon after it may be.
				slowOnce := func(once lc.Name) {
					t.Helper()
					within(time.Second, once, 10*time.Millisecond)
					for _, done := callsFor(ctx, o, once, 2*time.Second); o.is(once).class != slow; _, done = callsFor(ctx, o, once, 2*time.Second) {
						if done {
							t.Fatalf("%s took two seconds, and had them", once)
						}
						time.Sleep(often)
					}
					for start := time.Now(); o.is(once).class != quick; time.Sleep(often) {
						if time.Since(start) > slowFor+10*time.Second {
							t.Fatalf("%s was slow once, and is not quick %s later", once, time.Since(start))
						}
						callsFor(ctx, o, once, 10*time.Millisecond)
					}
				}
				asked, called := 0, 0
				for time.Since(began) < time.Hour {
					if asked++; asked%600 == 0 {
						within(time.Second, lc.Name(fmt.Sprint("new", asked)), 10*time.Millisecond)
						slowOnce(lc.Name(fmt.Sprint("once", asked)))
					}
					if is, _ := callsFor(ctx, o, "first", 10*time.Millisecond); is {
						called++
					}
					time.Sleep(time.Second)
				}
				if called < asked*9/10 {
					t.Errorf("of %d times one was called %d, whose webhooks answer soon", asked, called)
				}
				within(30*time.Minute, "slow", 3*time.Second)
			})
		})
	}
}

// TestOwnCalls: each workspace is called once at a time, the slow ones one after the other, and none for longer than a second but
// these; and the slow ones alone as often as they like.
func TestOwnCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwnCalls()
		calls := map[lc.Name]*ownCall{}
		begin := func(cluster lc.Name, want bool) {
			t.Helper()
			start := time.Now()
			call, err := o.begin(t.Context(), cluster)
			if (err == nil) != want {
				t.Fatalf("%s, while these are with webhooks: %v: %v, want a turn: %t", cluster, o.of, err, want)
			}
			if err == nil {
				calls[cluster] = call
			} else if waited := time.Since(start); waited != turnWithin {
				t.Errorf("waited %s for a turn, want %s", waited, turnWithin)
			}
		}
		end := func(cluster lc.Name, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			o.end(calls[cluster])
		}
		is := func(cluster lc.Name, want class) {
			t.Helper()
			if got := o.known[cluster].class; got != want {
				t.Fatalf("%s is %d, want %d", cluster, got, want)
			}
		}
		for _, answers := range []lc.Name{"a", "b", "c"} {
			begin(answers, true)
			begin("another", false) // nothing is known of either
			end(answers, 10*time.Millisecond)
		}
		for _, hangs := range []lc.Name{"hangs", "hangs too"} {
			begin(hangs, true)
			end(hangs, soon)
			is(hangs, slow)
		}
		begin("a", true)
		begin("a", false)
		begin("b", true)
		begin("c", false)
		begin("hangs", true)
		begin("hangs too", false)
		begin("another", true)
		end("hangs", 30*time.Second)
		begin("hangs", false) // the other one wants to
		begin("hangs too", true)
		end("hangs too", time.Millisecond)
		is("hangs too", slow) // it is not forgiven for one answer
		time.Sleep(wantedFor)
		begin("hangs", true)
		end("hangs", 30*time.Second)
		begin("hangs", true) // nobody else wants to
		end("hangs", time.Millisecond)

		// One that waits is told when it is its turn.
		var late sync.WaitGroup
		late.Go(func() {
			call, err := o.begin(t.Context(), "c")
			if err != nil {
				t.Errorf("one that waits for its turn: %v", err)
				return
			}
			o.end(call)
		})
		synctest.Wait()
		end("a", turnWithin/2)
		late.Wait()
		end("b", 0)
		end("another", 0)

		// It is quick when it has been slow for long enough, and longer each time that it was not.
		for _, tc := range []struct{ takes, slowFor time.Duration }{{soon, slowFor}, {soon, 2 * slowFor}, {30 * time.Second, 4 * slowFor}} {
			begin("forgiven", true)
			end("forgiven", tc.takes)
			time.Sleep(tc.slowFor - time.Second)
			begin("forgiven", true)
			end("forgiven", 0)
			is("forgiven", slow)
			time.Sleep(time.Second)
			begin("forgiven", true)
			end("forgiven", 0)
			is("forgiven", quick)
		}
		time.Sleep(2 * mostSlowFor)
		begin("forgiven", true)
		end("forgiven", soon)
		time.Sleep(slowFor)
		begin("forgiven", true)
		end("forgiven", 0)
		is("forgiven", quick)

		// Who may be quick again, and was slow again when he last was, comes after others who may.
		begin("again", true)
		end("again", soon)
		time.Sleep(slowFor)
		begin("again", true)
		end("again", soon)
		time.Sleep(slowFor)
		begin("once", true)
		end("once", soon)
		time.Sleep(slowFor)
		begin("never", true)
		begin("once", false)
		end("never", 10*time.Millisecond)
		begin("again", false)
		begin("once", true)
		end("once", 10*time.Millisecond)
		is("once", quick)
		time.Sleep(slowFor)
		begin("again", true)
		end("again", 10*time.Millisecond)
		is("again", quick)

		for i := range 2 * maxKnown {
			cluster := lc.Name(fmt.Sprint("w", i))
			begin(cluster, true)
			end(cluster, 0)
		}
		if o.going != [nClasses]int{} || len(o.of) != 0 || len(o.known) != maxKnown {
			t.Errorf("%d calls of %v after the last one; %d logical clusters are known", o.going, o.of, len(o.known))
		}
	})
}

// TestTurnsOfThePhase: a turn is taken only where a webhook is called, all calls of a phase have one, and what has none, or no
// longer, is refused whatever the webhook's failure policy is.
func TestTurnsOfThePhase(t *testing.T) {
	var calls atomic.Int64
	hang := make(chan struct{})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		calls.Add(1)
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
		}
		if req.URL.Path == "/hangs" {
			select {
			case <-req.Context().Done():
			case <-hang:
			}
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	defer hook.Close()
	defer close(hang)
	caller := webhooks.NewCaller(webhooks.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "shop"})
	o := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	own := aConfigMap
	own.who = &user.DefaultInfo{Name: user.APIServerUser}
	for _, policy := range []admissionregistration.FailurePolicyType{admissionregistration.Fail, admissionregistration.Ignore} {
		t.Run(string(policy), func(t *testing.T) {
			calls.Store(0)
			at := func(path string, soon time.Duration) *dynamic {
				in := webhookIn("shop", "same", hook.URL+path)
				one := in.Webhooks[0]
				one.FailurePolicy = &policy
				one.ClientConfig.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
				two := one
				two.Name = "other.test"
				in.Webhooks = []admissionregistration.ValidatingWebhook{one, two}
				d := validatingPluginOf(t, configurationsOf(t, map[schema.GroupResource][]any{validatingWebhooks: {in}}), nil, caller)
				d.own.soon = soon
				return d
			}
			// It is nobody's fault, and no client sleeps for it.
			refused := func(err error, why error) {
				t.Helper()
				if _, sleeps := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || sleeps || !strings.Contains(err.Error(), why.Error()) {
					t.Errorf("%#v, want that %v", err, why)
				}
			}

			d := at("/", time.Hour)            // however busy the machine is
			d.own.going[first] = maxFirstCalls // others'
			if err := d.Admit(ctx, own.attributes(), o); err != nil {
				t.Errorf("one that calls no webhooks waited for them: %v", err)
			}
			other := what{resource: "secrets", kind: "Secret", namespace: "default", name: "s", operation: admission.Delete, who: own.who}
			if err := d.Validate(ctx, other.attributes(), o); err != nil {
				t.Errorf("one that no webhook is about waited for them: %v", err)
			}
			refused(d.Validate(ctx, own.attributes(), o), errTooManyOwnCalls)
			if n := calls.Load(); n != 0 {
				t.Errorf("called %d times without a turn", n)
			}
			d.own.going[first] = 0
			if err := d.Validate(ctx, own.attributes(), o); err != nil || calls.Load() != 2 || d.own.going != [nClasses]int{} || d.own.known["shop"].class != quick {
				t.Errorf("%v after %d calls, want both of them in one turn; %v go on, known: %v", err, calls.Load(), d.own.going, d.own.known)
			}

			d = at("/hangs", 100*time.Millisecond)
			refused(d.Validate(ctx, own.attributes(), o), errLateOwnCall)
			if d.own.going != [nClasses]int{} || d.own.known["shop"].class != slow {
				t.Errorf("%v go on, known: %v, want that it is slow", d.own.going, d.own.known)
			}
			long, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			if err := d.Validate(long, own.attributes(), o); apierrors.IsTooManyRequests(err) || long.Err() == nil {
				t.Errorf("%v, want that the slow are waited for", err)
			}
		})
	}
}

// What panics gives its turn back, and whose request ends while it waits for one has none, whatever the webhook's failure policy
// makes of that.
func TestTurnOfWhatDoesNotEnd(t *testing.T) {
	config, err := webhooks.NewCaller(webhooks.Addresses{}).Resolver(webhooks.Validating, "shop", nil)(nil).ClientConfigFor("webhook.invalid:443")
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	call := func(ctx context.Context) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://127.0.0.1:1", strings.NewReader("{}")) // where webhooks may not be
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}
	calls := newOwnCalls()
	var had int
	func() {
		defer func() { _ = recover() }()
		_ = calls.with(t.Context(), "shop", func(ctx context.Context) error {
			call(ctx)
			had = calls.going[first]
			panic("of the test")
		})
	}()
	if had != 1 || calls.going != [nClasses]int{} || len(calls.of) != 0 {
		t.Errorf("%d had a turn, %v have one, want it given back", had, calls.going)
	}

	calls.going[first] = maxFirstCalls // others'
	ctx, cancel := context.WithCancel(t.Context())
	err = calls.with(ctx, "bank", func(ctx context.Context) error {
		cancel()
		call(ctx)
		return nil // as a webhook that may fail
	})
	if !apierrors.IsInternalError(err) {
		t.Errorf("%v, want that it is not let through", err)
	}
}
