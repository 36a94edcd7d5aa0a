package memlock

// Bars is how many IDs are barred.
func (s *Store) Bars() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.barred)
}
