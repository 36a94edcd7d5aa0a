//go:build !race

package dlock_test

const raced = false
