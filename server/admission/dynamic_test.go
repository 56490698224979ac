package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	"k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/webhooks"
)

// webhookIn is a configuration of a logical cluster, as stored.
func webhookIn(cluster lc.Name, name, url string) *admissionregistration.ValidatingWebhookConfiguration {
	fail, none, equivalent := admissionregistration.Fail, admissionregistration.SideEffectClassNone, admissionregistration.Equivalent
	return &admissionregistration.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.Annotation: string(cluster)}},
		Webhooks: []admissionregistration.ValidatingWebhook{{
			Name: name + ".test", ClientConfig: admissionregistration.WebhookClientConfig{URL: &url},
			Rules: []admissionregistration.RuleWithOperations{{
				Operations: []admissionregistration.OperationType{admissionregistration.OperationAll},
				Rule:       admissionregistration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			FailurePolicy: &fail, SideEffects: &none, MatchPolicy: &equivalent,
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}, AdmissionReviewVersions: []string{"v1"},
		}},
	}
}

func validatingPluginOf(t *testing.T, configurations *Configurations, objects Objects, caller *webhooks.Caller) *dynamic {
	t.Helper()
	return newValidatingWebhooks(Config{
		Objects: objects, Configurations: configurations, Webhooks: caller,
		Terminating: func(name lc.Name) bool { return name == "going" },
	}, newOwnCalls())
}

var aConfigMap = what{resource: "configmaps", kind: "ConfigMap", namespace: "default", name: "c", operation: admission.Create, object: &core.ConfigMap{}}

// TestInstances: there is one for each logical cluster that has configurations, as long as they do not change, and nothing
// for the others; there are never more than so many, and none runs anything.
func TestInstances(t *testing.T) {
	configurations := configurationsOf(t, nil)
	store := &configurationStore{configurations, validatingWebhooks}
	d := validatingPluginOf(t, configurations, nil, webhooks.NewCaller(webhooks.Addresses{}))
	instance := func(cluster string) admission.Interface {
		t.Helper()
		ctx := logicalcluster.WithCluster(context.Background(), logicalcluster.Cluster{Name: lc.Name(cluster), Mirror: cluster == "east"})
		plugin, done, err := d.instance(ctx, aConfigMap.attributes())
		if err != nil {
			t.Fatalf("%s: %v", cluster, err)
		}
		done()
		return plugin
	}
	before := runtime.NumGoroutine()
	for i := range 1000 {
		if instance(fmt.Sprintf("idle%d", i)) != nil {
			t.Fatal("something is called for a logical cluster without configurations")
		}
	}
	if d.instances.Len() != 0 {
		t.Errorf("%d instances of logical clusters without configurations", d.instances.Len())
	}
	add := func(cluster lc.Name, name string) {
		t.Helper()
		if err := store.Add(webhookIn(cluster, name, "https://webhook.invalid/")); err != nil {
			t.Fatal(err)
		}
	}
	for _, cluster := range []lc.Name{"shop", "bank", "going", "east"} {
		add(cluster, "same")
	}
	shop := instance("shop")
	if shop == nil || instance("shop") != shop {
		t.Error("a logical cluster's instance is not used again")
	}
	if bank := instance("bank"); bank == nil || bank == shop {
		t.Error("two logical clusters have one instance")
	}
	if instance("going") != nil {
		t.Error("webhooks have a say in the deletion of a logical cluster")
	}
	if instance("east") != nil {
		t.Error("webhooks have a say in a mirror")
	}
	add("bank", "another")
	if instance("shop") != shop {
		t.Error("a change elsewhere makes an instance anew")
	}
	add("shop", "another")
	changed := instance("shop")
	if changed == shop {
		t.Error("an instance outlives a change")
	}
	for _, name := range []string{"same", "another"} {
		if err := store.Delete(webhookIn("shop", name, "")); err != nil {
			t.Fatal(err)
		}
	}
	if instance("shop") != nil {
		t.Error("webhooks are called that are gone")
	}
	if instance("bank") == nil {
		t.Error("webhooks of another logical cluster are gone, too")
	}

	for i := range maxInstances + 100 {
		add(lc.Name(fmt.Sprintf("busy%d", i)), "same")
		instance(fmt.Sprintf("busy%d", i))
	}
	if d.instances.Len() != maxInstances {
		t.Errorf("%d instances, want at most %d", d.instances.Len(), maxInstances)
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
	// A list after a lost watch may be without what went meanwhile.
	if err := store.Replace([]any{webhookIn("bank", "same", "https://webhook.invalid/")}, "9"); err != nil {
		t.Fatal(err)
	}
	if instance("busy1") != nil || instance("bank") == nil {
		t.Error("a new list is not what there is")
	}
}

// What the server alone writes, no webhook hears of.
func TestSystemStateIsNotConfigured(t *testing.T) {
	for _, tc := range []struct {
		group, resource, subresource string
		want                         bool
	}{
		{"placement.atoll.dev", "placements", "", true},
		{"placement.atoll.dev", "placementpolicies", "", false},
		{"core.kcp.io", "logicalclusters", "", true},
		{"tenancy.kcp.io", "workspaces", "", false},
		{"tenancy.kcp.io", "workspaces", "status", true},
		{"workload.kcp.io", "synctargets", "status", true},
		{"apps", "deployments", "status", false},
	} {
		a := what{group: tc.group, resource: tc.resource, subresource: tc.subresource, operation: admission.Update}.attributes()
		if got := isSystemState(a); got != tc.want {
			t.Errorf("%s/%s/%s: %t, want %t", tc.group, tc.resource, tc.subresource, got, tc.want)
		}
	}
}

// TestConnectionsToWebhooks: fifty logical clusters with a webhook each have a connection each, used again; and none where
// webhooks may not be.
func TestConnectionsToWebhooks(t *testing.T) {
	var calls, connections atomic.Int64
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		calls.Add(1)
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	hook.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	hook.StartTLS()
	defer hook.Close()
	const clusters, times = 50, 3
	configurations := configurationsOf(t, nil)
	store := &configurationStore{configurations, validatingWebhooks}
	loopback := webhooks.NewCaller(webhooks.Addresses{Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	o := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	for _, tc := range []struct {
		caller             *webhooks.Caller
		calls, connections int64
	}{
		{webhooks.NewCaller(webhooks.Addresses{}), 0, 0},
		{loopback, clusters * times, clusters},
	} {
		d := validatingPluginOf(t, configurations, nil, tc.caller)
		for i := range clusters {
			cluster := lc.Name(fmt.Sprintf("busy%d", i))
			configuration := webhookIn(cluster, "same", hook.URL)
			configuration.Webhooks[0].ClientConfig.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
			if err := store.Add(configuration); err != nil {
				t.Fatal(err)
			}
			for range times {
				ctx := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: cluster})
				if err := d.Validate(ctx, aConfigMap.attributes(), o); (err == nil) != (tc.calls > 0) {
					t.Fatal(err)
				}
			}
		}
		if calls.Load() != tc.calls || connections.Load() != tc.connections {
			t.Errorf("%d calls by %d connections, want %d by %d", calls.Load(), connections.Load(), tc.calls, tc.connections)
		}
	}
}

func TestOwnCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwnCalls()
		var done []func()
		begin := func(cluster lc.Name, want bool) {
			t.Helper()
			start := time.Now()
			end, err := o.begin(t.Context(), cluster)
			if (err == nil) != want {
				t.Fatalf("%s after %d: %v", cluster, len(done), err)
			}
			if err == nil {
				done = append(done, end)
			} else if waited := time.Since(start); waited != turnWithin {
				t.Errorf("waited %s for a turn, want %s", waited, turnWithin)
			}
		}
		for range maxOwnCallsOfCluster {
			begin("shop", true)
		}
		begin("shop", false)
		for range maxOwnCalls - maxOwnCallsOfCluster {
			begin("bank", true)
		}
		begin("other", false)
		var late sync.WaitGroup
		late.Go(func() {
			end, err := o.begin(t.Context(), "shop")
			if err != nil {
				t.Errorf("one that waits for its turn: %v", err)
				return
			}
			end()
		})
		synctest.Wait()
		done[0]()
		late.Wait()
		for _, end := range done[1:] {
			end()
		}
		if o.all != 0 || len(o.of) != 0 {
			t.Errorf("%d calls of %v after the last one", o.all, o.of)
		}
	})
}
