package faultproxy

// request takes the action for one request. It records the expected reply before the server can
// have seen the request.
func (c *conn) request(data []byte, args []string) {
	c.traffic.requests.Add(1)
	action := c.faults.decide(args)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.protocol == protocolRESP && len(args) > 0 {
		c.enter(action, args)
	} else if action.verb == verbDropReply {
		c.closeOnReply = true
	}
	switch action.verb {
	case verbForward, verbDropReply:
		c.up.push(unit{data: data})
	case verbTwice:
		c.up.push(unit{data: data})
		c.up.push(unit{data: data})
	case verbSwallow, verbError: // the server never sees it
	}
}

// enter records in the ledger which reply a command will get.
func (c *conn) enter(action Action, args []string) {
	switch action.verb {
	case verbForward:
		c.ledger.expect(args, expected{})
	case verbDropReply:
		c.ledger.expect(args, expected{drop: true})
	case verbTwice:
		c.ledger.expect(args, expected{})
		c.ledger.expect(args, expected{hide: true})
	case verbError:
		c.ledger.answer([]byte("-" + action.text + "\r\n"))
		c.answerCanned()
	case verbSwallow: // nothing will come
	}
}

// reply forwards what the server sent, if it may; false means that the connection must be closed.
// Bytes that are not a whole reply are forwarded unchanged.
func (c *conn) reply(data []byte, whole bool) bool {
	state, _ := c.faults.look()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !whole {
		if c.closeOnReply {
			return false
		}
		c.down.push(unit{data: data})
		return true
	}
	reply := shapeOf(data)
	verdict := c.ledger.match(reply)
	if state.mute && isMessage(reply) && c.ledger.isPush(reply) {
		verdict = hide
	}
	if verdict == pass {
		c.down.push(unit{data: data})
	}
	c.answerCanned()
	return verdict != closeConn
}

// answerCanned sends the proxy's own answers that are next in order.
func (c *conn) answerCanned() {
	for _, answer := range c.ledger.canned() {
		c.down.push(unit{data: answer})
	}
}
