package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// attemptsAtOnce limits how many attempts a pod makes at the same time.
const attemptsAtOnce = 32

// patience is how much longer than its attempts a session may take to answer.
const patience = 30 * time.Second

// endPatience is how long a command may take to end.
const endPatience = 5 * time.Second

// errEnded is why a session that was ended here does not answer.
var errEnded = errors.New("ended")

// An attempt is a line that a session reads, a result one that it writes, with the same
// ID. They are the lines of "prober try" (docs/testing/prober.md of
// kube-network-policies).
type attempt struct {
	ID           int    `json:"id"`
	Target       string `json:"target"`
	Milliseconds int64  `json:"milliseconds"`
}

type result struct {
	ID      int    `json:"id"`
	Failure string `json:"failure"`
}

// runner runs a command in the container of a pod until it ends.
type runner func(ctx context.Context, namespace, pod string, command []string, in io.Reader, out, errs io.Writer) error

// A session is a command in a pod that makes attempts until it is ended. One goroutine
// uses it at a time.
type session struct {
	in     *io.PipeWriter
	out    *json.Decoder
	cancel context.CancelFunc
	ended  chan struct{} // closed once the command has ended
}

func startSession(run runner, namespace, pod string) *session {
	ctx, cancel := context.WithCancel(context.Background())
	in, toCommand := io.Pipe()
	fromCommand, out := io.Pipe()
	s := &session{in: toCommand, out: json.NewDecoder(fromCommand), cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		var said bytes.Buffer
		err := run(ctx, namespace, pod, []string{"prober", "try", "-at-once=" + strconv.Itoa(attemptsAtOnce)}, in, out, &said)
		switch {
		case ctx.Err() != nil:
			err = errEnded
		case err == nil:
			err = io.ErrUnexpectedEOF
		}
		if said.Len() > 0 {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(said.Bytes()))
		}
		in.CloseWithError(err)
		out.CloseWithError(err)
	}()
	return s
}

// end ends the command, with the end of its input if that is enough, and waits for it.
func (s *session) end() {
	s.in.Close()
	select {
	case <-s.ended:
	case <-time.After(endPatience):
	}
	s.cancel()
	<-s.ended
}

func (s *session) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// try makes attempts and returns the kind of failure of each by its ID, empty after a
// success. After an error the session has ended, and some are missing.
func (s *session) try(ctx context.Context, attempts []attempt) (map[int]string, error) {
	limit := patience
	for _, a := range attempts {
		limit += time.Duration(a.Milliseconds) * time.Millisecond // if they were made one by one
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(ctx, s.cancel)()

	asked := make(map[int]bool, len(attempts))
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, a := range attempts {
		asked[a.ID] = true
		if err := encoder.Encode(a); err != nil {
			return nil, err
		}
	}
	// The command answers while it still reads.
	go func() { _, _ = s.in.Write(lines.Bytes()) }()

	failures := make(map[int]string, len(attempts))
	for len(failures) < len(attempts) {
		var r result
		err := s.out.Decode(&r)
		if _, again := failures[r.ID]; err == nil && (again || !asked[r.ID]) {
			err = fmt.Errorf("an answer to %d, which was not asked", r.ID)
		}
		if err != nil {
			s.end()
			return failures, err
		}
		failures[r.ID] = r.Failure
	}
	return failures, nil
}
