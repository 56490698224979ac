package endpoints

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"atoll.dev/atoll/client"
)

const (
	// toldAgain is after how long the same is told again of a Service, and toldOtherwise after how long it is told in other words, such as with another number.
	toldAgain     = 5 * time.Minute
	toldOtherwise = time.Minute
	// rememberedNews is of how many Services and reasons it is known what was told last.
	rememberedNews = 4096
)

// news tells of Services, and not the same at each look.
type news struct {
	events *client.Events
	clock  clock.PassiveClock

	mu   sync.Mutex // guards last
	last *lru.Cache // said → *toldAt
}

type said struct {
	service client.Key
	reason  string
}

type toldAt struct {
	message string
	at      time.Time
}

func newNews(events *client.Events, clk clock.PassiveClock) *news {
	return &news{events: events, clock: clk, last: lru.New(rememberedNews)}
}

// tell puts warnings about a Service into the logical cluster of ctx.
func (n *news) tell(ctx context.Context, service *corev1.Service, all []event) {
	for _, e := range all {
		if n.isNew(client.KeyOf(service), e) {
			n.events.Tell(ctx, service, corev1.EventTypeWarning, e.reason, e.message)
		}
	}
}

func (n *news) isNew(service client.Key, e event) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	key, now := said{service, e.reason}, n.clock.Now()
	if was, ok := n.last.Get(key); ok {
		before := was.(*toldAt)
		patience := toldAgain
		if before.message != e.message {
			patience = toldOtherwise
		}
		if since := now.Sub(before.at); since >= 0 && since < patience {
			return false
		}
	}
	n.last.Add(key, &toldAt{e.message, now})
	return true
}
