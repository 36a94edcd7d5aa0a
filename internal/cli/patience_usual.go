//go:build !patient

package cli

import "time"

func patient(usual time.Duration) time.Duration { return usual }
