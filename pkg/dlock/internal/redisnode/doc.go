// Package redisnode has what all Redis backends do in the same way with one server: how scripts are
// sent, what error replies mean, how keys are named, how a holder is stored, and what makes a
// server unfit for locks.
package redisnode
