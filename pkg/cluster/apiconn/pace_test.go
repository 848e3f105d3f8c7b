package apiconn

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// inbox receives a number of bytes each millisecond.
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

// receive reads the available bytes, and counts the changes in them, which have this size.
func receive(t *testing.T, from *Connections, c io.Reader, room []byte, each int) (n int) {
	t.Helper()
	n, err := c.Read(room)
	if err != nil {
		t.Fatal(err)
	}
	for range n / each {
		from.Changed()
	}
	return n
}

func TestABusyConnectionIsReadAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{began: time.Now(), each: 4500} // a change
		var from Connections
		c := from.reader(io.NopCloser(in))
		room := make([]byte, 10<<20)
		for i := range calmRate {
			receive(t, &from, c, room, in.each)
			if due := time.Duration(i+1) * time.Millisecond; time.Since(in.began) != due {
				t.Fatalf("change %d arrived after %v and was read after %v", i, due, time.Since(in.began))
			}
		}
		for time.Since(in.began) < time.Second {
			receive(t, &from, c, room, in.each)
		}
		in.reads = 0
		for time.Since(in.began) < 2*time.Second {
			receive(t, &from, c, room, in.each)
		}
		if most := int(time.Second/maxPause) + 1; in.reads > most {
			t.Errorf("%d reads in the next second, want at most %d", in.reads, most)
		}
		time.Sleep(time.Second)
		before := time.Now()
		if n := receive(t, &from, c, room, in.each); n < 1000*in.each/2 || time.Since(before) != 0 {
			t.Errorf("after a second without reading %d bytes in %v", n, time.Since(before))
		}
	})
}

func TestThePauseGrowsWithTheRate(t *testing.T) {
	for _, tc := range []struct {
		rate float64
		want time.Duration
	}{
		{0, 0},
		{calmRate, 0},
		{(calmRate + busyRate) / 2, maxPause / 2},
		{busyRate, maxPause},
		{1e6, maxPause},
	} {
		t.Run(fmt.Sprint(tc.rate, " a second"), func(t *testing.T) {
			if got := pause(tc.rate); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

func TestFewChangesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, near := net.Pipe()
		defer far.Close()
		var from Connections
		c := from.reader(near)
		const changes, size, every = 1000, 4500, 25 * time.Millisecond
		go func() {
			for i := range changes {
				if i%2 == 0 { // two at a time, 80 a second
					time.Sleep(every)
				}
				_, _ = far.Write(make([]byte, size))
			}
		}()
		began := time.Now()
		for i := range changes {
			receive(t, &from, c, make([]byte, size+500), size)
			if due := time.Duration(i/2+1) * every; time.Since(began) != due {
				t.Fatalf("change %d arrived after %v and was read after %v", i, due, time.Since(began))
			}
		}
	})
}

func TestAListIsReadAsItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var from Connections
		in := &inbox{began: time.Now(), each: 1000}
		c := from.reader(io.NopCloser(in))
		room := make([]byte, 10<<20)
		readFor := func(d time.Duration) (reads int) {
			in.reads = 0
			for began := time.Now(); time.Since(began) < d; {
				receive(t, &from, c, room, in.each)
			}
			return in.reads
		}
		end := from.Listing()
		if reads := readFor(time.Second); reads < 1000 {
			t.Errorf("%d reads of what came 1,000 times", reads)
		}
		end()
		end()
		if reads := readFor(calmRate * time.Millisecond); reads < calmRate {
			t.Errorf("%d reads of the first %d changes after the list", reads, calmRate)
		}
		readFor(time.Second)
		if reads, most := readFor(time.Second), int(time.Second/maxPause)+1; reads > most {
			t.Errorf("%d reads in a second after the list, want at most %d", reads, most)
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
