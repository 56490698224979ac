package embeddedetcd_test

import (
	"context"
	"strings"
	"testing"
	"time"

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
	if one.Failed() != nil {
		t.Error("an external store has a server of ours that may fail")
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
			want:   []string{options.Endpoints[0], "certificate required"},
			reason: "whoever reaches the port reads every Secret",
		},
		"certificate of another authority": {
			change: func(o *embeddedetcd.ExternalOptions) { o.CertFile, o.KeyFile = strangerCert, strangerKey },
			want:   []string{options.Endpoints[0], "tls: "},
			reason: "its authority is not etcd's",
		},
		"server of another authority": {
			change: func(o *embeddedetcd.ExternalOptions) { o.CAFile = strangerCA },
			want:   []string{options.Endpoints[0], "unknown authority"},
			reason: "what answers may be anybody",
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
