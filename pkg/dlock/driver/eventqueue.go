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

// Send queues an event. It drops the event if the EventQueue is closed.
func (o *EventQueue) Send(ev Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed {
		select {
		case o.events <- ev:
			return
		default:
		}
		select {
		case <-o.events: // one event is lost, so ask the engine to renew every claim
			ev = Event{}
		default:
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
