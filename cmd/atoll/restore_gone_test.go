package main

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"

	"atoll.dev/atoll/internal/backupfile"
	"atoll.dev/atoll/server"
)

// TestRestoreBesideTheServer: whose directory was moved away while it runs, still runs.
func TestRestoreBesideTheServer(t *testing.T) {
	// listen serves TLS with the certificate of another authority each time, and returns its address and that authority.
	listen := func() (address string, ca []byte, stop func() error) {
		o := server.NewOptions()
		o.RootDirectory = t.TempDir()
		files, err := server.EtcdTLS(o)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		ca, err = os.ReadFile(filepath.Join(o.RootDirectory, "pki", "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func(conn net.Conn) {
					defer conn.Close()
					_ = conn.(*tls.Conn).Handshake() // the client says how it went
				}(conn)
			}
		}()
		return "https://" + l.Addr().String(), ca, l.Close
	}
	address, ca, stop := listen()
	other, _, _ := listen()
	keys := []backupfile.Key{{Name: "ca.crt", Data: ca}}
	for name, tc := range map[string]struct {
		reason, address string
		runs            bool
	}{
		"itself":        {"it would go on writing", address, true},
		"somebody else": {"the address is another installation's now", other, false},
		"no address":    {"the backup is of a server that did not run", "", false},
	} {
		err := gone(t.Context(), tc.address, keys)
		if tc.runs {
			refuses(t, name+": "+tc.reason, err, "still runs at "+address, "stop it first")
		} else if err != nil {
			t.Errorf("%s: %v: %s", name, err, tc.reason)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := gone(t.Context(), address, keys); err != nil {
		t.Errorf("stopped: %v", err)
	}
}
