// Package servers runs real Redis and etcd processes on loopback and puts a
// fault-injecting TCP proxy in front of them.
//
// It serves tests, the fault lab and benchmarks alike, so it does not import
// testing: everything returns errors. Package testenv is the face for tests.
//
// Redis 7.0 or newer is needed, and the etcd that scripts/etcd builds. Nothing
// started here outlives the process that started it, however that one ends (on
// Linux; elsewhere only after a regular Stop).
package servers
