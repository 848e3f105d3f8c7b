// Package nft writes nftables tables over netlink. It does without the nft program: different
// versions cannot read each other's tables, and an old one crashes as soon as any table of the
// node has a set with data that it does not know.
package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/batch"
)

// ErrGeneration means that nftables has changed since the generation for which a transaction was
// planned. Nothing was written.
var ErrGeneration = batch.ErrGeneration

// Options configures a Table.
type Options struct {
	// Sets are the sets of the table, whoever creates them: their types decide how rules and
	// elements are encoded.
	Sets []*knftables.Set
	// XTables writes queue statements as the NFQUEUE target of xtables, for kernels without
	// the statement.
	XTables bool
}

// Table writes one table. All commits come from one socket that stays open, so that its port
// distinguishes their notifications from those of other processes. The socket is opened by the
// first commit, in the network namespace of the process.
//
// Its methods may be called from any goroutine.
type Table struct {
	encoder encoder
	port    atomic.Uint32
	busy    chan struct{} // full while a commit uses the fields below

	conn  conn // nil before the first commit, and after an error of the socket
	batch batch.Batch
	dial  func() (conn, error)
}

// conn is a batch.Conn, except in tests.
type conn interface {
	Commit(*batch.Batch) ([]batch.Fault, error)
	Port() uint32
	Close() error
}

// New returns the table with that family and name, which need not exist. It refuses sets whose
// type it does not know.
func New(family knftables.Family, name string, o Options) (*Table, error) {
	e, err := newEncoder(family, name, o)
	if err != nil {
		return nil, fmt.Errorf("table %s %s: %w", family, name, err)
	}
	return &Table{encoder: e, busy: make(chan struct{}, 1), dial: func() (conn, error) { return batch.Dial() }}, nil
}

// Port is the netlink port that commits come from, 0 before the first one.
func (t *Table) Port() uint32 { return t.port.Load() }

// Run commits tx. If the kernel refuses a change, the error names it and nothing is committed. If
// ctx ends while the kernel handles a transaction of another process, tx may still be committed
// later.
func (t *Table) Run(ctx context.Context, tx *Transaction) error { return t.RunAt(ctx, tx, 0) }

// RunAt is like Run, but returns ErrGeneration unless generation is the current one of nftables.
// Each commit of any process starts a new generation unless it changes nothing. Generation 0
// stands for any.
func (t *Table) RunAt(ctx context.Context, tx *Transaction, generation uint32) error {
	select {
	case t.busy <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("an earlier transaction has not ended: %w", ctx.Err())
	}
	done := make(chan error, 1)
	go func() {
		err := t.commit(tx, generation)
		<-t.busy
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the kernel has not handled the transaction yet: %w", ctx.Err())
	}
}

// commit commits tx. The caller holds busy.
func (t *Table) commit(tx *Transaction, generation uint32) error {
	if err := t.open(); err != nil {
		return err
	}
	t.batch.Begin(generation)
	origins, err := t.encoder.encode(&t.batch, tx)
	if err != nil {
		return err
	}
	faults, err := t.conn.Commit(&t.batch)
	switch {
	case errors.Is(err, ErrGeneration):
		return err
	case err != nil:
		t.close() // further answers would be taken for those to the next transaction
		return err
	case len(faults) > 0:
		return origins.explain(faults)
	}
	return nil
}

func (t *Table) open() error {
	if t.conn != nil {
		return nil
	}
	conn, err := t.dial()
	if err != nil {
		return err
	}
	t.conn = conn
	t.port.Store(conn.Port())
	return nil
}

func (t *Table) close() {
	t.port.Store(0)
	t.conn.Close()
	t.conn = nil
}

// Close closes the socket after a running commit. It leaves the table in place.
func (t *Table) Close() {
	t.busy <- struct{}{}
	defer func() { <-t.busy }()
	if t.conn != nil {
		t.close()
	}
}

// origins are the changes that the messages of a batch encode, in the order of the messages.
type origins []origin

type origin struct {
	message int // its index in the batch
	offset  int // where in the message op begins
	op      operation
}

// explain returns an error that names the change that caused the first fault. Some kernels, such
// as Linux 5.10, do not say which of the elements of a message it is.
func (o origins) explain(faults []batch.Fault) error {
	f := faults[0]
	o = slices.DeleteFunc(slices.Clone(o), func(culprit origin) bool { return culprit.message != f.Message })
	culprit := o[0]
	for _, origin := range o {
		if origin.offset <= f.Offset {
			culprit = origin
		}
	}
	err := fmt.Errorf("%s: %w", culprit.op, f.Errno)
	if following := len(o) - 2; f.Offset == 0 && following > 0 { // the first element has two origins
		err = fmt.Errorf("%s, or one of the %d after it: %w", culprit.op, following, f.Errno)
	}
	if f.Text != "" {
		err = fmt.Errorf("%w (%s)", err, f.Text)
	}
	if more := len(faults) - 1; more > 0 {
		err = fmt.Errorf("%w, and %d more refused", err, more)
	}
	return err
}
