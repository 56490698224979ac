package expressions

import (
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Environment returns what expressions are compiled in: Kubernetes' own environment, in which each call is looked at before it is made.
// Its first call changes that environment for the whole process, since upstream's validation of definitions and policies, its
// rules and its webhooks compile in it without asking anybody which to take. Call it before anything is compiled.
var Environment = sync.OnceValue(func() *environment.EnvSet {
	shared := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	estimated, err := withEstimates(shared)
	if err != nil {
		panic(fmt.Sprintf("bound what calls in expressions take: %v", err)) // a constant: a test would have seen it
	}
	*shared = *estimated // it is the one that upstream remembers and extends
	return shared
})

func withEstimates(of *environment.EnvSet) (*environment.EnvSet, error) {
	implementations, err := implementationsIn(of.StoredExpressionsEnv())
	if err != nil {
		return nil, err
	}
	estimate := func(i interpreter.Interpretable) (interpreter.Interpretable, error) {
		call, ok := i.(interpreter.InterpretableCall)
		if !ok {
			return i, nil
		}
		cost, ok := costs[call.Function()]
		if !ok {
			return i, nil
		}
		do, err := implementations.of(call)
		if err != nil {
			return nil, err
		}
		return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
			if cost(args) > limit {
				// As the one who counts ends it: an error could be passed over, by || or for each element of a list, and what counts
				// would go through the arguments all the same.
				panic(interpreter.EvalCancelledError{Cause: interpreter.CostLimitExceeded, Message: fmt.Sprintf(
					"%s: a call of %s would cost more than the %d that an expression may: have it look at less, or make less", exceeded, call.Function(), limit)})
			}
			return do(args)
		}), nil
	}
	return of.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), // in all
		EnvOptions:        []cel.EnvOption{cel.ASTValidators(patterns{})},
		ProgramOptions:    []cel.ProgramOption{cel.CustomDecorator(estimate)},
	})
}

// exceeded is how upstream's own error begins, by which upstream's rules of definitions know it.
const exceeded = "operation cancelled: actual cost limit exceeded"

// implementations are functions as the environment has them, by the names of their overloads and their own.
type implementations map[string]*functions.Overload

func implementationsIn(env *cel.Env) (implementations, error) {
	all := implementations{}
	for name, function := range env.Functions() {
		if costs[name] == nil {
			continue
		}
		bindings, err := function.Bindings()
		if err != nil {
			return nil, fmt.Errorf("read function %q: %w", name, err)
		}
		for _, b := range bindings {
			all[b.Operator] = b
		}
	}
	return all, nil
}

// of is what a call does, as the planner of CEL finds it: by its overload, or else by the function, which looks at the types of arguments.
func (all implementations) of(call interpreter.InterpretableCall) (func([]ref.Val) ref.Val, error) {
	switch call.Function() { // the planner has instructions of its own for the two
	case equals:
		return func(args []ref.Val) ref.Val { return types.Equal(args[0], args[1]) }, nil
	case notEquals:
		return func(args []ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) != types.True) }, nil
	}
	overload := all[call.OverloadID()]
	if overload == nil {
		overload = all[call.Function()]
	}
	if overload == nil {
		return nil, fmt.Errorf("%s is not what it was: no implementation of overload %q", call.Function(), call.OverloadID())
	}
	return func(args []ref.Val) ref.Val {
		switch {
		case overload.OperandTrait != 0 && !args[0].Type().HasTrait(overload.OperandTrait):
		case len(args) == 1 && overload.Unary != nil:
			return overload.Unary(args[0])
		case len(args) == 2 && overload.Binary != nil:
			return overload.Binary(args[0], args[1])
		case overload.Function != nil:
			return overload.Function(args...)
		}
		return types.MaybeNoSuchOverloadErr(args[0])
	}, nil
}
