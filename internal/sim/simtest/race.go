//go:build race

package simtest

// raced says that the race detector slows everything down tenfold.
const raced = true
