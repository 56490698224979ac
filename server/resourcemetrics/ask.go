package resourcemetrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"
	"k8s.io/metrics/pkg/apis/metrics"

	api "k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/server/builtin"
)

const (
	// asksAtOnce is how much a request asks physical clusters at once. Each counts as a stream of the workspace, which may have 100.
	asksAtOnce = 8
	// askTakes is how long a physical cluster may take for an answer, and allTake how long all of them together: whoever asks waits before a terminal.
	askTakes = 6 * time.Second
	allTake  = 15 * time.Second
	// mostAnswer is how long an answer may be, in bytes, and mostRefusal one that refuses. syncer/podmetrics.go has them, too.
	mostAnswer  = 8 << 20
	mostRefusal = 16 << 10
)

// errLate is that a physical cluster was not asked, or has not answered, in time, though it may answer.
var errLate = fmt.Errorf("not all that there was to ask has been answered within %s", allTake)

// Ways lead to what answers for a pod that a physical cluster shows, and to nothing else. They end with ctx.
type Ways interface {
	To(ctx context.Context, pod *api.Pod) (*http.Transport, error)
}

// used is what pods use, as far as physical clusters have said.
type used struct {
	pods map[types.NamespacedName]metrics.PodMetrics
	away map[logicalcluster.Name]trouble // by mirrors, wholly or of some places
	// asked is how many physical clusters were asked.
	asked int
}

// trouble is why a physical cluster said nothing, or not all.
type trouble struct {
	cluster string
	words   string
	whole   bool // it is asked for nothing more
}

// errGone is that pods have gone by which a place was looked for. Of other places it says nothing.
type errGone struct{ error }

// ask asks the physical clusters that show pods what these use. A cluster that is away, or refuses, whatever its words, is asked for no more, and not an error:
// a workspace that has too many ways open already is.
func (s *source) ask(ctx context.Context, rows []*api.Pod, one bool) (*used, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, allTake, errLate)
	defer cancel()
	var mu sync.Mutex // guards what is known
	known := &used{pods: map[types.NamespacedName]metrics.PodMetrics{}, away: map[logicalcluster.Name]trouble{}}
	isAway := func(mirror logicalcluster.Name) bool {
		mu.Lock()
		defer mu.Unlock()
		return known.away[mirror].whole
	}
	mirrors := map[logicalcluster.Name]bool{}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(asksAtOnce)
	for _, q := range questions(rows) {
		mirrors[q.mirror] = true
		group.Go(func() error {
			if isAway(q.mirror) {
				return nil
			}
			found, err := s.answer(groupCtx, q, one)
			if errors.As(err, &builtin.TooManyOfWorkspace{}) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !known.away[q.mirror].whole {
				known.away[q.mirror] = trouble{q.cluster, inHeader(err.Error()), !errors.As(err, &errGone{})}
			}
			for i := range found {
				known.pods[types.NamespacedName{Namespace: found[i].Namespace, Name: found[i].Name}] = found[i]
			}
			return nil
		})
	}
	known.asked = len(mirrors)
	return known, group.Wait()
}

// answer is what a physical cluster says of the pods in a place, or of the one that is asked for. Where it does not have them any more, that is nothing: of more
// pods than it is looked for it is not known.
func (s *source) answer(ctx context.Context, q *question, one bool) ([]metrics.PodMetrics, error) {
	ctx, cancel := context.WithTimeout(ctx, askTakes)
	defer cancel()
	for _, pod := range q.ways() {
		found, err := s.answerBy(ctx, pod, q, one)
		if !apierrors.IsNotFound(err) {
			return found, err
		}
	}
	if len(q.rows) > mostWays {
		return nil, errGone{fmt.Errorf("physical cluster %q: %d pods of namespace %q have just gone, ask again", q.cluster, mostWays, q.namespace)}
	}
	return nil, nil
}

// answerBy is answer, by way of a pod.
func (s *source) answerBy(ctx context.Context, pod *api.Pod, q *question, one bool) ([]metrics.PodMetrics, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the way ends
	silent := func(err error) error {
		if errors.Is(context.Cause(ctx), errLate) {
			return fmt.Errorf("physical cluster %q: %w", q.cluster, errLate)
		}
		klog.FromContext(ctx).V(2).Info("A physical cluster was asked for metrics of pods and did not answer", "cluster", q.cluster, "err", err)
		return fmt.Errorf("physical cluster %q does not answer", q.cluster)
	}
	transport, err := s.ways.To(ctx, pod)
	if err != nil {
		if ctx.Err() != nil {
			err = silent(err)
		}
		return nil, err
	}
	path := []string{"podMetrics", pod.Namespace}
	if one {
		path = append(path, pod.Name)
	}
	at := (&url.URL{Scheme: "http", Host: "kubelet", Path: "/"}).JoinPath(path...)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return nil, silent(err)
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	if answer.StatusCode != http.StatusOK {
		words, err := io.ReadAll(io.LimitReader(answer.Body, mostRefusal))
		if err != nil {
			return nil, silent(err)
		}
		return nil, errors.New(cmp.Or(strings.TrimSpace(string(words)), fmt.Sprintf("physical cluster %q answers %d", q.cluster, answer.StatusCode)))
	}
	rows := make(map[string]*api.Pod, len(q.rows))
	for _, row := range q.rows {
		rows[row.Name] = row
	}
	var found []metrics.PodMetrics
	err = readItems(io.LimitReader(answer.Body, mostAnswer), func(said item) {
		row := rows[said.Metadata.Name]
		if row == nil {
			return
		}
		if shown, ok := podMetrics(row, said, s.clock.Now()); ok {
			delete(rows, row.Name) // once
			found = append(found, shown)
		}
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, silent(err)
	case err != nil:
		return nil, fmt.Errorf("physical cluster %q says nothing of use about its pods: %w", q.cluster, err)
	}
	return found, nil
}

// troubles are sorted by the names of the clusters.
func (u *used) troubles() []trouble {
	var all []trouble
	for _, t := range u.away {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b trouble) int {
		return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.words, b.words))
	})
	return all
}

// mostTold is how many physical clusters are named in words of one answer.
const mostTold = 5

// tell warns of physical clusters that have said nothing, or not all. Where there is nothing to show since all are away, that is an error.
func (u *used) tell(ctx context.Context, shown int) error {
	var words []string
	all := u.troubles()
	for i, t := range all {
		if i == mostTold {
			words = append(words, fmt.Sprintf("and %d physical clusters more", len(all)-mostTold))
			break
		}
		words = append(words, t.words)
	}
	if shown == 0 && len(all) > 0 && len(all) == u.asked {
		return apierrors.NewServiceUnavailable("it is not known what pods use: " + strings.Join(words, "; "))
	}
	for _, text := range words {
		warning.AddWarning(ctx, "", "what some pods use is not shown: "+text)
	}
	return nil
}
