package weight

import "regexp/syntax"

const (
	// instructionBytes is what an instruction of a compiled regular expression takes, with what is made of it to be run.
	instructionBytes = 64
	// partBytes is what a part of one takes that is in its text, as a letter or a class of them: instructions refer to it.
	partBytes = 160
	// mostInstructions is beyond what Go compiles (128 MiB).
	mostInstructions = 8 << 20
)

// Pattern is how much memory a regular expression takes where it is compiled, by estimate: x{1000} is a thousand times x. It takes
// time and memory of its length to say so. What is no regular expression takes nothing: it is refused by whoever compiles it.
func Pattern(text string) int64 {
	expression, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0
	}
	parts, instructions := compiled(expression)
	return partBytes*parts + instructionBytes*instructions
}

// compiled is how many parts an expression has, and how many instructions they become.
func compiled(e *syntax.Regexp) (parts, instructions int64) {
	parts = 1
	for _, sub := range e.Sub {
		p, i := compiled(sub)
		parts, instructions = parts+p, instructions+i
	}
	switch e.Op {
	case syntax.OpConcat:
	case syntax.OpLiteral:
		instructions = int64(len(e.Rune))
	case syntax.OpAlternate:
		instructions += int64(len(e.Sub))
	case syntax.OpCapture:
		instructions += 2
	case syntax.OpRepeat:
		// What may be there or not is asked each time.
		instructions = int64(e.Min)*instructions + int64(max(e.Max-e.Min, 1))*(instructions+1)
	default:
		instructions++
	}
	return parts, min(instructions, mostInstructions)
}
