package lockreader

import (
	"context"
	"errors"
	"slices"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// Settings returns what the backend finds out about itself. Settings that cannot be read are a
// warning.
func Settings(ctx context.Context, client *dlock.Client) []dlock.Finding {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	findings, err := client.Check(ctx)
	if err == nil || errors.Is(err, dlock.ErrUnsupported) {
		return findings
	}
	return append(findings, dlock.Finding{
		Level: dlock.LevelWarning, Name: "settings", Detail: "not all are known: " + err.Error(),
		Fix: "see to it that the backend answers, and permit to look at its settings",
	})
}

// Levels are the levels of findings, the best first.
var Levels = []dlock.Level{dlock.LevelOK, dlock.LevelWarning, dlock.LevelUnsafe}

// Worst returns the highest level of the findings.
func Worst(findings []dlock.Finding) dlock.Level {
	rank := 0
	for _, f := range findings {
		rank = max(rank, slices.Index(Levels, f.Level))
	}
	return Levels[rank]
}
