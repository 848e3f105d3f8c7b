package apiconn

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// inbox is where so many bytes arrive each millisecond.
type inbox struct {
	began time.Time
	each  int
	read  int // bytes
	reads int
}

func (i *inbox) there() int { return i.each * int(time.Since(i.began)/time.Millisecond) }

func (i *inbox) Read(p []byte) (int, error) {
	i.reads++
	for i.there() == i.read {
		time.Sleep(time.Millisecond)
	}
	n := min(i.there()-i.read, len(p))
	i.read += n
	return n, nil
}

func TestABusyConnectionIsReadAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{began: time.Now(), each: 4500} // a change
		c := new(Connections).reader(io.NopCloser(in))
		room := make([]byte, 10<<20)
		if n, err := c.Read(room); n != in.each || err != nil || time.Since(in.began) != time.Millisecond {
			t.Errorf("%d bytes after %v: %v", n, time.Since(in.began), err)
		}
		for time.Since(in.began) < time.Second {
			if _, err := c.Read(room); err != nil {
				t.Fatal(err)
			}
		}
		if most := readBurst + int(time.Second/readInterval) + 1; in.reads > most {
			t.Errorf("%d reads in a second, want at most %d", in.reads, most)
		}
		time.Sleep(time.Second)
		before := time.Now()
		if n, err := c.Read(room); n < 1000*in.each/2 || err != nil || time.Since(before) != 0 {
			t.Errorf("after a second without reading %d bytes in %v: %v", n, time.Since(before), err)
		}
	})
}

func TestFewChangesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, near := net.Pipe()
		defer far.Close()
		c := new(Connections).reader(near)
		const changes = 400
		go func() {
			for i := range changes {
				if i%2 == 0 { // two at a time, 40 a second
					time.Sleep(50 * time.Millisecond)
				}
				_, _ = far.Write(make([]byte, 4500))
			}
		}()
		began := time.Now()
		for i := range changes {
			if _, err := c.Read(make([]byte, 5000)); err != nil {
				t.Fatal(err)
			}
			if due := time.Duration(i/2+1) * 50 * time.Millisecond; time.Since(began) != due {
				t.Fatalf("change %d arrived after %v and was read after %v", i, due, time.Since(began))
			}
		}
	})
}

func TestAListIsReadAsItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Connections
		in := &inbox{began: time.Now(), each: 1000}
		c := p.reader(io.NopCloser(in))
		end := p.Listing()
		room := make([]byte, 10<<20)
		for time.Since(in.began) < time.Second {
			if _, err := c.Read(room); err != nil {
				t.Fatal(err)
			}
		}
		if in.reads < 1000 {
			t.Errorf("%d reads of what came 1,000 times", in.reads)
		}
		end()
		end()
		in.reads = 0
		for time.Since(in.began) < 2*time.Second {
			if _, err := c.Read(room); err != nil {
				t.Fatal(err)
			}
		}
		if most := readBurst + int(time.Second/readInterval) + 2; in.reads > most {
			t.Errorf("%d reads in the second after the list, want at most %d", in.reads, most)
		}
	})
}

func TestClosingEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(Connections).reader(io.NopCloser(bytes.NewReader(nil)))
		began := time.Now()
		_, _ = c.Read(make([]byte, 1))
		go func() { _ = c.Close() }()
		if _, err := c.Read(make([]byte, 1)); err != io.EOF || time.Since(began) != 0 {
			t.Errorf("reading went on for %v: %v", time.Since(began), err)
		}
	})
}
