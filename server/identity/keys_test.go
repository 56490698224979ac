package identity

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	testingclock "k8s.io/utils/clock/testing"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// oneRow is the etcd of the tests.
type oneRow struct {
	mu    sync.Mutex
	row   storage.InstallationRow
	down  error
	reads int
	lose  func() // what another server does before the next write
}

func (r *oneRow) ReadInstallation(context.Context, string) (storage.InstallationRow, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	return r.row, r.down
}

func (r *oneRow) WriteInstallation(_ context.Context, _ string, value []byte, revision int64) (bool, error) {
	if lose := r.lose; lose != nil {
		r.lose = nil
		lose()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down != nil || revision != r.row.Revision {
		return false, r.down
	}
	r.row = storage.InstallationRow{Value: bytes.Clone(value), Revision: revision + 1}
	return true, nil
}

// atHome are the issuers of the tests.
var atHome = Issuers{bases: []string{"https://atoll"}}

func open(t *testing.T, rows Rows, c *testingclock.FakePassiveClock) *Keys {
	t.Helper()
	return openAs(t, atHome, rows, c)
}

func openAs(t *testing.T, issuers Issuers, rows Rows, c *testingclock.FakePassiveClock) *Keys {
	t.Helper()
	k, err := OpenKeys(t.Context(), rows, issuers, day, c)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func ids(t *testing.T, k *Keys) string {
	t.Helper()
	var all []string
	for _, p := range k.GetPublicKeys(t.Context(), "") {
		all = append(all, p.KeyID)
	}
	return strings.Join(all, " ")
}

// Two servers that find no keys, at the same moment, have the same afterwards.
func TestFirstKeysAreOne(t *testing.T) {
	rows, c := &oneRow{}, testingclock.NewFakePassiveClock(start)
	var other *Keys
	rows.lose = func() { other = open(t, rows, c) }
	first := open(t, rows, c)
	if ids(t, first) != ids(t, other) || strings.Contains(ids(t, first), " ") {
		t.Errorf("one server has the keys %q, the other %q, want one key", ids(t, first), ids(t, other))
	}
}

// What one server rotates another uses: a token of a key that it has not read yet makes it read, and no more than once a
// second.
func TestServersAgree(t *testing.T) {
	rows, c := &oneRow{}, testingclock.NewFakePassiveClock(start)
	a, b := open(t, rows, c), open(t, rows, c)
	c.SetTime(start.Add(signingPeriod - announcement)) // both have read long ago
	published := ids(t, a)
	if len(strings.Fields(published)) != 2 {
		t.Fatalf("the keys are %q, want the next one as well", published)
	}
	if got := ids(t, b); got != published {
		t.Errorf("the other server has %q, want %q", got, published)
	}
	// The row is replaced, as after a deletion, and b has just read it.
	rows.row = storage.InstallationRow{}
	d := open(t, rows, c)
	if got := b.GetPublicKeys(t.Context(), ids(t, d)); len(got) != 1 {
		t.Errorf("a server does not find the key that another has just made: %v", got)
	}
	before := rows.reads
	for range 100 {
		if got := b.GetPublicKeys(t.Context(), "made up"); len(got) != 0 {
			t.Errorf("a made-up key is %v", got)
		}
	}
	if rows.reads > before+1 {
		t.Errorf("100 tokens with a made-up key caused %d reads", rows.reads-before)
	}
}

func TestKeysWhileEtcdIsDown(t *testing.T) {
	rows, c := &oneRow{}, testingclock.NewFakePassiveClock(start)
	k := open(t, rows, c)
	had := ids(t, k)
	rows.down = errors.New("etcd is down")
	c.SetTime(start.Add(2 * readEvery))
	for range 10 {
		if got := ids(t, k); got != had {
			t.Errorf("the keys are %q, want those read before, %q", got, had)
		}
	}
	if rows.reads != 2 {
		t.Errorf("the row was read %d times, want once after the first time and then not at once again", rows.reads)
	}
	rows.down = nil
	c.SetTime(c.Now().Add(signingPeriod))
	if _, _, err := k.signing(t.Context()); err != nil {
		t.Errorf("etcd is back: %v", err)
	}
	rows.down = errors.New("etcd is down")
	c.SetTime(c.Now().Add(2 * signingPeriod))
	if _, _, err := k.signing(t.Context()); err == nil {
		t.Error("a key signs that the other servers take for ended")
	}
	if _, err := OpenKeys(t.Context(), rows, atHome, day, c); !errors.Is(err, rows.down) {
		t.Errorf("a server starts without keys: %v", err)
	}
}

func TestUnusableRow(t *testing.T) {
	c := testingclock.NewFakePassiveClock(start)
	for row, want := range map[string]string{
		`{"version":1,"keys":[{"private":"c2VjcmV0"}]}`: "deleted", // no PEM; its time is long over
		`{"version":1,"keys":[{"private":"c2VjcmV0","verifiesUntil":"2099-01-01T00:00:00Z","signsUntil":"2099-01-01T00:00:00Z"}]}`: "cannot be read",
		`{"version":2,"keys":[]}`: "newer server",
		`{}`:                      "format 0",
		`secret`:                  "cannot be read",
	} {
		rows := &oneRow{row: storage.InstallationRow{Value: []byte(row), Revision: 7}}
		_, err := OpenKeys(t.Context(), rows, atHome, day, c)
		if want == "deleted" {
			if err != nil || rows.row.Revision != 8 {
				t.Errorf("%s: %v at revision %d, want it replaced", row, err, rows.row.Revision)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "c2Vj") {
			t.Errorf("%s: error %v, want %q and nothing of the row", row, err, want)
		}
		if rows.row.Revision != 7 {
			t.Errorf("%s: the row was written", row)
		}
	}
}

// A row that is encrypted with an old key is written anew.
func TestStaleRowIsWritten(t *testing.T) {
	rows, c := &oneRow{}, testingclock.NewFakePassiveClock(start)
	had := ids(t, open(t, rows, c))
	rows.row.Stale = true
	if got := ids(t, open(t, rows, c)); got != had || rows.row.Revision != 2 {
		t.Errorf("keys %q at revision %d, want %q written once more", got, rows.row.Revision, had)
	}
}

// Keys and tokens are in no line of the log, however much is logged, and in no error.
func TestNothingSecretIsLogged(t *testing.T) {
	var log bytes.Buffer
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log), textlogger.Verbosity(10)))
	ctx := klog.NewContext(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shop"}), logger)
	rows, c := &oneRow{}, testingclock.NewFakePassiveClock(time.Now())
	keys, err := OpenKeys(ctx, rows, atHome, day, c)
	if err != nil {
		t.Fatal(err)
	}
	issuers, err := NewIssuers([]string{"https://atoll"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens := NewTokens(issuers, keys, nothing{}, NewEnded())
	token, err := tokens.GenerateToken(ctx, &jwt.Claims{Audience: jwt.Audience(issuers.Default("shop")), Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	_, ok, err := tokens.AuthenticateToken(ctx, token)
	if ok || err == nil {
		t.Errorf("a token of nobody: %v, %v", ok, err)
	}
	said := log.String() + err.Error()
	_, _, err = tokens.AuthenticateToken(ctx, token[:len(token)-8]+"AAAAAAAA")
	if err == nil {
		t.Error("a forged token is taken")
	} else {
		said += err.Error()
	}
	rows.down = errors.New("etcd is down")
	c.SetTime(c.Now().Add(time.Hour))
	keys.GetPublicKeys(ctx, "")
	said += log.String()
	if !strings.Contains(said, "Made a key") || !strings.Contains(said, "cannot be read now") {
		t.Errorf("the log does not tell of the keys:\n%s", said)
	}
	pem := strings.Split(string(keys.held.Load().keys[0].Private), "\n")
	for _, secret := range append(pem[1:len(pem)-2], token, strings.Split(token, ".")[2]) {
		if strings.Contains(said, secret) {
			t.Errorf("the log or an error holds %q:\n%s", secret, said)
		}
	}
}
