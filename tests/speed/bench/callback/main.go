// The callback loop for comparison in the table of `make bench`: go-nfqueue as in the
// example of its documentation, one packet and one verdict at a time, with the default
// sizes of the library and the kernel. It accepts all packets of queue 0 until its standard
// input ends.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "callback:", err)
		os.Exit(1)
	}
}

func run() error {
	nf, err := nfqueue.Open(&nfqueue.Config{
		MaxPacketLen: 0xffff,
		MaxQueueLen:  0xff,
		Copymode:     nfqueue.NfQnlCopyPacket,
		WriteTimeout: 15 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	defer nf.Close()
	if err := nf.SetOption(netlink.NoENOBUFS, true); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	accept := func(a nfqueue.Attribute) int {
		_ = nf.SetVerdict(*a.PacketID, nfqueue.NfAccept)
		return 0
	}
	goOn := func(error) int { return 0 }
	if err := nf.RegisterWithErrorFunc(ctx, accept, goOn); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
