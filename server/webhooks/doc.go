// Package webhooks is how this server calls the webhooks that workspaces name: conversion webhooks of
// CustomResourceDefinitions and admission webhooks. It reads and writes nothing else, and runs nothing.
//
// A workspace's admin chooses the URL, and the server stands in its operator's network, so what is called is looked at. What
// always holds of every connection:
//
//   - The address that a name resolved to is looked at when it is dialed (Addresses). Loopback and link-local addresses, where
//     the machine's own services and the metadata of clouds are, and addresses that are nobody's are refused unless the operator
//     allows them; he may refuse more, such as 10.0.0.0/8.
//   - Redirects are not followed, and no proxy of the environment is used.
//   - No credential of the server goes along, not even for kubernetes.default.svc, for which upstream would take those of the
//     Pod that the server is in.
//   - No more of an answer is read than one may need, and none is decompressed. It is weighed as it is read: what all answers take that
//     are read and unpacked at once is bounded, of a logical cluster and of all; beyond that a call fails, and the webhook's failure policy
//     says what then (answers.go, budget.go).
//
// A Service is reached in one of two ways (Way): where it names an address outside of the physical clusters, or EndpointSlices, or Endpoints, that people wrote do, there; and
// where its selector finds pods, through a port that their physical cluster forwards, to one of them by its UID. The addresses that such pods say they have are dialed by nobody. What the operator names himself, such as an authentication webhook, is not
// called through this package.
//
// Idle connections are few and short-lived, since who is called is chosen by tenants. When etcd is away this
// package goes on; Services cannot be read then.
package webhooks
