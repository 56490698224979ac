package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// startEtcd starts a member, alone unless the options name others, reachable with the apiserver's certificate only, and
// returns its client URL once it serves, which takes most of the others.
func startEtcd(ctx context.Context, parts *parts, o *options, p pki) (string, error) {
	at := func(port int) []url.URL {
		return []url.URL{{Scheme: "https", Host: net.JoinHostPort(o.etcdAddress.String(), strconv.Itoa(port))}}
	}
	tls := transport.TLSInfo{
		CertFile:       p.cert("etcd"),
		KeyFile:        p.key("etcd"),
		TrustedCAFile:  p.cert(etcdCA),
		ClientCertAuth: true,
	}
	c := embed.NewConfig()
	c.Name = o.etcdMember
	c.Dir = o.path("etcd")
	c.ListenClientUrls, c.AdvertiseClientUrls = at(o.etcdClientPort), at(o.etcdClientPort)
	c.ListenPeerUrls, c.AdvertisePeerUrls = at(o.etcdPeerPort), at(o.etcdPeerPort)
	if c.InitialCluster = o.etcdCluster; c.InitialCluster == "" {
		c.InitialCluster = c.InitialClusterFromName(c.Name)
	}
	c.ClientTLSInfo, c.PeerTLSInfo = tls, tls
	c.EnableGRPCGateway = false // it would dial port 0
	c.LogLevel = "warn"
	c.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration // 0 logs every request
	c.LogOutputs = []string{"stderr"}
	// What fsync protects from is a crash of the machine, which ends a development cluster's usefulness anyway;
	// its cost is most of the latency of a write.
	c.UnsafeNoFsync = !o.etcdFsync
	c.QuotaBackendBytes = o.etcdQuotaBytes
	// Raft keeps the last entries in memory for followers: there are none, or they take a snapshot.
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
