package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"time"

	"atoll.dev/atoll/internal/backupfile"
)

// answersWithin is how long a server that still runs has to begin TLS. One that is stopped refuses at once; an address that swallows
// packets costs as much.
const answersWithin = 3 * time.Second

// gone returns an error if the server that was backed up still answers at its address, which is said to be where it was: if who
// listens there has a certificate of the authority that is in the backup. Of one that listens elsewhere, or cannot be
// reached from here, nothing can be known.
func gone(ctx context.Context, address string, keys []backupfile.Key) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil // a backup of a server that did not run
	}
	authority := x509.NewCertPool()
	for _, k := range keys {
		if k.Name == "ca.crt" {
			authority.AppendCertsFromPEM(k.Data)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: "localhost", // under which a server shows what its own authority signed, whatever --tls-cert-file holds
		// The name does not matter, only whose the certificate is: VerifyConnection asks that.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: authority, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
			return err
		},
	}}
	conn, err := dialer.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil // nobody, or somebody else
	}
	defer conn.Close()
	return fmt.Errorf("the server that was backed up still runs at %s: stop it first. Two of one installation would both write to its physical clusters, and each undo what the other does", address)
}
