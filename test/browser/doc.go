// Package browser has the tests of the lock page in a real browser. It is a module of its own, so
// that the driver of the browser does not become a dependency of users.
package browser
