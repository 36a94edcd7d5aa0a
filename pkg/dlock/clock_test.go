package dlock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wallClock are the functions and methods of package time that read the wall part of a time, or drop the monotonic part.
var wallClock = []string{
	"Round", "Truncate", "UTC", "Local", "In", "Unix", "UnixMilli", "UnixMicro", "UnixNano", "Format", "AppendFormat", "Date", "Clock",
	"Year", "YearDay", "ISOWeek", "Month", "Day", "Weekday", "Hour", "Minute", "Second", "Nanosecond", "GoString",
	"Parse", "ParseInLocation", "MarshalBinary", "MarshalJSON", "MarshalText", "AppendText", "AppendBinary", "GobEncode",
}

// onDurations are uses of these names that are not of a time.
var onDurations = []string{
	"time.Duration(a.client.now() - at.sent.at).Round", "d.Round", // error texts
	"time.Until(c.until).Truncate",            // redlock
	"time.Second", "time.Hour", "time.Minute", // constants
}

// The engine, and the drivers that compute validity, read no wall clock: it may be set back, and a lock would then seem valid for longer.
// Check only shows what it finds.
func TestNoWallClockIsRead(t *testing.T) {
	files := 0
	for _, dir := range []string{".", "driver", "memlock", "redislock", "redlock"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "check.go" {
				continue
			}
			files++
			for _, use := range wallClockIn(t, name) {
				t.Errorf("%s reads the wall clock, or drops the monotonic one: %s", name, use)
			}
		}
	}
	if files < 60 {
		t.Errorf("only %d files were read", files)
	}
}

func wallClockIn(t *testing.T, name string) (uses []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || !slices.Contains(wallClock, sel.Sel.Name) {
			return true
		}
		if use := types.ExprString(sel); !slices.Contains(onDurations, use) {
			uses = append(uses, use)
		}
		return true
	})
	return uses
}
