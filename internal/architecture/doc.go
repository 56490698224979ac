// Package architecture holds the rule of who may import whom, as a test: cmd and test import the components, the
// components import client, embedded-etcd and internal, those import apis, and nothing the other way or sideways.
package architecture
