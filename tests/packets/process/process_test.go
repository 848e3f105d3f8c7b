package process

import (
	"os"
	"testing"
)

func TestProcessesAreMeasured(t *testing.T) {
	if _, err := CPUTime(os.Getpid()); err != nil {
		t.Error(err)
	}
	now, peak, err := Resident(os.Getpid())
	if err != nil || now < 1<<20 || peak < now/2 {
		t.Errorf("%d bytes, at most %d, %v", now, peak, err)
	}
	if _, err := CPUTime(-1); err == nil {
		t.Error("a process that does not exist has a CPU time")
	}
}
