// Package judge builds mutants and runs tests on them, the quickest that reach the changed
// line first, until one fails. It never touches the working tree: the mutated file goes to
// the compiler as an overlay.
package judge
