package admission

import (
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
)

// quantity is how one is written, by the documentation of Kubernetes: a number, and a suffix or an exponent.
var quantity = regexp.MustCompile(`^([+-]?)(\d+\.?\d*|\.\d+)(?:([numkMGTPE]?|[KMGTPE]i)|[eE]([+-]?\d{1,3}))$`)

// whole is what a quantity says, as fractions have it; nil for what is none, or too long for a reference.
func whole(value string) *big.Rat {
	m := quantity.FindStringSubmatch(value)
	if m == nil {
		return nil
	}
	n, ok := new(big.Rat).SetString(strings.TrimSuffix(m[2], "."))
	if !ok {
		return nil
	}
	factor := new(big.Rat).SetInt64(1)
	power := func(base, times int64) {
		f := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(base), big.NewInt(max(times, -times)), nil))
		if times < 0 {
			f.Inv(f)
		}
		factor.Mul(factor, f)
	}
	switch binary, decimal := strings.IndexByte("KMGTPE", (m[3] + " ")[0]), strings.IndexByte("num.kMGTPE", (m[3] + " ")[0]); {
	case m[4] != "":
		exponent, _ := strconv.ParseInt(m[4], 10, 64) // three digits
		power(10, exponent)
	case len(m[3]) == 2:
		power(1024, int64(binary+1))
	case m[3] != "":
		power(1000, int64(decimal-3))
	}
	n.Mul(n, factor)
	if m[1] == "-" {
		n.Neg(n)
	}
	return n
}

// FuzzParseLimit: a limit is the number that is written, by a reference that knows fractions alone, and nothing is one that is no
// whole number, too large, too small, or of no limit that there is.
func FuzzParseLimit(f *testing.F) {
	for _, value := range []string{
		"5000", "512Mi", "1.5Gi", "1.5", "1500m", "2000m", "0", "-1", "+7", "1e3", "1E3", "1E", "1e-3", "4Ei", "3.9Ei", "4611686018427387903", "4611686018427387904", "9223372036854775808", "99999999999999999999999", "",
		" 1", "1 ", "0x10", "1_000", "Infinity", "NaN", "1n", "1000000000n", "0.9999999999", "1e400", "-1e400", "1KiB", "1K", "٣", ".5Ki", "1.", "-0", "1e18", "1e19", "00012", "+", "-", ".", "Mi", "+Mi", "E3", ".Ki",
	} {
		for _, key := range []string{corev1alpha1.LimitObjectsAnnotation, corev1alpha1.LimitWatchesAnnotation, corev1alpha1.LimitAnnotationPrefix + "pods"} {
			f.Add(key, value)
		}
	}
	// A quantity is read to the billionth, away from zero.
	nano := func(n *big.Rat) *big.Rat {
		billion := big.NewRat(1_000_000_000, 1)
		scaled := new(big.Rat).Mul(n, billion)
		q, r := new(big.Int).QuoRem(scaled.Num(), scaled.Denom(), new(big.Int))
		if r.Sign() != 0 {
			q.Add(q, big.NewInt(int64(scaled.Sign())))
		}
		return new(big.Rat).Quo(new(big.Rat).SetInt(q), billion)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		got, err := ParseWhole(value)
		limit, limitErr := ParseLimit(key, value)
		if known := slices.Contains(corev1alpha1.LimitAnnotations, key); limitErr == nil && (err != nil || limit != got || !known) {
			t.Errorf("%s: %q is %d, and %d, %v", key, value, limit, got, err)
		} else if least := map[bool]int64{true: 1}[key == corev1alpha1.LimitWatchesAnnotation]; (limitErr == nil) != (known && err == nil && got >= least) {
			t.Errorf("%s: %q (%d) is a limit: %v", key, value, got, limitErr)
		}
		if err == nil {
			again, err := ParseWhole(strconv.FormatInt(got, 10))
			if err != nil || again != got {
				t.Errorf("%q is %d, which is %d, %v", value, got, again, err)
			}
		}
		if len(value) > 60 {
			return
		}
		want := whole(value)
		switch {
		case want == nil:
			if err == nil && quantity.MatchString(value) || err == nil && !regexp.MustCompile(`[eE][+-]?\d{4,}$`).MatchString(value) {
				t.Errorf("%q is %d, and nothing that is documented", value, got)
			}
			return
		default:
			want = nano(want)
		}
		small := new(big.Rat).Abs(want).Cmp(new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), 62))) < 0
		if isOne := want.IsInt() && small; isOne != (err == nil) || isOne && want.Num().Int64() != got {
			t.Errorf("%q is %d, %v; it says %s", value, got, err, want.RatString())
		}
	})
}
