package memlock

// Tombstones returns how many IDs have tombstones.
func (s *Store) Tombstones() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tombstones)
}
