//go:build filesonly

package main

import "github.com/ceyewan/genesis/internal/cli"

func schemes() map[string]cli.Scheme { return nil }

func sender() cli.MetricSender { return nil }
