package expressions

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/mutation/dynamic"
)

// limit is what one call may cost, in the unit of Kubernetes' limits: an element of a list is one, ten characters are one.
const limit = cel.PerCallLimit

const (
	equals    = operators.Equals
	notEquals = operators.NotEquals
	// charactersOfCost is how many characters cost one, as upstream counts what is gone through (common.StringTraversalCostFactor).
	charactersOfCost = 10
	// charactersMadeOfCost is the same of text that is made, which upstream counts twice: gone through, and made.
	charactersMadeOfCost = 5
)

// costs are the functions a call of which may take far more time or memory than its arguments have, each with what a call costs before
// it is made; what costs more than limit is told as any number beyond it. Upstream counts others as they grow, or they only make less
// of what there is. Arguments may be of any type: an expression of type dyn is looked at when it is evaluated.
var costs = map[string]func(args []ref.Val) int{
	equals:       compared,
	notEquals:    compared,
	operators.In: found,
	// Upstream goes through all of what these have to count it, whether the call fails or not.
	"indexOf":         first,
	"lastIndexOf":     first,
	"isSorted":        first,
	"sum":             first,
	"max":             first,
	"min":             first,
	operators.Add:     added,
	"lists.range":     func(args []ref.Val) int { n, _ := args[0].(types.Int); return capped(int64(n)) },
	"flatten":         first,
	"distinct":        func(args []ref.Val) int { return 2 * pairs(args[0], args[0]) },
	"sets.contains":   inPairs,
	"sets.equivalent": func(args []ref.Val) int { return 2 * inPairs(args) },
	"sets.intersects": inPairs,
	"join":            joined,
	"replace":         replaced,
	"format":          formatted,
	"matches":         matched,
	"find":            matched,
	"findAll":         matched,
}

// capped is n where it is no more than just beyond the limit, so that sums and a few times of it stay numbers.
func capped(n int64) int { return int(min(n, limit+1)) }

// compared is of two values of which each may have others: as deep as the first goes. Equal ones have the same, and others end earlier.
func compared(args []ref.Val) int {
	if !hasOthers(args[0]) || !hasOthers(args[1]) {
		return 1
	}
	return traversal(args[0])
}

// found is of a value that is looked for in a list: simple ones are compared as quickly as upstream counts them.
func found(args []ref.Val) int {
	if !hasOthers(args[0]) {
		return 1
	}
	return traversal(args[1])
}

// first is of what goes through all that the first argument has.
func first(args []ref.Val) int { return traversal(args[0]) }

// added is of two lists. They become one of which only the two are in memory: however long, at no cost.
func added(args []ref.Val) int {
	if _, ok := args[0].(traits.Lister); !ok {
		return 1
	}
	return length(args[0]) + length(args[1])
}

// pairs is of two lists each element of which is compared with each of the other.
func pairs(a, b ref.Val) int {
	product := func(n, m int) int { return capped(int64(n) * int64(m)) }
	return min(product(length(a), nodes(b)), product(length(b), nodes(a)))
}

func inPairs(args []ref.Val) int { return pairs(args[0], args[1]) }

func joined(args []ref.Val) int {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return 1
	}
	separator := 0
	if len(args) > 1 {
		separator = characters(args[1])
	}
	n := length(list)
	made := int64(n) * int64(separator)
	for i := 0; i < n && made <= limit*charactersMadeOfCost; i++ {
		made += int64(characters(list.Get(types.Int(i))))
	}
	return capped(made / charactersMadeOfCost)
}

func replaced(args []ref.Val) int {
	text, _ := args[0].(types.String)
	if len(args) < 3 {
		return 1
	}
	old, _ := args[1].(types.String)
	by := characters(args[2])
	n := strings.Count(string(text), string(old))
	if len(args) > 3 {
		if most, ok := args[3].(types.Int); ok && most >= 0 {
			n = int(min(int64(n), int64(most)))
		}
	}
	return capped((int64(len(text)) + int64(n)*int64(max(by-len(old), 0))) / charactersMadeOfCost)
}

var precision = regexp.MustCompile(`%\.([0-9]+)`)

// formatted is of a text and a list of what is put into it. A number may be asked for with very many digits.
func formatted(args []ref.Val) int {
	text, _ := args[0].(types.String)
	made := int64(len(text))
	for _, digits := range precision.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseInt(digits[1], 10, 32)
		if err != nil {
			n = math.MaxInt32
		}
		made += n
	}
	cost := capped(made / charactersOfCost)
	if len(args) > 1 {
		cost += traversal(args[1])
	}
	return cost
}

// length is how many elements a list has. What is no list has one.
func length(v ref.Val) int {
	if list, ok := v.(traits.Lister); ok {
		if n, ok := list.Size().(types.Int); ok {
			return capped(int64(n))
		}
	}
	return 1
}

// characters is the length of a text in bytes.
func characters(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	}
	return utf8.UTFMax // of something that is no text
}

func hasOthers(v ref.Val) bool {
	switch v.(type) {
	case traits.Lister, traits.Mapper, *types.Optional, *dynamic.ObjectVal, *mutation.JSONPatchVal:
		return true
	}
	return false
}

// traversal is what it costs to go through all that a value has: one for each value in it, however often the same one comes again, and
// for ten characters. It stops counting just beyond the limit.
func traversal(v ref.Val) int {
	return count(v, func(text int) int { return text / charactersOfCost })
}

// nodes is how many values a value has, the same one as often as it comes.
func nodes(v ref.Val) int {
	return count(v, func(int) int { return 0 })
}

func count(v ref.Val, ofText func(characters int) int) int {
	total := 0
	var walk func(ref.Val)
	walk = func(v ref.Val) {
		if total++; total > limit {
			return
		}
		switch v := v.(type) {
		case types.String:
			total += ofText(len(v))
		case types.Bytes:
			total += ofText(len(v))
		case traits.Mapper:
			for i := v.Iterator(); total <= limit && i.HasNext() == types.True; {
				key := i.Next()
				walk(key)
				walk(v.Get(key))
			}
		case traits.Lister:
			n := length(v)
			for i := 0; i < n && total <= limit; i++ {
				walk(v.Get(types.Int(i)))
			}
		case *types.Optional:
			if v.HasValue() {
				walk(v.GetValue())
			}
		case *mutation.JSONPatchVal:
			if v.Val != nil {
				walk(v.Val)
			}
		case *dynamic.ObjectVal:
			for _, field := range fieldsOf(v) {
				if total > limit {
					return
				}
				walk(field)
			}
		}
	}
	walk(v)
	return capped(int64(total))
}

// fieldsOf are the fields of an object of an apply configuration. Upstream shows them to nobody but by converting all of them, which is
// what has to be known to end before it is begun. A test holds that they are where this looks.
func fieldsOf(v *dynamic.ObjectVal) map[string]ref.Val {
	field := reflect.ValueOf(v).Elem().FieldByName("fields")
	return *(*map[string]ref.Val)(unsafe.Pointer(field.UnsafeAddr()))
}

// CheckResult returns an error for the result of an expression that would be converted, and so be made of its parts, without end.
func CheckResult(v ref.Val) error {
	if v != nil && traversal(v) > limit {
		return fmt.Errorf("the result of the expression has more than %d values, those of lists in lists and of maps in maps counted each time: have it make less", limit)
	}
	return nil
}
