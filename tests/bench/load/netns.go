// Package load makes traffic in network namespaces: datagrams of which each is a
// new flow, and connections one after the other. It knows addresses and names of
// namespaces, and nothing of who judges what it sends.
package load

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Inside runs f on a thread of the network namespace that path names. Sockets that
// f opens stay in it and may be used from any goroutine.
//
// A program that uses it keeps its main thread for itself (runtime.LockOSThread in
// an init function), because /proc/self speaks of that thread.
func Inside(path string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := enter(path)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func enter(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}
