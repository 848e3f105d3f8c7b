package queue

// FlushedWaits reports whether Flushed would wait now.
func (qs *Queues) FlushedWaits() bool {
	for _, w := range qs.workers {
		if !w.stepping.TryLock() {
			return true
		}
		w.stepping.Unlock()
	}
	return false
}
