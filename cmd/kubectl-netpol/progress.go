package main

import (
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
)

// progressDelay is how long work takes before it is said what is done.
const progressDelay = time.Second

// progress says what takes long, on a terminal, until done is called.
func (o *options) progress(what string) (done func()) {
	if !isTerminal(o.notes) {
		return func() {}
	}
	return showProgress(o.notes, what)
}

// showProgress writes what is done after a while, and removes it at the end.
func showProgress(out io.Writer, what string) (done func()) {
	var writing sync.Mutex
	shown, ended := false, false
	timer := time.AfterFunc(progressDelay, func() {
		writing.Lock()
		defer writing.Unlock()
		if !ended {
			shown = true
			fmt.Fprintf(out, "%s …", what)
		}
	})
	return func() {
		timer.Stop()
		writing.Lock()
		defer writing.Unlock()
		if ended = true; shown {
			fmt.Fprintf(out, "\r%s\r", pad("", utf8.RuneCountInString(what)+2))
		}
	}
}
