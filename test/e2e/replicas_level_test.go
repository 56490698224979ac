package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/test/framework"
)

const (
	// levelRow says which servers may lead.
	levelRow = "/atoll/installation/level"
	// overForGood is what a server logs that will lead no more.
	overForGood = "Runs no controllers any more"
)

// longDefinition is a definition of a kind with many fields.
func longDefinition(plural string) string {
	fields := &strings.Builder{}
	for i := range 100 {
		fmt.Fprintf(fields, "          field%d: {type: string, description: What a person says.}\n", i)
	}
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: %[1]s, kind: %[1]s}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
%[2]s`, plural, fields)
}

// TestLevelOfTheInstallation: a server begins at data of before levels, and raises the level to its own. One that runs while a later version
// raises it runs no controllers from then on, and serves; it does not start any more, and says what to do. Definitions are compressed by who
// began the installation, and by who found it at a level whose servers all read them.
func TestLevelOfTheInstallation(t *testing.T) {
	t.Parallel()
	store := framework.StartEtcd(t)
	file := func(name string) string { return filepath.Join(store.Dir, "pki", name) }
	etcd, err := embeddedetcd.Connect(t.Context(), embeddedetcd.ExternalOptions{
		Endpoints: []string{store.URL}, CAFile: file("etcd-ca.crt"), CertFile: file("apiserver-etcd-client.crt"), KeyFile: file("apiserver-etcd-client.key"),
	})
	must(t, err)
	defer func() { must(t, etcd.Stop()) }()
	a := framework.StartAtoll(t, store.Flags()...)
	r := &replicas{t: t, servers: []*framework.Atoll{a}, clients: []*client.Clients{a.Clients()}}
	r.led(0)
	define := func(plural string, compressed bool) {
		t.Helper()
		a.MustRunWithInput(longDefinition(plural), "kubectl", "create", "-f", "-")
		got, err := etcd.Client.Get(t.Context(), "/registry/apiextensions.k8s.io/customresourcedefinitions/root/"+plural+".stable.example.com")
		if err != nil || len(got.Kvs) != 1 || strings.HasPrefix(string(got.Kvs[0].Value), "{") == compressed {
			t.Errorf("definition %s is %.60q, error %v, want it compressed: %v", plural, got.Kvs, err, compressed)
		}
	}
	define("firsts", true)

	a.Stop()
	if gone, err := etcd.Client.Delete(t.Context(), levelRow); err != nil || gone.Deleted != 1 {
		t.Fatalf("%d rows %s were there, error %v", gone.Deleted, levelRow, err)
	}
	a.Start()
	r.led(0)
	is := func(want string) {
		t.Helper()
		got, err := etcd.Client.Get(t.Context(), levelRow)
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != want {
			t.Errorf("the level is %v, error %v, want %s", got, err, want)
		}
	}
	is(strconv.Itoa(server.Level))
	define("seconds", false)
	a.Stop()
	a.Start()
	r.led(0)
	define("thirds", true)

	later := strconv.Itoa(server.Level + 1)
	_, err = etcd.Client.Put(t.Context(), levelRow, later)
	must(t, err)
	framework.Eventually(t, patience, "its controllers have ended", func() string {
		if log := a.Log(); !strings.Contains(log, termOver) || !strings.Contains(log, overForGood) {
			return "it does not say so"
		}
		return ""
	})
	clearError(t, a.Log(), "a server that runs below the level", overForGood, "a later version of Atoll", "level "+later)
	framework.Eventually(t, patience, "the Lease is given back", func() string {
		if holder, err := r.holder(0); err != nil || holder != "" {
			return holder + " holds it, error " + problemOf(err)
		}
		return ""
	})
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "served"}}
	must(t, r.clients[0].Objects.Create(client.In(t.Context(), "root"), namespace))
	if text := readyzText(t, a); text != "" {
		t.Errorf("/readyz says %q", text)
	}
	is(later)

	a.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, framework.Binary(t), append([]string{"start", "--root-directory=" + a.Dir, "--secure-port=0"}, store.Flags()...)...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
		t.Errorf("a server below the level ended with %v, want an exit code:\n%s", err, out)
	}
	clearError(t, string(out), "a server below the level", "a later version of Atoll", "level "+later, "start that version again", "replicas.md")
	is(later)
}
