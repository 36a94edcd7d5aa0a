// Package servers runs real Redis and etcd processes on loopback and puts a fault-injecting TCP
// proxy in front of them.
//
// Tests, the fault lab and benchmarks use it, so it does not import testing: everything returns
// errors. Package testenv is the interface for tests.
//
// It needs Redis 7.0 or newer, and the etcd that scripts/etcd builds. No server started here
// outlives the process that started it, however that process ends (on Linux; elsewhere only after a
// regular Stop).
package servers
