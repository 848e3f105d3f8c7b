package batch

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dial opens a socket. These tests write only transactions that the kernel refuses, so that they need
// no network namespace.
func dial(t *testing.T) *Conn {
	t.Helper()
	conn, err := Dial()
	if errors.Is(err, unix.EPROTONOSUPPORT) && os.Getenv("NETNS_REQUIRED") == "" {
		t.Skip(err) // an emulator
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// missing fills b with n messages about a table that does not exist.
func missing(b *Batch, n int) {
	b.Begin(0)
	for range n {
		b.Message(unix.NFT_MSG_DELTABLE, 0, unix.NFPROTO_INET)
		b.String(unix.NFTA_TABLE_NAME, "no table has this name")
	}
}

// needAdmin skips a test without CAP_NET_ADMIN: the kernel then refuses each batch as a whole.
func needAdmin(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_NET_ADMIN")
	}
}

func TestFaultsNameTheirMessages(t *testing.T) {
	conn, b := dial(t), &Batch{}
	for _, n := range []int{1, 400} {
		missing(b, n)
		faults, err := conn.Commit(b)
		needAdmin(t, err)
		if err != nil || len(faults) != n {
			t.Fatalf("%d faults of %d, %v", len(faults), n, err)
		}
		for i, f := range faults {
			if f.Message != i || f.Errno != unix.ENOENT || f.Offset == 0 {
				t.Fatalf("fault %d is %+v", i, f)
			}
		}
	}
}

// A transaction larger than the buffer of the socket is not sent.
func TestTransactionLargerThanTheBuffer(t *testing.T) {
	conn, b := dial(t), &Batch{}
	if err := conn.conn.SetWriteBuffer(4096); err != nil {
		t.Fatal(err)
	}
	missing(b, 10_000)
	if _, err := conn.Commit(b); !errors.Is(err, unix.EMSGSIZE) || !strings.Contains(err.Error(), "larger than the socket's buffer") {
		t.Errorf("got %v", err)
	}
	missing(b, 1)
	_, err := conn.Commit(b)
	needAdmin(t, err)
	if err != nil {
		t.Errorf("a transaction that fits: %v", err)
	}
}

// Commit returns an error even if the kernel's answers do not fit into the buffer.
func TestMoreReasonsThanTheBufferHolds(t *testing.T) {
	conn, b := dial(t), &Batch{}
	if err := conn.conn.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	missing(b, 400)
	_, err := conn.Commit(b)
	needAdmin(t, err)
	if err == nil || !strings.Contains(err.Error(), "did not fit into the buffer") {
		t.Errorf("got %v", err)
	}
}

func TestGenerationOfAnotherTime(t *testing.T) {
	conn, b := dial(t), &Batch{}
	b.Begin(1<<32 - 2)
	b.Message(unix.NFT_MSG_NEWTABLE, 0, unix.NFPROTO_INET)
	b.String(unix.NFTA_TABLE_NAME, "no table has this name")
	faults, err := conn.Commit(b)
	needAdmin(t, err)
	if !errors.Is(err, ErrGeneration) || len(faults) > 0 {
		t.Errorf("%d faults, %v", len(faults), err)
	}
}

func FuzzAnswers(f *testing.F) {
	var b Batch
	missing(&b, 3)
	f.Add(b.finish())
	f.Fuzz(func(t *testing.T, datagram []byte) {
		for fault := range faultsIn(datagram) { // must not panic
			if fault.Errno == 0 {
				t.Error("a fault without an error")
			}
		}
	})
}

// A batch does not allocate once its buffer has grown.
func TestBatchDoesNotAllocate(t *testing.T) {
	var b Batch
	if n := testing.AllocsPerRun(10, func() { missing(&b, 100); b.finish() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
