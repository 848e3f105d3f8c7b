package queue

// FlushedWaits reports whether Flushed would wait now.
func (qs *Queues) FlushedWaits() bool {
	for _, w := range qs.workers {
		if !w.turning.TryLock() {
			return true
		}
		w.turning.Unlock()
	}
	return false
}
