package splitter

import (
	"cmp"
	"maps"
	"math/big"
	"slices"

	"atoll.dev/atoll/internal/order"
)

// Assign divides replicas over clusters in proportion to weights (unitless, >= 0). The result has every key of weights
// and values >= 0 that sum to replicas exactly, unless weights is empty. Every cluster with a weight > 0 gets at least one
// if there are enough. What is left goes to the largest fraction; among equal fractions to a cluster that had the larger
// share in previous, then by name, so equal input gives equal output and little moves. Weights that are all 0 count as
// equal. Negative numbers count as 0.
func Assign(replicas int32, weights map[string]int64, previous map[string]int32) map[string]int32 {
	shares := divide(replicas, weights, func(name string, floor int32) preference {
		return preference{floor == 0, previous[name] > floor}
	})
	for _, poor := range slices.Sorted(maps.Keys(shares)) {
		if shares[poor] > 0 || weights[poor] <= 0 {
			continue
		}
		rich := poor
		for _, name := range slices.Sorted(maps.Keys(shares)) {
			if shares[name] > shares[rich] {
				rich = name
			}
		}
		if shares[rich] > 1 {
			shares[rich]--
			shares[poor]++
		}
	}
	return shares
}

// Duplicate gives every cluster all replicas.
func Duplicate(replicas int32, weights map[string]int64) map[string]int32 {
	shares := make(map[string]int32, len(weights))
	for name := range weights {
		shares[name] = max(replicas, 0)
	}
	return shares
}

// preference is who comes first for what is left: before larger fractions, and among equal ones.
type preference struct{ first, amongEqual bool }

// divide is the largest remainder method, with preferences given what each has without the remainder.
func divide(n int32, weights map[string]int64, prefer func(name string, floor int32) preference) map[string]int32 {
	shares := make(map[string]int32, len(weights))
	if len(weights) == 0 {
		return shares
	}
	total := new(big.Int)
	for _, w := range weights {
		total.Add(total, big.NewInt(max(w, 0)))
	}
	equal := total.Sign() == 0
	if equal {
		total.SetInt64(int64(len(weights)))
	}
	left := max(n, 0)
	var names []string
	remainders := make(map[string]*big.Int, len(weights))
	for name, w := range weights {
		if equal {
			w = 1
		}
		product := new(big.Int).Mul(big.NewInt(int64(max(n, 0))), big.NewInt(max(w, 0)))
		share, remainder := new(big.Int).QuoRem(product, total, new(big.Int))
		shares[name] = int32(share.Int64()) // <= n
		remainders[name] = remainder
		left -= shares[name]
		if w > 0 {
			names = append(names, name)
		}
	}
	floors := maps.Clone(shares)
	slices.SortFunc(names, func(a, b string) int {
		pa, pb := prefer(a, floors[a]), prefer(b, floors[b])
		return cmp.Or(order.First(pa.first, pb.first), -remainders[a].Cmp(remainders[b]), order.First(pa.amongEqual, pb.amongEqual), cmp.Compare(a, b))
	})
	// The remainder is smaller than the number of clusters with a weight: each gets at most one of it.
	for _, name := range names[:left] {
		shares[name]++
	}
	return shares
}
