package steer

import "fmt"

// Packets that only audited policies select have a queue of their own, because auditing must not
// change their fate: the kernel accepts them if there is no listener and if the queue is full.
const (
	auditedChain = "audited" // exempts packets from the pod's own node
	auditChain   = "audit"   // queues

	auditIngressSet = "audit-ingress"
	auditEgressSet  = "audit-egress"
	auditHostSet    = "audit-host"

	auditCounter = "audited"
)

func (c Config) audits() bool { return c.AuditQueue != 0 }

// auditChains follow the chains that queue.
func auditChains(cfg Config) []chain {
	if !cfg.audits() {
		return nil
	}
	return []chain{
		{name: auditChain, rules: []string{fmt.Sprintf("counter name %s queue flags bypass to %d", auditCounter, cfg.AuditQueue)}},
		{name: auditedChain, rules: ownNodeRules(auditChain)},
	}
}

// auditSelectRules follow selectRules: a packet that enforced policies also select is decided, not
// audited.
func auditSelectRules(cfg Config) []string {
	if !cfg.audits() {
		return nil
	}
	var rules []string
	for _, f := range families {
		rules = append(rules,
			fmt.Sprintf("%s daddr %s goto %s", f.ip, f.set(auditIngressSet), auditedChain),
			fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(auditEgressSet), auditedChain))
	}
	return rules
}

// auditInputRules follow toHostRules.
func auditInputRules(cfg Config) []string {
	if !cfg.audits() {
		return nil
	}
	var rules []string
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(auditHostSet), auditChain))
	}
	return rules
}

// validateAudit returns an error if the audit queue has another use, too.
func (c Config) validateAudit() error {
	if !c.audits() {
		return nil
	}
	others := c.deciding().Contains(c.AuditQueue) || c.ObserveQueue == c.AuditQueue || c.shares() && c.overflow().Contains(c.AuditQueue)
	if others {
		return fmt.Errorf("AuditQueue %d is one of the other queues", c.AuditQueue)
	}
	return nil
}
