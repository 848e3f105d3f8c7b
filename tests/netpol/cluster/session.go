package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// attemptsAtOnce limits how many attempts a pod makes at the same time.
const attemptsAtOnce = 32

// patience is how much longer than its attempts a session may take to answer.
const patience = 30 * time.Second

// endPatience is how long a command may take to end.
const endPatience = 5 * time.Second

// errEnded is the error of a session that was ended on purpose.
var errEnded = errors.New("ended")

// attempt is what a session is asked for, and result its answer, with the same ID. In JSON both are the
// lines of "prober try" and "prober hold" (docs/testing/prober.md of kube-network-policies).
type attempt struct {
	ID           int    `json:"id"`
	Target       string `json:"target,omitempty"` // without it, a question about a held connection
	Milliseconds int64  `json:"milliseconds,omitempty"`
	SourcePort   int    `json:"sourcePort,omitempty"` // of a connection to hold
}

type result struct {
	ID      int     `json:"id"`
	Failure string  `json:"failure"`
	Error   string  `json:"error"`
	Took    float64 `json:"tookMilliseconds"`
	Silent  float64 `json:"silentMilliseconds"`
}

var holdCommand = []string{"prober", "hold"}

// runner runs a command in the container of a pod until it ends.
type runner func(ctx context.Context, namespace, pod string, command []string, in io.Reader, out, errs io.Writer) error

// session is a command in a pod that makes attempts until it is ended. Only one goroutine
// may use it at a time.
type session struct {
	program program
	in      *io.PipeWriter
	out     *json.Decoder
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the command has ended
}

func startSession(run runner, pod string, p program, command []string) *session {
	namespace, name, _ := strings.Cut(pod, "/")
	ctx, cancel := context.WithCancel(context.Background())
	in, toCommand := io.Pipe()
	fromCommand, out := io.Pipe()
	s := &session{program: p, in: toCommand, out: json.NewDecoder(fromCommand), cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		var complaint bytes.Buffer
		err := run(ctx, namespace, name, command, in, out, &complaint)
		switch {
		case ctx.Err() != nil:
			err = errEnded
		case err == nil:
			err = io.ErrUnexpectedEOF
		}
		if complaint.Len() > 0 {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(complaint.Bytes()))
		}
		in.CloseWithError(err)
		out.CloseWithError(err)
	}()
	return s
}

// end closes the command's input, cancels the command if it does not end by that, and waits
// for it.
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

// try makes attempts and returns their results by ID. After an error the session has ended and
// results may be missing.
func (s *session) try(ctx context.Context, attempts []attempt) (map[int]result, error) {
	limit := patience
	for _, a := range attempts {
		limit += time.Duration(a.Milliseconds) * time.Millisecond // enough to make them one by one
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(ctx, s.cancel)()

	asked := make(map[int]bool, len(attempts))
	for _, a := range attempts {
		asked[a.ID] = true
	}
	lines, err := s.program.encode(attempts)
	if err != nil {
		return nil, err
	}
	// The command answers while it still reads.
	go func() { _, _ = s.in.Write(lines) }()

	results := make(map[int]result, len(attempts))
	for len(results) < len(attempts) {
		r, err := s.program.decode(s.out)
		if _, answered := results[r.ID]; err == nil && (answered || !asked[r.ID]) {
			err = fmt.Errorf("an answer to %d, which was not asked", r.ID)
		}
		if err != nil {
			s.end()
			return results, err
		}
		results[r.ID] = r
	}
	return results, nil
}
