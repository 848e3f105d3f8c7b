package podwatch

import (
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// whole decodes a message with the codec of the API and compile.NewPod.
func whole(message []byte) (*compile.Pod, error) {
	p := &corev1.Pod{}
	if err := p.Unmarshal(message); err != nil {
		return nil, err
	}
	return NewShared().Strip(p), nil
}

func marshal(t testing.TB, p *corev1.Pod) []byte {
	t.Helper()
	message, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// TestAPodIsReadAsTheCodecOfTheAPIReadsIt reads many pods with one decoder, so that leftovers
// of one pod would show in the next.
func TestAPodIsReadAsTheCodecOfTheAPIReadsIt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	d := newDecoder(NewShared())
	withPorts := 0
	for i := range 2000 {
		p := randomPod(r)
		if i%10 == 0 {
			p = realisticPod(i)
		}
		message := marshal(t, p)
		want, err := whole(message)
		if err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
		got, err := d.decode(message)
		if err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
		if diff := difference(want, got.Pod); diff != "" {
			t.Fatalf("pod %d differs (-want +got):\n%s", i, diff)
		}
		if got.Namespace != p.Namespace || got.Name != p.Name || got.ResourceVersion != p.ResourceVersion {
			t.Fatalf("pod %d: metadata is %+v", i, got.ObjectMeta)
		}
		if len(want.Endpoint.Ports) > 0 {
			withPorts++
		}
	}
	if withPorts < 300 {
		t.Errorf("only %d pods had ports", withPorts)
	}
}

func TestReplicasShareLabelsAndPorts(t *testing.T) {
	d := newDecoder(NewShared())
	decode := func(t *testing.T, i int) *compile.Pod {
		o, err := d.decode(marshal(t, realisticPod(i)))
		if err != nil {
			t.Fatal(err)
		}
		return o.Pod
	}
	shared := NewShared()
	strip := func(_ *testing.T, i int) *compile.Pod { return shared.Strip(realisticPod(i)) }
	for name, read := range map[string]func(*testing.T, int) *compile.Pod{"decoded": decode, "stripped": strip} {
		t.Run(name, func(t *testing.T) {
			a, b, other := read(t, 0).Endpoint, read(t, 1).Endpoint, read(t, 10).Endpoint
			if a.Labels != b.Labels {
				t.Error("two replicas have labels of their own")
			}
			if &a.Ports[0] != &b.Ports[0] {
				t.Error("two replicas have ports of their own")
			}
			if a.Labels.Equal(other.Labels) {
				t.Error("what differs is shared")
			}
		})
	}
}

// TestAPodThatIsCutShortIsAnError cuts at every byte. If the codec of the API still decodes a
// pod, the results must be equal.
func TestAPodThatIsCutShortIsAnError(t *testing.T) {
	message := marshal(t, realisticPod(3))
	d := newDecoder(NewShared())
	errors := 0
	for n := range message {
		want, wantErr := whole(message[:n])
		got, err := d.decode(message[:n])
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%d bytes: error %v, want %v", n, err, wantErr)
		}
		if err != nil {
			errors++
			if !strings.HasPrefix(err.Error(), "pod ") {
				t.Fatalf("%d bytes: %v does not tell the pod", n, err)
			}
		} else if diff := difference(want, got.Pod); diff != "" {
			t.Fatalf("%d bytes: the pod differs (-want +got):\n%s", n, diff)
		}
	}
	if errors < len(message)/2 {
		t.Errorf("%d of %d cuts were errors", errors, len(message))
	}
}

func TestDecodingAKnownReplicaAllocatesWhatIsKept(t *testing.T) {
	message := marshal(t, realisticPod(3))
	d := newDecoder(NewShared())
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := d.decode(message); err != nil {
			t.Fatal(err)
		}
	})
	const most = 16
	if allocs > most {
		t.Errorf("%v allocations, want at most %d", allocs, most)
	}
}

func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 3 {
		f.Add(marshal(f, realisticPod(i)))
		f.Add(marshal(f, randomPod(r)))
	}
	d := newDecoder(NewShared())
	f.Fuzz(func(t *testing.T, message []byte) {
		got, err := d.decode(message)
		want, wantErr := whole(message)
		if wantErr != nil {
			return // it sees faults in fields that are passed over here
		}
		if err != nil {
			t.Fatalf("got %v, want %+v", err, want)
		}
		if diff := difference(want, got.Pod); diff != "" {
			t.Errorf("the pod differs (-want +got):\n%s", diff)
		}
	})
}
