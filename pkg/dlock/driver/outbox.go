package driver

import "sync"

// An Outbox is the sending side of Events, for those who write a Driver. Sending
// never blocks: an engine that does not keep up loses pushes, and is told so by
// an Event without ID.
type Outbox struct {
	mu     sync.Mutex
	closed bool
	events chan Event
}

// NewOutbox returns an Outbox that keeps up to size events, at least one.
func NewOutbox(size int) *Outbox { return &Outbox{events: make(chan Event, max(size, 1))} }

// Events is what Driver.Events returns.
func (o *Outbox) Events() <-chan Event { return o.events }

// Send puts in an event, or lets it go if the Outbox is closed.
func (o *Outbox) Send(ev Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed {
		select {
		case o.events <- ev:
			return
		default:
		}
		select {
		case <-o.events: // one is lost, so all are to be asked for
			ev = Event{}
		default:
		}
	}
}

// Close closes the channel. A second Close does nothing.
func (o *Outbox) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		close(o.events)
	}
}
