package driver

import "sync"

// An EventQueue is the sending side of Events, for authors of a Driver. Sending never blocks: an
// engine that does not keep up loses events and receives an Event without an ID instead.
type EventQueue struct {
	mu     sync.Mutex
	closed bool
	events chan Event
}

// NewEventQueue returns an EventQueue that keeps up to size events, at least one.
func NewEventQueue(size int) *EventQueue { return &EventQueue{events: make(chan Event, max(size, 1))} }

// Events returns the channel for Driver.Events.
func (o *EventQueue) Events() <-chan Event { return o.events }

// Send queues an event. It drops the event if the EventQueue is closed. If the queue is full, an Event without an ID, after which
// the engine renews every claim, takes the place of all that is in it: one for each of the lost events would cost the engine as
// much as it lags behind already.
func (o *EventQueue) Send(ev Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	select {
	case o.events <- ev:
		return
	default:
	}
	for {
		select {
		case <-o.events:
		default:
			o.events <- Event{} // only Send fills the queue
			return
		}
	}
}

// Close closes the channel. A second Close does nothing.
func (o *EventQueue) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		close(o.events)
	}
}
