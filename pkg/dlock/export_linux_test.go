package dlock

// ReadSuspended reads suspended time once, by a monotonic clock of a test's; BootTime is
// the clock that runs on in suspend.
var ReadSuspended, BootTime = readSuspended, bootTime
