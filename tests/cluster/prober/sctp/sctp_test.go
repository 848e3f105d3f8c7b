package sctp

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"
)

var (
	initPacket = Packet{Type: Init, SrcPort: 40000, DstPort: 80, Tag: 0x01020304}
	ackPacket  = Packet{Type: InitAck, SrcPort: 80, DstPort: 40000, Verification: 0x01020304, Tag: 0x0a0b0c0d}
)

// The bytes are written by hand from RFC 9260, the checksums computed bit by bit.
func TestBytes(t *testing.T) {
	for want, p := range map[string]Packet{
		"9c400050" + "00000000" + "4f71aedc" + "01000014" + "01020304" + "00010000" + "00010001" + "01020304":                                   initPacket,
		"00509c40" + "01020304" + "744ba1e4" + "0200001e" + "0a0b0c0d" + "00010000" + "00010001" + "0a0b0c0d" + "0007000a" + "70726f6265720000": ackPacket,
	} {
		got := p.Bytes()
		if hex.EncodeToString(got) != want {
			t.Errorf("%+v: got %x, want %s", p, got, want)
		}
		if again, ok := Parse(got); !ok || again != p {
			t.Errorf("%+v is read as %+v, %v", p, again, ok)
		}
	}
}

func TestAnswers(t *testing.T) {
	if got := initPacket.Answer(ackPacket.Tag); got != ackPacket || !got.Answers(initPacket) {
		t.Errorf("got %+v, want %+v", got, ackPacket)
	}
	for name, change := range map[string]func(*Packet){
		"another association's":    func(p *Packet) { p.Verification++ },
		"to another port":          func(p *Packet) { p.DstPort++ },
		"from another port":        func(p *Packet) { p.SrcPort++ },
		"an INIT with the same":    func(p *Packet) { p.Type = Init },
		"the INIT itself, as sent": func(p *Packet) { *p = initPacket },
	} {
		p := ackPacket
		change(&p)
		if p.Answers(initPacket) {
			t.Errorf("%s: %+v answers %+v", name, p, initPacket)
		}
	}
}

// change returns the bytes of a packet with some of them replaced, and a right checksum.
func change(p Packet, at int, with ...byte) []byte {
	b := p.Bytes()
	copy(b[at:], with)
	return summed(b)
}

func summed(b []byte) []byte {
	if len(b) >= headerLength {
		binary.LittleEndian.PutUint32(b[checksumAt:], checksum(b))
	}
	return b
}

func TestParseAcceptsParameters(t *testing.T) {
	b := initPacket.Bytes()
	b = append(b, 0, 5, 0, 8, 10, 0, 0, 1, 0, 12, 0, 6, 0, 5, 0, 0) // an address, and supported addresses with padding
	for _, length := range []byte{chunkLength + 14, chunkLength + 16} {
		b[chunkAt+3] = length
		if p, ok := Parse(summed(b)); !ok || p != initPacket {
			t.Errorf("with length %d: got %+v, %v", length, p, ok)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	bundled := append(initPacket.Bytes(), 10, 0, 0, 4) // a COOKIE ECHO behind it
	wrongSum := initPacket.Bytes()
	wrongSum[checksumAt]++
	noCookie := ackPacket.Bytes()[:paramsAt]
	noCookie[chunkAt+3] = chunkLength
	for name, b := range map[string][]byte{
		"nothing":                          nil,
		"a header only":                    summed(initPacket.Bytes()[:headerLength]),
		"a chunk too short":                summed(initPacket.Bytes()[:paramsAt-4]),
		"a wrong checksum":                 wrongSum,
		"source port 0":                    change(initPacket, 0, 0, 0),
		"destination port 0":               change(initPacket, 2, 0, 0),
		"INIT with a verification tag":     change(initPacket, 4, 0, 0, 0, 1),
		"INIT ACK without one":             change(ackPacket, 4, 0, 0, 0, 0),
		"DATA":                             change(initPacket, chunkAt, 0),
		"ABORT":                            change(initPacket, chunkAt, 6),
		"an initiate tag of 0":             change(initPacket, chunkAt+4, 0, 0, 0, 0),
		"a window that is too small":       change(initPacket, chunkAt+8, 0, 0, 5, 219),
		"no outbound streams":              change(initPacket, chunkAt+12, 0, 0),
		"no inbound streams":               change(initPacket, chunkAt+14, 0, 0),
		"a length that is too small":       change(initPacket, chunkAt+2, 0, chunkLength-1),
		"a length beyond the packet":       change(initPacket, chunkAt+2, 0, chunkLength+1),
		"another chunk":                    summed(bundled),
		"INIT ACK without a cookie":        summed(noCookie),
		"another parameter than a cookie":  change(ackPacket, paramsAt, 0, 5),
		"a parameter beyond the chunk":     change(ackPacket, paramsAt+2, 0, 11),
		"a parameter shorter than allowed": change(ackPacket, paramsAt+2, 0, 3),
		"a rest that is no parameter":      change(ackPacket, paramsAt+2, 0, 8),
	} {
		if p, ok := Parse(b); ok || p != (Packet{}) {
			t.Errorf("%s: Parse(%x) = %+v, %v", name, b, p, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(initPacket.Bytes())
	f.Add(ackPacket.Bytes())
	f.Add(change(ackPacket, paramsAt+2, 0, 11))
	f.Add(change(initPacket, chunkAt, 6, 0, 0, 4))
	f.Add(append(initPacket.Bytes(), 0, 12, 0, 6, 0, 5, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= headerLength && binary.LittleEndian.Uint32(b[checksumAt:]) != checksum(b) {
			if p, ok := Parse(b); ok {
				t.Fatalf("%x has a wrong checksum: %+v", b, p)
			}
		}
		given := slices.Clone(b)
		p, ok := Parse(summed(given)) // otherwise the checksum hides what is behind it
		if !ok {
			return
		}
		if again, ok := Parse(p.Bytes()); !ok || again != p {
			t.Fatalf("%x is %+v, whose bytes are %+v, %v", given, p, again, ok)
		}
		if p.Type == Init && !p.Answer(1).Answers(p) {
			t.Fatalf("%+v does not answer %+v", p.Answer(1), p)
		}
		if p, ok := Parse(given[:len(given)-1]); ok {
			t.Fatalf("%x without its last byte is %+v", given, p)
		}
	})
}
