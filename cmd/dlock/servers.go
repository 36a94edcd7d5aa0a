//go:build !filesonly

package main

import (
	"github.com/ceyewan/genesis/internal/cli"
	"github.com/ceyewan/genesis/internal/cli/otlp"
	"github.com/ceyewan/genesis/internal/cli/remote"
)

func schemes() map[string]cli.Scheme { return remote.Schemes() }

func sender() cli.MetricSender { return otlp.Send }
