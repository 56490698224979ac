package main

import (
	"errors"
	"strings"
	"testing"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
)

func TestEtcdOptions(t *testing.T) {
	servers := func(urls ...string) embeddedetcd.ExternalOptions {
		return embeddedetcd.ExternalOptions{Endpoints: urls}
	}
	for name, test := range map[string]struct {
		given embeddedetcd.ExternalOptions
		wants string // in the error; "" means valid
	}{
		"embedded":                {},
		"URLs":                    {given: servers("https://10.0.0.1:2379", "http://[2001:db8::1]:2379/")},
		"an address":              {given: servers("localhost:2379")},
		"a socket":                {given: servers("unix:///run/etcd.sock")},
		"a word":                  {given: servers("https://10.0.0.1:2379", "foo"), wants: `--etcd-servers "foo"`},
		"no port":                 {given: servers("https://10.0.0.1"), wants: `--etcd-servers "https://10.0.0.1"`},
		"no host":                 {given: servers("https://:2379"), wants: `--etcd-servers "https://:2379"`},
		"another protocol":        {given: servers("ftp://h:1"), wants: `--etcd-servers "ftp://h:1"`},
		"a CA of the embedded":    {given: embeddedetcd.ExternalOptions{CAFile: "ca"}, wants: `--etcd-cafile "ca"`},
		"a client certificate":    {given: embeddedetcd.ExternalOptions{CertFile: "c"}, wants: `--etcd-certfile "c"`},
		"a key of no certificate": {given: embeddedetcd.ExternalOptions{KeyFile: "k"}, wants: `--etcd-keyfile "k"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := errors.Join((&etcdOptions{external: test.given, quotaBytes: minQuotaBytes}).validate()...)
			if (err != nil) != (test.wants != "") || err != nil && !strings.Contains(err.Error(), test.wants) {
				t.Errorf("error %v, want %q", err, test.wants)
			}
		})
	}
}
