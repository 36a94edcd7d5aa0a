//go:build race

package dlock_test

// raced is true if the race detector is on, which slows everything down tenfold.
const raced = true
