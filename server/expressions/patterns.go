package expressions

import (
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"atoll.dev/atoll/internal/weight"
)

// mostPatternBytes is what a regular expression may take that is in the text of an expression: it is compiled with that, and stays
// as long. Upstream's own bound is 128 MiB, for which a dozen characters are enough.
const mostPatternBytes = 256 << 10

// mostPatternLength is how long one may be that is made when an expression is evaluated, which is parsed to be estimated.
const mostPatternLength = 100_000

// patternBytesOfCost is how many bytes that it takes compiled cost one.
const patternBytesOfCost = 8

// matching are the functions whose last argument is a regular expression, and findAll(pattern, number).
var matching = map[string]int{"matches": 1, "find": 1, "findAll": 1}

// matched is of a text and a regular expression that is made when it is evaluated: it is compiled for the one call.
func matched(args []ref.Val) int {
	pattern, _ := args[1].(types.String)
	if len(pattern) > mostPatternLength {
		return limit + 1
	}
	return capped(weight.Pattern(string(pattern)) / patternBytesOfCost)
}

// patterns refuses expressions with regular expressions in them that take too much.
type patterns struct{}

// Name implements cel.ASTValidator.
func (patterns) Name() string { return "atoll.patterns" }

// Validate implements cel.ASTValidator.
func (patterns) Validate(_ *cel.Env, _ cel.ValidatorConfig, of *ast.AST, issues *cel.Issues) {
	for _, e := range ast.MatchDescendants(ast.NavigateAST(of), ast.KindMatcher(ast.CallKind)) {
		call := e.AsCall()
		at, ok := matching[call.FunctionName()]
		if !ok {
			continue
		}
		args := call.Args()
		if call.IsMemberFunction() {
			at--
		}
		if at >= len(args) || args[at].Kind() != ast.LiteralKind {
			continue
		}
		if text, ok := args[at].AsLiteral().(types.String); ok && weight.Pattern(string(text)) > mostPatternBytes {
			issues.ReportErrorAtID(args[at].ID(), "the regular expression takes more than %d KiB of memory, compiled, which one may take: x{1000} is a thousand times x", mostPatternBytes>>10)
		}
	}
}
