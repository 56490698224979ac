package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"time"
)

// trustTimeout bounds a look at a server's certificate.
const trustTimeout = 5 * time.Second

// distrust returns why who trusts the authorities ca (PEM; those of the system if empty) would not talk to the server at
// an address, "" if it would. Where nothing answers, which says little about other networks, the certificate that
// the server shows at base has to be for the address' host; nothing is wrong where that does not answer either.
func distrust(ctx context.Context, address, base string, ca []byte) string {
	at, host := hostPort(address)
	config := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(ca)
	}
	_, err := certificateAt(ctx, at, config)
	if wrong := (*tls.CertificateVerificationError)(nil); errors.As(err, &wrong) {
		return wrong.Err.Error()
	}
	if err == nil {
		return ""
	}
	at, _ = hostPort(base)
	// Nothing is sent; the certificate is compared with another name than the one dialled.
	shown, err := certificateAt(ctx, at, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if err != nil {
		return ""
	}
	if err := shown.VerifyHostname(host); err != nil {
		return err.Error()
	}
	return ""
}

// certificateAt returns what the server at host:port shows.
func certificateAt(ctx context.Context, at string, config *tls.Config) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, trustTimeout)
	defer cancel()
	connection, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// hostPort returns where a URL is dialled, and its host alone.
func hostPort(address string) (at, host string) {
	u, err := url.Parse(address)
	if err != nil {
		return "", ""
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port), u.Hostname()
}
