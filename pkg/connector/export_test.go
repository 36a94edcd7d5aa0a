package connector

import "time"

// AwaitAlerts sets how long a probe waits for an alert.
func AwaitAlerts(within time.Duration) { alertWithin = within }
