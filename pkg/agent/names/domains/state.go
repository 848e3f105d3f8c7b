package domains

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// state returns what all pods have learned, also those of the file that are absent. Pods share
// maxSaved addresses equally if they know more, and their most recently used ones are saved.
func (t *Table) state() []savedPod {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, pods := t.now(), t.byOwner()
	for owner, p := range t.absent {
		p.known.forgetExpired(now)
		if p.known.count() == 0 {
			delete(t.absent, owner)
			continue
		}
		pods[owner] = p
	}
	total := 0
	for _, p := range pods {
		total += p.known.count()
	}
	most := MaxAddresses
	if total > maxSaved {
		most = maxSaved / len(pods)
	}
	var saved []savedPod
	for _, owner := range slices.Sorted(maps.Keys(pods)) {
		if names := pods[owner].known.state(now, most); len(names) > 0 {
			saved = append(saved, savedPod{owner, names})
		}
	}
	return saved
}

// restore adds what was saved at the given time before. What has expired since is not restored.
func (t *Table) restore(saved []savedPod, before time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, pods := t.now(), t.byOwner()
	absent := make(map[string]*pod)
	for _, s := range saved {
		p := pods[s.Owner]
		if p == nil {
			p = cmp.Or(t.absent[s.Owner], absent[s.Owner])
			if p == nil {
				p = t.newPod(s.Owner)
			}
			absent[s.Owner] = p
		}
		for _, name := range s.Names {
			for addr, left := range name.Addrs {
				if left > before {
					p.known.restore(string(name.Name), addr, now, now.Add(left-before))
				}
			}
		}
	}
	t.absent = absent
}

// state returns the names of at most that number of addresses, each counted once for each of its
// names, and notes that they are saved.
func (k *known) state(now time.Time, most int) []savedName {
	k.mu.Lock()
	defer k.mu.Unlock()
	names := make(map[string]map[netip.Addr]time.Duration)
	for addr, a := range k.addrs.all() {
		for i := range a.leases {
			l := &a.leases[i]
			if most == 0 || !now.Before(l.until) {
				continue
			}
			most--
			if names[l.name.text] == nil {
				names[l.name.text] = make(map[netip.Addr]time.Duration)
			}
			names[l.name.text][addr] = l.until.Sub(now)
			l.saved = l.until
		}
	}
	var saved []savedName
	for _, text := range slices.Sorted(maps.Keys(names)) {
		saved = append(saved, savedName{[]byte(text), names[text]})
	}
	return saved
}

// forgetExpired removes all expired names.
func (k *known) forgetExpired(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var addrs []*address
	for _, a := range k.addrs.all() {
		addrs = append(addrs, a)
	}
	for _, a := range addrs {
		k.expire(a, now)
	}
}
