package policycache

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// inbox is a connection on which a byte arrives each millisecond.
type inbox struct {
	net.Conn
	began time.Time
	read  int // bytes
	reads int
}

func (i *inbox) Read(p []byte) (int, error) {
	i.reads++
	for {
		if there := int(time.Since(i.began) / time.Millisecond); there > i.read {
			n := min(there-i.read, len(p))
			i.read += n
			return n, nil
		}
		time.Sleep(time.Until(i.began.Add(time.Duration(i.read+1) * time.Millisecond)))
	}
}

func TestABusyConnectionIsReadAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{began: time.Now()}
		c := &pacedConn{Conn: in}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil || time.Since(in.began) != time.Millisecond {
			t.Errorf("the first byte came after %v: %v", time.Since(in.began), err)
		}
		for room := make([]byte, 100); in.read < 1000; {
			if _, err := c.Read(room); err != nil {
				t.Fatal(err)
			}
		}
		if most := 1000/5 + 2; in.reads > most {
			t.Errorf("%d reads in a second, want at most %d", in.reads, most)
		}
		time.Sleep(time.Second)
		before := time.Now()
		if n, err := c.Read(make([]byte, 1000)); n < 1000 || err != nil || time.Since(before) != 0 {
			t.Errorf("after a quiet second %d bytes in %v: %v", n, time.Since(before), err)
		}
	})
}

func TestBulkIsReadWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := &pacedConn{Conn: &bulk{Reader: bytes.NewReader(make([]byte, 1<<20))}}
		for room := make([]byte, 1<<10); ; {
			if _, err := c.Read(room); err == io.EOF {
				break
			}
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("reading a megabyte paused for %v", d)
		}
	})
}

type bulk struct {
	net.Conn
	*bytes.Reader
}

func (b *bulk) Read(p []byte) (int, error) { return b.Reader.Read(p) }
