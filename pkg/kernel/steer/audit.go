package steer

import (
	"fmt"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

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

func auditChains(cfg Config) []chain {
	return []chain{
		{name: auditChain, rules: []rule.Rule{{rule.Counter(auditCounter), rule.Queue{First: cfg.AuditQueue, Count: 1, Bypass: true}}}},
		{name: auditedChain, rules: ownNodeRules(auditChain)},
	}
}

// auditSelectRules follow selectRules: a packet that enforced policies also select is decided, not
// audited.
func auditSelectRules(cfg Config) []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		rules = append(rules,
			rule.Rule{f.Daddr.In(f.set(auditIngressSet)), rule.Goto(auditedChain)},
			rule.Rule{f.Saddr.In(f.set(auditEgressSet)), rule.Goto(auditedChain)})
	}
	return rules
}

// auditInputRules follow toHostRules.
func auditInputRules(cfg Config) []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		rules = append(rules, rule.Rule{f.Saddr.In(f.set(auditHostSet)), rule.Goto(auditChain)})
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
