package policy

// MissedNames returns the domains that would allow q, which s denies in egress, if the source had
// learned one of their names for the destination: at most a thousand, of the first thousand rules.
// It returns nil if no name would. It is too slow for each packet.
func (s *Snapshot) MissedNames(q Query) (missed []Domain) {
	var src, dst end
	s.ends(&q, &src, &dst)
	if src.endpoint == nil || src.endpoint.Egress == nil || !src.endpoint.Egress.findNeeds().names {
		return nil
	}
	var f flow
	s.fill(&f, Egress, &q, &src, &dst)
	f.scope = s.scopeOf(dst.addr, q.ToHost) // also without names
	rules := src.endpoint.Egress.Rules
	var p progress
	for i := range min(len(rules), maxItems) {
		r := &rules[i]
		switch {
		case !p.reaches(r):
		case r.matches(&f):
			if !p.decides(r, &f) {
				continue
			}
			if !r.denies() {
				return nil // a name has been learned meanwhile
			}
			return missed
		case r.Action == Allow && r.matchesPort(&f):
			missed = r.appendDomains(missed, f.scope)
		}
	}
	return missed
}

// appendDomains appends the domains of r that may match addresses of a scope.
func (r *Rule) appendDomains(domains []Domain, within scope) []Domain {
	for i := range r.Peers {
		for _, d := range r.Peers[i].Domains {
			if len(domains) < maxItems && within.mayHave([]Domain{d}) {
				domains = append(domains, d)
			}
		}
	}
	return domains
}
