// Command analyzers is go vet and staticcheck in one. Both look at all libraries first, for functions that print as Printf does,
// never return, or are deprecated, which takes each of them minutes from cold caches.
package main

import (
	"encoding/gob"
	"os"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/suite/vet"
	"honnef.co/go/tools/analysis/facts/nilness"
	"honnef.co/go/tools/analysis/facts/purity"
	"honnef.co/go/tools/lintcmd"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

func main() {
	known := []*analysis.Analyzer{purity.Analyzer, nilness.Analysis}
	for _, a := range staticcheck.Analyzers {
		if a.Analyzer.Name == "SA5012" {
			known = append(known, a.Analyzer)
		}
	}
	for _, a := range known {
		ownPackages(a)
	}
	cmd := lintcmd.NewCommand("analyzers")
	cmd.ParseFlags(os.Args[1:])
	cmd.AddBareAnalyzers(vet.Suite...)
	cmd.AddAnalyzers(simple.Analyzers...)
	cmd.AddAnalyzers(staticcheck.Analyzers...)
	cmd.AddAnalyzers(stylecheck.Analyzers...)
	cmd.AddAnalyzers(unused.Analyzer)
	cmd.Run()
}

// ownPackages has an analyzer look at the packages that are asked for alone, and at no library. Which functions of libraries have
// no effect, never return nil, or take arguments in pairs is found out from all of their bodies, which took half of the time from
// cold caches, and of interest to five checks alone (S1011, SA4017, SA4018, SA4023, SA5012). They still know it of our own.
func ownPackages(a *analysis.Analyzer) {
	for _, fact := range a.FactTypes {
		gob.Register(fact) // of our packages they are kept still
	}
	a.FactTypes = nil
}
