package main

import (
	"context"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// startEtcd starts a single member on a free loopback port, reachable with the apiserver's certificate only, and
// returns its client URL.
func startEtcd(ctx context.Context, parts *parts, o *options, p pki) (string, error) {
	loopback := url.URL{Scheme: "https", Host: "127.0.0.1:0"}
	tls := transport.TLSInfo{
		CertFile:       p.cert("etcd"),
		KeyFile:        p.key("etcd"),
		TrustedCAFile:  p.cert(etcdCA),
		ClientCertAuth: true,
	}
	c := embed.NewConfig()
	c.Name = "default" // part of the data: a later start must use the same
	c.Dir = o.path("etcd")
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{loopback}, []url.URL{loopback}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{loopback}, []url.URL{loopback}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ClientTLSInfo, c.PeerTLSInfo = tls, tls
	c.EnableGRPCGateway = false // it would dial port 0
	c.LogLevel = "warn"
	c.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration // 0 logs every request
	c.LogOutputs = []string{"stderr"}
	// What fsync protects from is a crash of the machine, which ends a development cluster's usefulness anyway;
	// its cost is most of the latency of a write.
	c.UnsafeNoFsync = !o.etcdFsync
	// Raft keeps the last entries in memory for followers. There are none.
	c.SnapshotCount, c.SnapshotCatchUpEntries = 1000, 100

	server, err := embed.StartEtcd(c)
	if err != nil {
		return "", err
	}
	parts.add("etcd", func(ctx context.Context) error {
		defer server.Close()
		select {
		case err := <-server.Err():
			return err
		case <-ctx.Done():
			return nil
		}
	})
	select {
	case <-server.Server.ReadyNotify():
		return "https://" + server.Clients[0].Addr().String(), nil
	case <-ctx.Done():
		return "", fmt.Errorf("wait for the member to serve: %w", context.Cause(ctx))
	}
}
