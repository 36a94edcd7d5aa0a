// Package servers runs real Redis processes on loopback and puts a
// fault-injecting TCP proxy in front of them.
//
// It serves tests, the fault lab and benchmarks alike, so it does not import
// testing: everything returns errors. Package testenv is the face for tests.
//
// Redis 7.0 or newer is needed. Nothing started here outlives the process
// that started it, however that one ends (on Linux; elsewhere only after a
// regular Stop).
package servers
