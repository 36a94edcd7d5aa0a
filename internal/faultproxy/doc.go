// Package faultproxy is a TCP proxy that injects faults: delays, black holes, cut connections, and
// lost, doubled or forged replies. It understands the Redis protocol and gRPC, so a fault can be
// limited to one command or call.
//
// Tests, the fault lab and benchmarks use it, so it does not import testing: everything returns
// errors. Package testenv is the interface for tests.
package faultproxy
