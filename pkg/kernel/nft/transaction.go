package nft

import (
	"fmt"
	"strings"

	"sigs.k8s.io/knftables"
)

// Transaction is a list of changes to one table. The kernel makes all of them or none. The zero
// value is empty.
type Transaction struct{ operations []operation }

// operation is a change of one knftables object: a table, chain, set, counter, rule or element.
type operation struct {
	verb   verb
	object knftables.Object
}

type verb string

const (
	addVerb    verb = "add"
	deleteVerb verb = "delete"
	flushVerb  verb = "flush"
)

// Add creates object. A table, chain, set, counter or element may already exist. A rule is
// appended to its chain.
func (tx *Transaction) Add(object knftables.Object) { tx.append(addVerb, object) }

// Delete removes object with its contents. It must exist.
func (tx *Transaction) Delete(object knftables.Object) { tx.append(deleteVerb, object) }

// Flush removes the rules of a chain or the elements of a set.
func (tx *Transaction) Flush(object knftables.Object) { tx.append(flushVerb, object) }

func (tx *Transaction) append(verb verb, object knftables.Object) {
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

// Replay adds the changes of tx to r, in the same order.
func (tx *Transaction) Replay(r Recorder) {
	for _, op := range tx.operations {
		switch op.verb {
		case addVerb:
			r.Add(op.object)
		case deleteVerb:
			r.Delete(op.object)
		case flushVerb:
			r.Flush(op.object)
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
	case *knftables.Rule:
		return fmt.Sprintf("%s rule %s %s", op.verb, o.Chain, o.Rule)
	case *knftables.Element:
		return fmt.Sprintf("%s element %s { %s }", op.verb, o.Set, strings.Join(o.Key, " . "))
	}
	return fmt.Sprintf("%s %T", op.verb, op.object)
}
