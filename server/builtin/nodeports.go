package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/registry/rest"

	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
)

// NodePorts holds one exclusive row per taken port of the context's logical cluster. A row's value is opaque to it.
type NodePorts interface {
	// Claim makes port's row with value holder. won is false if there is one, whatever its value.
	Claim(ctx context.Context, port int, holder string) (won bool, err error)
	// Holder returns the value of port's row, read from etcd; held is false if there is none.
	Holder(ctx context.Context, port int) (holder string, held bool, err error)
	// Release removes port's row if its value is holder, in one step, and otherwise does nothing.
	Release(ctx context.Context, port int, holder string) error
}

// portHolder is the value of a row. No two are equal, so that Release removes the very row that was judged.
type portHolder struct {
	owner
	ClaimedAt time.Time `json:"claimedAt"`
	Nonce     string    `json:"nonce"`
}

// ports locks node ports with rows of the context's logical cluster.
type ports struct {
	portRange utilnet.PortRange
	rows      NodePorts
	services  rest.Getter
	now       func() time.Time
}

// reserved is how many ports at the low end are taken only when the others are; upstream's formula.
func (p *ports) reserved() int { return int(staticBand(uint32(p.portRange.Size), 32, 16, 128)) }

// claim locks port for o: portallocator.ErrAllocated if it is taken.
func (p *ports) claim(ctx context.Context, port int, o owner) error {
	if !p.portRange.Contains(port) {
		return &portallocator.ErrNotInRange{ValidPorts: p.portRange.String()}
	}
	if won, err := p.create(ctx, port, o); won || err != nil {
		return err
	}
	free, err := p.dropStale(ctx, port)
	if err != nil {
		return err
	}
	if free {
		if won, err := p.create(ctx, port, o); won || err != nil {
			return err
		}
	}
	return portallocator.ErrAllocated
}

// claimAny locks a free port for o: portallocator.ErrFull if there is none.
func (p *ports) claimAny(ctx context.Context, o owner) (int, error) {
	low, size := p.portRange.Base+p.reserved(), p.portRange.Size-p.reserved()
	// One after the other from a random point on, the reserved band last: among few Services the first try wins.
	start := rand.IntN(size)
	candidates := make([]int, 0, p.portRange.Size)
	for i := range size {
		candidates = append(candidates, low+(start+i)%size)
	}
	for port := p.portRange.Base; port < low; port++ {
		candidates = append(candidates, port)
	}
	for _, port := range candidates {
		if won, err := p.create(ctx, port, o); won || err != nil {
			return port, err
		}
	}
	for _, port := range candidates {
		if err := p.claim(ctx, port, o); err != portallocator.ErrAllocated {
			return port, err
		}
	}
	return 0, portallocator.ErrFull
}

// held says whether port has a row; for dry runs.
func (p *ports) held(ctx context.Context, port int) (bool, error) {
	_, held, err := p.rows.Holder(ctx, port)
	return held, err
}

// release gives port back if it is locked for o.
func (p *ports) release(ctx context.Context, port int, o owner) error {
	row, held, err := p.rows.Holder(ctx, port)
	if err != nil || !held {
		return err
	}
	holder, err := parseHolder(row)
	if err != nil {
		return fmt.Errorf("node port %d: %w", port, err)
	}
	if holder.owner != o {
		return nil
	}
	return p.rows.Release(ctx, port, row)
}

// dropStale removes the lock of port if its Service does not hold it and it is old, and says whether port may be free now.
func (p *ports) dropStale(ctx context.Context, port int) (bool, error) {
	row, held, err := p.rows.Holder(ctx, port)
	if err != nil {
		return false, err
	}
	if !held {
		return true, nil
	}
	holder, err := parseHolder(row)
	if err != nil {
		return false, fmt.Errorf("node port %d: %w", port, err)
	}
	if p.now().Sub(holder.ClaimedAt) < staleAfter {
		return false, nil
	}
	svc, err := readService(ctx, p.services, holder.Namespace, holder.Name)
	if err != nil {
		return false, err
	}
	// A Service of the same name and another UID has locks of its own.
	if svc != nil && svc.UID == holder.UID && holdsPort(svc, port) {
		return false, nil
	}
	return true, p.rows.Release(ctx, port, row)
}

func (p *ports) create(ctx context.Context, port int, o owner) (bool, error) {
	row, err := json.Marshal(portHolder{owner: o, ClaimedAt: p.now().UTC(), Nonce: string(uuid.NewUUID())})
	if err != nil {
		return false, err
	}
	return p.rows.Claim(ctx, port, string(row))
}

func parseHolder(row string) (portHolder, error) {
	var h portHolder
	if err := json.Unmarshal([]byte(row), &h); err != nil {
		return portHolder{}, fmt.Errorf("row of a lock: %w", err)
	}
	return h, nil
}

func holdsPort(svc *api.Service, port int) bool {
	if int(svc.Spec.HealthCheckNodePort) == port {
		return true
	}
	for i := range svc.Spec.Ports {
		if int(svc.Spec.Ports[i].NodePort) == port {
			return true
		}
	}
	return false
}
