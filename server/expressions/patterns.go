package expressions

import (
	"slices"

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

// matching are the functions of a text and a regular expression.
var matching = []string{"matches", "find", "findAll"}

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
		if !slices.Contains(matching, call.FunctionName()) {
			continue
		}
		args := call.Args()
		if !call.IsMemberFunction() {
			args = args[1:] // which the checker has counted
		}
		if args[0].Kind() != ast.LiteralKind {
			continue
		}
		if text, ok := args[0].AsLiteral().(types.String); ok && weight.Pattern(string(text)) > mostPatternBytes {
			issues.ReportErrorAtID(args[0].ID(), "the regular expression takes more than %d KiB of memory, compiled, which one may take: x{1000} is a thousand times x", mostPatternBytes>>10)
		}
	}
}
