package main

import "github.com/ceyewan/genesis/test/mutants/internal/judge"

const module = "github.com/ceyewan/genesis"

// targets are the engine, the drivers and what they are made of.
var targets = []judge.Target{
	{Package: "pkg/dlock", Suites: []string{"pkg/dlock"}},
	{Package: "pkg/dlock/driver", Suites: []string{"pkg/dlock/driver", "pkg/dlock"}},
	{Package: "pkg/dlock/internal/sharedtimeout", Suites: []string{"pkg/dlock/internal/sharedtimeout", "pkg/dlock"}},
	{Package: "pkg/dlock/internal/unanswered", Suites: []string{"pkg/dlock/internal/unanswered"}},
	{Package: "pkg/dlock/internal/hide", Suites: []string{"pkg/dlock/internal/hide", "pkg/dlock"}},
	{Package: "pkg/dlock/internal/redisnode", Suites: []string{"pkg/dlock/internal/redisnode", "pkg/dlock/redislock", "pkg/dlock/redlock"}},
	{Package: "pkg/dlock/memlock", Suites: []string{"pkg/dlock/memlock", "pkg/dlock"}},
	{Package: "pkg/dlock/filelock", Suites: []string{"pkg/dlock/filelock"}},
	{Package: "pkg/dlock/redislock", Scripts: "pkg/dlock/redislock/lua/*.lua", Suites: []string{"pkg/dlock/redislock"}},
	{Package: "pkg/dlock/redlock", Scripts: "pkg/dlock/redlock/lua/*.lua", Suites: []string{"pkg/dlock/redlock"}},
	{Package: "pkg/dlock/etcdlock", Suites: []string{"pkg/dlock/etcdlock"}},
}

var simulators = []judge.Simulator{
	{Suite: "pkg/dlock", Test: "TestSimulation", Few: []string{"DLOCK_SEEDS=1-300"}},
	{Suite: "pkg/dlock/redislock", Test: "TestScriptSimulation"},
}

// helpers are packages, with those below them, that tests call. A mutant that was caught is
// judged again after a change of one.
var helpers = []string{
	"internal/faultproxy", "internal/hazardtest", "internal/loopback", "internal/measure", "internal/metronome",
	"internal/servers", "internal/sim", "internal/stats", "internal/testenv",
	"pkg/dlock/dlocktest", "pkg/dlock/drivertest", "pkg/dlock/faultdriver",
}
