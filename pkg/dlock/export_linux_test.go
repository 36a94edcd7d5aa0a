package dlock

// ReadSuspended reads suspended time once, with a monotonic clock of the test. BootTime is the
// clock that continues during suspend.
var ReadSuspended, BootTime = readSuspended, bootTime
