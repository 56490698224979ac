package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestListsAreServedFromCaches of a server with an etcd of its own process: one that takes no resourceVersion asks etcd for the newest, and waits
// for the watch cache, instead of reading all rows.
func TestListsAreServedFromCaches(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t, framework.StartEtcd(t).Flags()...)
	clients := a.Clients()
	in := client.In(t.Context(), framework.MakeWorkspace(t, clients, "root", "shop"))
	served := regexp.MustCompile(`(?m)^apiserver_watch_cache_consistent_read_total\{fallback="false",group="",resource="configmaps",success="true"\} (\d+)$`)
	fromCache := func() int {
		t.Helper()
		metrics, err := clients.Kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(client.In(t.Context(), "root"))
		if err != nil {
			t.Fatal(err)
		}
		m := served.FindSubmatch(metrics)
		if m == nil {
			return 0
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const lists = 10
	// What etcd can do is asked in the background.
	framework.Eventually(t, patience, "lists are served from the watch cache", func() string {
		before := fromCache()
		for range lists {
			list, err := clients.Kube.CoreV1().ConfigMaps("default").List(in, metav1.ListOptions{})
			if err != nil {
				return err.Error()
			}
			if len(list.Items) == 0 {
				return "kube-root-ca.crt is not there"
			}
		}
		if n := fromCache() - before; n < lists {
			return fmt.Sprintf("%d of %d lists are", n, lists)
		}
		return ""
	})
}
