package server

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"atoll.dev/atoll/server/storage"
)

// oneRow is the installation's rows, of which there is one.
type oneRow struct {
	mu       sync.Mutex
	row      storage.InstallationRow
	contend  []byte // written by another server just before the first write
	attempts int
}

func (o *oneRow) ReadPlainInstallation(context.Context, string) (storage.InstallationRow, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.row, nil
}

func (o *oneRow) WritePlainInstallation(_ context.Context, _ string, value []byte, revision int64) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.attempts++
	if o.contend != nil {
		o.row, o.contend = storage.InstallationRow{Value: o.contend, Revision: o.row.Revision + 1}, nil
	}
	if o.row.Revision != revision {
		return false, nil
	}
	o.row = storage.InstallationRow{Value: value, Revision: revision + 1}
	return true, nil
}

func TestServersAgreeOnAuthorities(t *testing.T) {
	first := authorities{Clients: strings.Repeat("a", 64), Syncers: strings.Repeat("b", 64), Workspaces: strings.Repeat("d", 64)}
	row := func(clients, syncers, workspaces string) []byte {
		return fmt.Appendf(nil, `{"clients":%q,"syncers":%q,"workspaces":%q}`, clients, syncers, workspaces)
	}
	tests := map[string]struct {
		rows    *oneRow
		own     authorities
		refused bool
		reason  string
	}{
		"the first":           {&oneRow{}, first, false, "it says what the others must have"},
		"with the same":       {&oneRow{row: storage.InstallationRow{Value: row(first.Clients, first.Syncers, first.Workspaces), Revision: 4}}, first, false, "a copy"},
		"with another":        {&oneRow{row: storage.InstallationRow{Value: row(strings.Repeat("c", 64), first.Syncers, first.Workspaces), Revision: 4}}, first, true, "clients of one would be strangers to the other"},
		"syncers' differs":    {&oneRow{row: storage.InstallationRow{Value: row(first.Clients, "x", first.Workspaces), Revision: 4}}, first, true, "so would syncers"},
		"workspaces' differs": {&oneRow{row: storage.InstallationRow{Value: row(first.Clients, first.Syncers, "x"), Revision: 4}}, first, true, "so would those with a certificate of a workspace"},
		"both at once":        {&oneRow{contend: []byte(`{"clients":"x","syncers":"y"}`)}, first, true, "one of them was first"},
		"both at once, same":  {&oneRow{contend: row(first.Clients, first.Syncers, first.Workspaces)}, first, false, "and they agree"},
		"no JSON":             {&oneRow{row: storage.InstallationRow{Value: []byte("?"), Revision: 4}}, first, true, "nobody knows"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			wasThere := tc.rows.row.Value != nil || tc.rows.contend != nil
			isFirst, err := agreeOnAuthorities(t.Context(), tc.rows, tc.own, "/data/pki", false)
			if (err != nil) != tc.refused || isFirst == wasThere {
				t.Fatalf("error %v, want one: %v: %s; it is the first: %v", err, tc.refused, tc.reason, isFirst)
			}
			if err != nil {
				for _, want := range []string{"/data/pki", "syncers/ca.key", "workspaces/ca.key", "--replace-certificate-authorities", "replicas.md", "/atoll/installation/" + storage.AuthoritiesRow} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q lacks %q", err, want)
					}
				}
				if _, err := agreeOnAuthorities(t.Context(), tc.rows, tc.own, "/data/pki", true); err != nil {
					t.Errorf("to be replaced: %v", err)
				}
				if _, err := agreeOnAuthorities(t.Context(), tc.rows, tc.own, "/data/pki", false); err != nil {
					t.Errorf("replaced: %v", err)
				}
			}
		})
	}
}

// TestAuthoritiesOfBefore: a row without the authority of workspaces is taken over by one server, which the others must be like.
func TestAuthoritiesOfBefore(t *testing.T) {
	rows := &oneRow{row: storage.InstallationRow{Value: []byte(`{"clients":"a","syncers":"b"}`), Revision: 4}}
	if _, err := agreeOnAuthorities(t.Context(), rows, authorities{Clients: "a", Syncers: "b", Workspaces: "c"}, "/data/pki", false); err != nil || rows.row.Revision != 5 {
		t.Fatalf("the row is %+v, error %v, want it taken over", rows.row, err)
	}
	_, err := agreeOnAuthorities(t.Context(), rows, authorities{Clients: "a", Syncers: "b", Workspaces: "d"}, "/data/pki", false)
	if err == nil || !strings.Contains(err.Error(), "workspaces/ca.crt there is sha256:c, here it is sha256:d") {
		t.Errorf("another server with another authority of workspaces: %v", err)
	}
	contended := &oneRow{row: storage.InstallationRow{Value: []byte(`{"clients":"a","syncers":"b"}`), Revision: 4}, contend: []byte(`{"clients":"a","syncers":"b","workspaces":"c"}`)}
	if _, err := agreeOnAuthorities(t.Context(), contended, authorities{Clients: "a", Syncers: "b", Workspaces: "d"}, "/data/pki", false); err == nil {
		t.Error("both took it over at once")
	}
}

// TestEncryptedAuthoritiesAreWrittenInPlain: the row was encrypted once.
func TestEncryptedAuthoritiesAreWrittenInPlain(t *testing.T) {
	own := authorities{Clients: "a", Syncers: "b", Workspaces: "c"}
	rows := &oneRow{row: storage.InstallationRow{Value: []byte(`{"clients":"a","syncers":"b","workspaces":"c"}`), Revision: 4, Stale: true}}
	if _, err := agreeOnAuthorities(t.Context(), rows, own, "/data/pki", false); err != nil || rows.row.Revision != 5 || rows.row.Stale {
		t.Errorf("the row is %+v, error %v, want it written", rows.row, err)
	}
}

// TestAuthoritiesOfTheStore: a server whose authorities are gone makes no new ones for what is stored, unless it is told to.
func TestAuthoritiesOfTheStore(t *testing.T) {
	r := startServer(t, func(o *Options) { o.CompareAuthorities = true })
	must(t, r.stop())
	must(t, os.RemoveAll(r.options.pkiDirectory()))
	for range 2 { // also when it has made some
		_, err := New(t.Context(), r.options, r.data)
		if err == nil || !strings.Contains(err.Error(), "--replace-certificate-authorities") {
			t.Fatalf("error %v, want what to do", err)
		}
	}
	r.options.ReplaceAuthorities = true
	r = r.restart(t)
	r.options.ReplaceAuthorities = false
	r.restart(t)
}
