// Package expressions bounds what one call in an expression of CEL may take: in policies, in match conditions and in rules of definitions.
//
// Kubernetes counts what an expression costs and stops it at a million (cel.PerCallLimit of k8s.io/apiserver/pkg/apis/cel): but counts a
// call once it has returned, which is enough where only administrators write expressions. Here everybody does in a workspace of his, and
// lists.range(50000000) took 5 GB before it was counted. A few letters make lists in lists in lists, too, of which only the innermost are
// in memory, and comparing two of them never ends.
//
// So what a call is about to take is estimated before it is made, and one that alone costs more than an expression may ends the
// expression, as the limit does. Nearly all of them would have ended it, had they returned: others do what they do in Kubernetes.
package expressions
