package steer

import "fmt"

// Packets that only audited policies select are queued apart, so that they fare as if
// these policies were not there: without a listener, and when the queue is full, the
// kernel accepts them.
const (
	auditedChain = "audited" // exempts what the pod's own node sends
	auditChain   = "audit"   // queues

	auditIngressSet = "audit-ingress"
	auditEgressSet  = "audit-egress"
	auditHostSet    = "audit-host"

	auditCounter = "audited"
)

func (c Config) audits() bool { return c.AuditQueue != 0 }

// auditChains come after the chains that queue.
func auditChains(cfg Config) []chain {
	if !cfg.audits() {
		return nil
	}
	return []chain{
		{name: auditChain, rules: []string{fmt.Sprintf("counter name %s queue flags bypass to %d", auditCounter, cfg.AuditQueue)}},
		{name: auditedChain, rules: ownNodeRules(auditChain)},
	}
}

// auditSelectRules come after selectRules: a packet that other policies select, too, is
// decided.
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

// auditInputRules come after inputRules.
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

// validateAudit returns an error if the audit queue is one of the others.
func (c Config) validateAudit() error {
	if !c.audits() {
		return nil
	}
	others := queueRange{c.Queue, c.Queues}.contains(c.AuditQueue) || c.ObserveQueue == c.AuditQueue || c.shares() && c.overflow().contains(c.AuditQueue)
	if others {
		return fmt.Errorf("AuditQueue %d is one of the other queues", c.AuditQueue)
	}
	return nil
}
