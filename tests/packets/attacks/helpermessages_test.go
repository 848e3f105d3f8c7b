package attacks

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// saneStart asks a server of scanners for a port, and saneStarted is its answer.
const saneStart = "\x00\x00\x00\x07\x00\x00\x00\x01"

func saneStarted(port uint16) string { return string(labtest.Uint16s(0, 0, 0, port)) }

// sipInvite invites the server of a SIP connection to send audio to an address of the client.
func sipInvite(client netip.Addr, port uint16) string {
	version := map[bool]string{true: "IP4", false: "IP6"}[client.Is4()]
	body := fmt.Sprintf("v=0\r\no=- 1 1 IN %[1]s %[2]s\r\ns=-\r\nc=IN %[1]s %[2]s\r\nt=0 0\r\nm=audio %[3]d RTP/AVP 0\r\n", version, client, port)
	return fmt.Sprintf("INVITE sip:web@example.org SIP/2.0\r\nCSeq: 1 INVITE\r\nContent-Type: application/sdp\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// transportAddress encodes a TransportAddress of H.225, in the aligned variant of PER.
func transportAddress(at netip.AddrPort) string {
	kind := "\x00"
	if at.Addr().Is6() {
		kind = "\x30"
	}
	return kind + string(at.Addr().AsSlice()) + string(labtest.Uint16s(at.Port()))
}

// h225 is the identifier of the protocol, with its length.
const h225 = "\x06\x00\x08\x91\x4a\x00\x05"

// rasConfirm is the answer of an H.323 gatekeeper that names where to register.
func rasConfirm(at netip.AddrPort) string {
	return "\x04\x00" + "\x00\x01" + h225 + transportAddress(at)
}

// q931Forward is a Q.931 message that forwards a call to another address.
func q931Forward(at netip.AddrPort) string {
	const facility, userToUser = "\x62", "\x7e"
	info := "\x05" + "\x06\x40" + h225 + transportAddress(at) + "\x20"
	message := "\x08\x02\x00\x01" + facility + userToUser + string(labtest.Uint16s(uint16(len(info)))) + info
	return "\x03\x00" + string(labtest.Uint16s(uint16(4+len(message)))) + message
}

// pptpMessage is a control message with the first words of its contents.
func pptpMessage(kind uint16, words ...uint16) string {
	const length, control = 168, 1
	header := labtest.Uint16s(length, control, 0x1a2b, 0x3c4d, kind, 0)
	text := string(header) + string(labtest.Uint16s(words...))
	return text + strings.Repeat("\x00", length-len(text))
}

// pptpData is a GRE packet to the server's end of a call.
func pptpData(call uint16) []byte {
	const keyAndSequence, ppp = 0x3001, 0x880b
	header := labtest.Uint16s(keyAndSequence, ppp, 4, call)
	return append(binary.BigEndian.AppendUint32(header, 1), "data"...)
}
