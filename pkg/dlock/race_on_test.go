//go:build race

package dlock_test

// raced says that the race detector slows everything down tenfold.
const raced = true
