package identity

import (
	"slices"
	"time"
)

const (
	// signingPeriod is how long a key signs.
	signingPeriod = 30 * 24 * time.Hour
	// announcement is how long before it signs a key is published: longer than other servers, and whoever verifies
	// tokens by the published keys, keep what they have read.
	announcement = 24 * time.Hour
	// skew is how much the clocks of servers on one etcd may differ.
	skew = 10 * time.Minute
)

// key is a signing key as stored.
type key struct {
	// Private is the private key, as PEM.
	Private []byte `json:"private"`
	// SignsFrom and SignsUntil are when tokens are signed with it.
	SignsFrom  time.Time `json:"signsFrom"`
	SignsUntil time.Time `json:"signsUntil"`
	// VerifiesUntil is when the last token that it signed has ended.
	VerifiesUntil time.Time `json:"verifiesUntil"`
	// Bases are of the issuers of what it signs or signed, in order: the URLs that servers had meanwhile.
	Bases []string `json:"bases,omitempty"`
}

// rotate returns the keys that there should be now: without those of which no token can be valid for long, and with a new
// one where the newest will soon stop signing. One server does so for all, and its clock may be wrong: a key is kept for as long
// again as it was of use, and one that begins to sign later than it would have been published for keeps nobody from making the
// next. longest is how long a token may be valid, and base the URL in its issuer; servers that differ in them, or one that was
// restarted with others, only ever add to what a key verifies. generate makes a private key.
//
// It is pure but for generate, and gives the same again for what it gave.
func rotate(keys []key, now time.Time, longest time.Duration, base string, generate func() ([]byte, error)) ([]key, error) {
	var next []key
	for _, k := range keys {
		if now.After(k.VerifiesUntil.Add(k.VerifiesUntil.Sub(k.SignsFrom))) {
			continue
		}
		if now.Before(k.SignsUntil.Add(skew)) {
			if needed := k.SignsUntil.Add(longest + skew); needed.After(k.VerifiesUntil) {
				k.VerifiesUntil = needed
			}
			k.Bases = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(k.Bases), base))))
		}
		next = append(next, k)
	}
	slices.SortStableFunc(next, func(a, b key) int { return a.SignsFrom.Compare(b.SignsFrom) })
	// Where nothing signs there is nobody to wait for, and a server whose clock is behind must be able to sign as well.
	from := now.Add(-skew)
	due := slices.IndexFunc(next, func(k key) bool { return k.SignsFrom.After(now.Add(announcement + skew)) })
	if due < 0 {
		due = len(next)
	}
	if due > 0 {
		newest := next[due-1]
		if now.Before(newest.SignsUntil.Add(-announcement)) {
			return next, nil
		}
		if now.Before(newest.SignsUntil) {
			from = newest.SignsUntil
		}
	}
	private, err := generate()
	if err != nil {
		return nil, err
	}
	until := from.Add(signingPeriod)
	return slices.Insert(next, due, key{Private: private, SignsFrom: from, SignsUntil: until, VerifiesUntil: until.Add(longest + skew), Bases: []string{base}}), nil
}

// signer returns which of the keys, in the order of rotate, signs now; -1 if none does.
func signer(keys []key, now time.Time) int {
	for i, k := range slices.Backward(keys) {
		if !now.Before(k.SignsFrom) {
			if now.Before(k.SignsUntil.Add(skew)) {
				return i
			}
			break
		}
	}
	return -1
}
