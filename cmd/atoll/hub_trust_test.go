package main

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestDistrust(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that the client gives up
	server.StartTLS()                                   // its certificate is for example.com, 127.0.0.1 and ::1
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	localhost := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	const nobody = "https://127.0.0.1:1"
	for _, tc := range []struct {
		reason, address, base string
		ca                    []byte
		want                  string
	}{
		{reason: "it answers, with a certificate for its address", address: server.URL, base: nobody, ca: ca},
		{reason: "it answers, and its certificate is for others", address: localhost, base: server.URL, ca: ca, want: "localhost"},
		{reason: "its authority is not in the manifest", address: server.URL, base: server.URL, want: "unknown authority"},
		{reason: "it is not reached from here, but its certificate is for the host", address: "https://127.0.0.1:1", base: server.URL, ca: ca},
		{reason: "it is not reached from here, and its certificate is for others", address: "https://127.0.0.2:1", base: server.URL, ca: ca, want: "127.0.0.2"},
		{reason: "nothing can be known here", address: "https://127.0.0.2:1", base: nobody, ca: ca},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			got := distrust(t.Context(), tc.address, tc.base, tc.ca)
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("distrust = %q, want %q", got, tc.want)
			}
		})
	}
}
