// Package servers runs real Redis and etcd processes on loopback.
//
// Tests, the fault lab and benchmarks use it, so it does not import testing: everything returns
// errors. Package testenv is the interface for tests, and package faultproxy is a faulty network in
// front of a server.
//
// It needs Redis 7.0 or newer, and the etcd that scripts/etcd builds. No server started here
// outlives the process that started it, however that process ends (on Linux; elsewhere only after a
// regular Stop).
package servers
