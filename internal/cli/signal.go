package cli

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// listen begins to receive signals. Those that we were told to ignore, as nohup does,
// stay ignored, by us and by the command.
func listen() chan os.Signal {
	c := make(chan os.Signal, 16)
	for _, s := range passedOn {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	if !signal.Ignored(syscall.SIGPIPE) { // a closed pipe must not end us, and the command with us
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	return c
}

// ends reports whether a signal means that we should stop.
func ends(s os.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// signalled is why a wait was given up.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return fmt.Sprintf("signal: %v", s.Signal) }

func (s signalled) number() syscall.Signal {
	n, _ := s.Signal.(syscall.Signal)
	return n
}
