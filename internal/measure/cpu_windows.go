package measure

import (
	"syscall"
	"time"
)

// CPU is what this process has used.
func CPU() time.Duration {
	self, _ := syscall.GetCurrentProcess()
	var created, ended, kernel, user syscall.Filetime
	_ = syscall.GetProcessTimes(self, &created, &ended, &kernel, &user) // cannot fail for oneself
	return span(kernel) + span(user)
}

// span is a Filetime that is a duration: units of 100 ns.
func span(t syscall.Filetime) time.Duration {
	return 100 * time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime))
}
