package main

import (
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
)

// progressDelay is how long work must take before a message about it is shown.
const progressDelay = time.Second

// progress shows on a terminal what takes long, until done is called.
func (o *options) progress(what string) (done func()) {
	if !isTerminal(o.notes) {
		return func() {}
	}
	return showProgress(o.notes, what)
}

// showProgress writes the message after progressDelay and removes it at the end.
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
		ended = true
		if shown {
			fmt.Fprintf(out, "\r%s\r", pad("", utf8.RuneCountInString(what)+2))
		}
	}
}
