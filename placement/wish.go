package placement

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
)

// maxWeight bounds a weight, so that replicas times a sum of weights stays far from the end of int64.
const maxWeight = 1_000_000

// everyCluster is the value of the clusters annotation for all clusters that may be used.
const everyCluster = "*"

// Level is one place where a wish can be written.
type Level struct {
	// Source names it to people, e.g. `namespace "shop"`.
	Source string
	// Annotations of the object there; others than the four of placement.atoll.dev are ignored.
	Annotations map[string]string
}

// sameWish says whether two sets of annotations wish the same.
func sameWish(a, b map[string]string) bool {
	return !slices.ContainsFunc(placementv1alpha1.WishAnnotations, func(key string) bool {
		x, inA := a[key]
		y, inB := b[key]
		return inA != inB || x != y
	})
}

// defaultLevel is a policy's default as a level. It does not name the policy: that may be another workspace's.
func defaultLevel(d *placementv1alpha1.PlacementDefault) Level {
	return Level{Source: "the default of a PlacementPolicy", Annotations: d.Annotations()}
}

// wish is what one level asks for.
type wish struct {
	// source is the Level's; empty where nobody wishes anything.
	source string
	// nowhere is set where no cluster is wanted, on purpose.
	nowhere bool
	// names that are wanted, sorted, without duplicates; nil for any. namedBy is the annotation that names them.
	names   []string
	namedBy string
	// selector over the clusters' labels; nil for any.
	selector labels.Selector
	// max is the most clusters wanted; 0 is no limit.
	max   int
	split placementv1alpha1.SplitPolicy
	// weights by name for a weighted split, >= 0; a cluster without one weighs 1.
	weights map[string]int64
}

// leastUsed is the wish of those who wish nothing: one cluster, whichever is used least.
func leastUsed() wish { return wish{max: 1, split: placementv1alpha1.SplitEven} }

// parseWish reads a level that HasWish. Missing annotations mean: any cluster if max-clusters is there, else the
// clusters that a weighted split names, else one cluster. The error is a sentence for the user that names annotation,
// value and syntax.
func parseWish(l Level) (wish, error) {
	w := wish{source: l.Source, split: placementv1alpha1.SplitEven}
	read := func(annotation string, parse func(string) error) (found bool, err error) {
		value, found := l.Annotations[annotation]
		if !found {
			return false, nil
		}
		if err := parse(strings.TrimSpace(value)); err != nil {
			//lint:ignore ST1005 a sentence for people: it becomes the message of a condition
			return true, fmt.Errorf("Correct %s=%s of %s: %w", annotation, quote(value), l.Source, err)
		}
		return true, nil
	}

	named, err1 := read(placementv1alpha1.ClustersAnnotation, func(s string) (err error) {
		if s == "" {
			w.nowhere = true
		} else if s != everyCluster {
			w.namedBy = placementv1alpha1.ClustersAnnotation
			w.names, err = parseNames(s)
		}
		return err
	})
	selected, err2 := read(placementv1alpha1.SelectorAnnotation, func(s string) (err error) {
		w.selector, err = parseSelector(s)
		return err
	})
	limited, err3 := read(placementv1alpha1.MaxClustersAnnotation, func(s string) (err error) {
		w.max, err = parseMax(s)
		return err
	})
	_, err4 := read(placementv1alpha1.SplitAnnotation, func(s string) (err error) {
		w.split, w.weights, err = parseSplit(s)
		if err != nil || w.names == nil {
			return err
		}
		for _, name := range sortedKeys(w.weights) {
			if !slices.Contains(w.names, name) {
				return fmt.Errorf("it weighs cluster %s, which %s does not name", quote(name), placementv1alpha1.ClustersAnnotation)
			}
		}
		return nil
	})
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return wish{}, err
		}
	}

	if !named && !selected && w.weights != nil {
		w.names, w.namedBy = sortedKeys(w.weights), placementv1alpha1.SplitAnnotation
	} else if !named && !selected && !limited {
		w.max = 1
	}
	return w, nil
}

// parseNames reads "a, b"; the result is sorted and has every name once.
func parseNames(s string) ([]string, error) {
	const want = "want names of clusters separated by commas, or * alone for all, or nothing for nowhere"
	var names []string
	for name := range strings.SplitSeq(s, ",") {
		name = strings.TrimSpace(name)
		if name == everyCluster || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return nil, fmt.Errorf("%s cannot be the name of a cluster; %s", quote(name), want)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// parseSelector reads a label selector. An empty one is an error: people may mean nowhere as well as everywhere. So is one with a NUL, at
// which labels.Parse ends.
func parseSelector(s string) (labels.Selector, error) {
	selector, err := labels.Parse(s)
	switch {
	case err != nil, strings.ContainsRune(s, 0):
		return nil, errors.New("want a selector of labels, for instance region=eu,tier!=test")
	case selector.Empty():
		return nil, fmt.Errorf("it is empty; for all clusters set %s to *", placementv1alpha1.ClustersAnnotation)
	}
	return selector, nil
}

// parseMax reads a positive number.
func parseMax(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return 0, errors.New("want a positive number, for instance 2")
	}
	return int(n), nil
}

// parseSplit reads "Even", "Duplicate" or "Weighted:east=3,west=1"; weights is nil unless weighted.
func parseSplit(s string) (policy placementv1alpha1.SplitPolicy, weights map[string]int64, err error) {
	const want = "want Even, Duplicate, or Weighted:east=3,west=1"
	kind, list, hasList := strings.Cut(s, ":")
	switch policy = placementv1alpha1.SplitPolicy(strings.TrimSpace(kind)); {
	case policy == "Capacity" && !hasList:
		return "", nil, errors.New("the split Capacity comes with a later version, use Even")
	case (policy == placementv1alpha1.SplitEven || policy == placementv1alpha1.SplitDuplicate) && !hasList:
		return policy, nil, nil
	case policy != placementv1alpha1.SplitWeighted || !hasList:
		return "", nil, errors.New(want)
	}

	weights = map[string]int64{}
	positive := false
	for part := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		weight, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil || weight < 0 || weight > maxWeight || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return "", nil, fmt.Errorf("%s is no weight of a cluster, a number from 0 to %d; %s", quote(part), maxWeight, want)
		}
		if _, twice := weights[name]; twice {
			return "", nil, fmt.Errorf("cluster %s has two weights; %s", quote(name), want)
		}
		weights[name] = weight
		positive = positive || weight > 0
	}
	if !positive {
		return "", nil, fmt.Errorf("every weight is 0; %s", want)
	}
	return policy, weights, nil
}

// quote shortens what somebody wrote, for a message.
func quote(s string) string {
	const most = 80
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "..."
	}
	return strconv.Quote(s)
}
