package nft

import (
	"fmt"
	"strings"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// Transaction is a list of changes to one table. The kernel makes all of them or none. The zero
// value is empty.
type Transaction struct{ operations []operation }

// operation is a change of one object: a *Rule, or a table, chain, set, counter or element of knftables.
type operation struct {
	verb   verb
	object any
}

// Rule is a rule of a chain.
type Rule struct {
	Chain string
	Rule  rule.Rule
}

type verb string

const (
	addVerb    verb = "add"
	deleteVerb verb = "delete"
	flushVerb  verb = "flush"
)

// Add creates object, which may already exist.
func (tx *Transaction) Add(object knftables.Object) { tx.append(addVerb, object) }

// AddRule appends a rule to a chain.
func (tx *Transaction) AddRule(chain string, r rule.Rule) { tx.append(addVerb, &Rule{chain, r}) }

// Delete removes object with its contents. It must exist.
func (tx *Transaction) Delete(object knftables.Object) { tx.append(deleteVerb, object) }

// Flush removes the rules of a table or chain, or the elements of a set.
func (tx *Transaction) Flush(object knftables.Object) { tx.append(flushVerb, object) }

func (tx *Transaction) append(verb verb, object any) {
	tx.operations = append(tx.operations, operation{verb, object})
}

// NumOperations is the number of changes.
func (tx *Transaction) NumOperations() int { return len(tx.operations) }

// Recorder records the changes of a Transaction, as knftables.Transaction does.
type Recorder interface {
	Add(knftables.Object)
	Delete(knftables.Object)
	Flush(knftables.Object)
}

// Replay adds the changes of tx to r, in the same order, with rules as text.
func (tx *Transaction) Replay(r Recorder) {
	for _, op := range tx.operations {
		if add, ok := op.object.(*Rule); ok {
			r.Add(&knftables.Rule{Chain: add.Chain, Rule: add.Rule.String()})
			continue
		}
		object := op.object.(knftables.Object)
		switch op.verb {
		case addVerb:
			r.Add(object)
		case deleteVerb:
			r.Delete(object)
		case flushVerb:
			r.Flush(object)
		}
	}
}

// String returns tx in the syntax of nft, without the name of the table, for logs.
func (tx *Transaction) String() string {
	var b strings.Builder
	for _, op := range tx.operations {
		fmt.Fprintln(&b, op)
	}
	return b.String()
}

// String returns op in the syntax of nft, without the name of the table.
func (op operation) String() string {
	switch o := op.object.(type) {
	case *knftables.Table:
		return fmt.Sprintf("%s table", op.verb)
	case *knftables.Chain:
		return fmt.Sprintf("%s chain %s", op.verb, o.Name)
	case *knftables.Set:
		return fmt.Sprintf("%s set %s", op.verb, o.Name)
	case *knftables.Counter:
		return fmt.Sprintf("%s counter %s", op.verb, o.Name)
	case *Rule:
		return fmt.Sprintf("%s rule %s %s", op.verb, o.Chain, o.Rule)
	case *knftables.Element:
		return fmt.Sprintf("%s element %s { %s }", op.verb, o.Set, strings.Join(o.Key, " . "))
	}
	return fmt.Sprintf("%s %T", op.verb, op.object)
}
