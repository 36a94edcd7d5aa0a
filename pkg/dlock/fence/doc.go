// Package fence makes the resource refuse a stale holder of a lock.
//
// A process can pause for longer than its lease, and write after another process has got the lock.
// Only the resource can refuse that write: it compares the fencing token of the writer
// (dlock.Guard.Token) with the greatest token that it has seen. This package has the statements for
// resources that cannot compare by themselves:
//
//   - SQL, for a transaction of database/sql on PostgreSQL, MySQL, MariaDB or SQLite
//   - Transport and NewHandler, for HTTP
//   - WriteFile, for a file
//   - package redisfence, for a Redis script
//   - package etcdfence, for an etcd transaction
//
// All of them follow the same rules. A token is accepted if it is not smaller than the greatest
// token that the resource has seen, so a holder may write more than once. A smaller token is
// refused with ErrStale: stop working, because another process holds the lock. A token that is not
// positive is refused with ErrInvalid before anything is sent.
//
// The resource knows only tokens that have reached it. A holder that reads before it writes must
// therefore raise the fence before it reads: SQL.Check, RaiseFile, redisfence.Raise, or
// etcdfence.Commit without operations. Until then, the resource still accepts a late write of the
// holder before.
//
// Compare only tokens of one key in one backend, and of an exclusive lock: holders of a shared lock
// have different tokens at the same time. docs/fencing.md has more.
package fence
