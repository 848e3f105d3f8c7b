package clusterwatch

// Contents is what a snapshot contains.
type Contents struct {
	// Versions are the resource versions up to which the snapshot contains all changes, by kind.
	// A kind without objects on the server, because it is not served, has none.
	Versions map[string]string
	// Restores is the number of times that versions have gone back, because the server's data was
	// restored from a backup. Versions of different numbers cannot be compared.
	Restores int
}

// Following is how the objects of a kind are followed.
type Following struct {
	Kind string
	// Seen is the newest resource version that was received.
	Seen string
	// Err says why newer objects may be missing, nil while the kind is watched.
	Err error
}

// Following returns how each kind is followed, and the present value of Contents.Restores.
func (c *Cache) Following() (all []Following, restores int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = make([]Following, len(c.mirrors))
	for i, m := range c.mirrors {
		all[i] = Following{Kind: m.kind.Name, Seen: m.version}
		if !c.currency.watched(m) {
			all[i].Err = m.failures.notWatched()
		}
	}
	return all, c.restores
}

// contents is called with the mutex held, when a snapshot is compiled, or when nothing has changed
// since.
func (c *Cache) contents() Contents {
	contents := Contents{Versions: map[string]string{}, Restores: c.restores}
	for _, m := range c.mirrors {
		if m.version != "" {
			contents.Versions[m.kind.Name] = m.version
		}
		m.reported = m.version
	}
	return contents
}
