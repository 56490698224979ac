package embeddedetcd_test

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/embedded-etcd/etcdtest"
)

func TestConnect(t *testing.T) {
	inside, options := etcdtest.StartTLS(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	one, two := etcdtest.Connect(t, options), etcdtest.Connect(t, options)
	if _, err := one.Client.Put(ctx, "/registry/things/a", "1"); err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]*embeddedetcd.Etcd{"the other": two, "the one inside": inside} {
		got, err := client.Client.Get(ctx, "/registry/things/a")
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
			t.Errorf("%s client reads %v, %v", name, got, err)
		}
	}
	for name, client := range map[string]*embeddedetcd.Etcd{"one": one, "two": two, "the one inside": inside} {
		select {
		case err := <-client.Failed():
			t.Errorf("%s failed: %v", name, err)
		default:
		}
	}

	// A client that is stopped stays stopped, and the store goes on.
	if err := one.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := one.Stop(); err != nil {
		t.Error("second Stop:", err)
	}
	if _, err := two.Client.Get(ctx, "/registry/things/a"); err != nil {
		t.Error(err)
	}
}

func TestConnectRefusals(t *testing.T) {
	inside, options := etcdtest.StartTLS(t)
	strangerCert, strangerKey, strangerCA := etcdtest.Certificates(t)
	tests := map[string]struct {
		change func(*embeddedetcd.ExternalOptions)
		want   []string
		reason string
	}{
		"nothing to connect to": {
			change: func(o *embeddedetcd.ExternalOptions) { o.Endpoints = nil },
			want:   []string{"no endpoints"},
			reason: "an empty list would wait for ever",
		},
		"no certificate": {
			change: func(o *embeddedetcd.ExternalOptions) { o.CertFile, o.KeyFile = "", "" },
			want:   []string{options.Endpoints[0], "no client certificate is given"},
			reason: "whoever reaches the port reads every Secret",
		},
		"certificate of another authority": {
			change: func(o *embeddedetcd.ExternalOptions) { o.CertFile, o.KeyFile = strangerCert, strangerKey },
			want:   []string{options.Endpoints[0]}, // whether the refusal or the broken connection is seen first is chance
			reason: "its authority is not etcd's",
		},
		"server of another authority": {
			change: func(o *embeddedetcd.ExternalOptions) { o.CAFile = strangerCA },
			want:   []string{options.Endpoints[0], "unknown authority"},
			reason: "what answers may be anybody",
		},
		"nobody there": {
			change: func(o *embeddedetcd.ExternalOptions) {
				*o = embeddedetcd.ExternalOptions{Endpoints: []string{"http://127.0.0.1:1"}}
			},
			want:   []string{"connect to etcd at http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused: is it running there?"},
			reason: "port 1 is nobody's",
		},
		"no such file": {
			change: func(o *embeddedetcd.ExternalOptions) { o.CAFile = "/does/not/exist" },
			want:   []string{options.Endpoints[0], "/does/not/exist"},
			reason: "the file is named",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			o := options
			tc.change(&o)
			etcd, err := embeddedetcd.Connect(ctx, o)
			if err == nil {
				etcd.Stop()
				t.Fatal(tc.reason)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "desc =") || strings.Contains(err.Error(), "context ") {
				t.Errorf("error %q is in gRPC's words", err)
			}
		})
	}

	t.Run("not waited for", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o := options
		o.CAFile = strangerCA
		ended := make(chan error, 1)
		go func() {
			_, err := embeddedetcd.Connect(ctx, o)
			ended <- err
		}()
		cancel()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), o.Endpoints[0]) {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Connect goes on 10 s after its context was cancelled")
		}
	})

	if _, err := inside.Client.Put(t.Context(), "/atoll/format", `{"version":7}`); err != nil {
		t.Fatal(err)
	}
	if _, err := embeddedetcd.Connect(t.Context(), options); err == nil || !strings.Contains(err.Error(), "version 7") {
		t.Errorf("a store of a newer format: %v", err)
	}
}

// A running process hears of it when another gives the store another format, whichever way it has opened the store.
func TestFormatHoldsWhileRunning(t *testing.T) {
	for name, change := range map[string]func(*clientv3.Client) error{
		"migrated": func(c *clientv3.Client) error {
			_, err := c.Put(t.Context(), "/atoll/format", `{"version":2}`)
			return err
		},
		"migrating": func(c *clientv3.Client) error {
			_, err := c.Put(t.Context(), "/atoll/format", `{"version":1,"to":2}`)
			return err
		},
		"removed": func(c *clientv3.Client) error { _, err := c.Delete(t.Context(), "/atoll/format"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			inside, options := etcdtest.StartTLS(t)
			old := etcdtest.Connect(t, options)
			newer := etcdtest.Connect(t, options)
			// The same again is what every replica writes at its start.
			if _, err := newer.Client.Put(t.Context(), "/atoll/format", `{"version":1}`); err != nil {
				t.Fatal(err)
			}
			if err := change(newer.Client); err != nil {
				t.Fatal(err)
			}
			for who, etcd := range map[string]*embeddedetcd.Etcd{"external": old, "embedded": inside} {
				select {
				case err := <-etcd.Failed():
					if err == nil || !strings.Contains(err.Error(), "/atoll/format") || !strings.Contains(err.Error(), "newer binary") {
						t.Errorf("%s: %v, want an error that says what changed", who, err)
					}
				case <-time.After(20 * time.Second):
					t.Errorf("%s goes on for 20 s", who)
				}
			}
			if etcd, err := embeddedetcd.Connect(t.Context(), options); name != "removed" && err == nil {
				etcd.Stop()
				t.Error("an old binary starts on it")
			}
		})
	}
}
