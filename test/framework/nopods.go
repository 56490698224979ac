package framework

import (
	"context"
	"errors"
	"net"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NoPods are what a server in the process of a test is joined to where no pods run.
type NoPods struct{}

var errNoPods = errors.New("no pods run here")

// Reach finds nothing.
func (NoPods) Reach(context.Context, metav1.Object) (func() net.Conn, error) { return nil, errNoPods }

// Hold takes no connection.
func (NoPods) Hold(context.Context, logicalcluster.Name, net.Conn) error { return errNoPods }

// Holds says no.
func (NoPods) Holds(logicalcluster.Name) bool { return false }
