// Package bounds has the bounds of all that a peer chooses: lengths, counts and lifetimes at the ports
// and the socket of agents and status writer, and in answers of other agents. It owns the values and
// their table, and does not know who keeps them.
package bounds

import "time"

// Bounds of a TLS handshake. The certificate of an agent and its proof take less than 4 KiB.
const (
	HandshakeBytes   = 16 << 10
	HandshakeTime    = 5 * time.Second // of the wait for its turn, and of the handshake with the check of its key
	Certificates     = 1
	Name             = 253 // bytes of a node name, a namespace, a pod name or a UID, as in the API
	HandshakeRate    = 25  // per second and at once, for each group of clients
	HandshakeWaiting = 64  // that have not begun, for each group
	HandshakeRunning = 64  // at a time, for each group
	HandshakeClients = 8   // waiting of one client
)

// Bounds of connections.
const (
	Connections          = 64 // of a group
	ConnectionsPerClient = 8
	StreamsPerKey        = 1
	StreamTime           = 10 * time.Minute
	HeaderTime           = 5 * time.Second
	ReadTime             = 10 * time.Second
	WriteTime            = 15 * time.Second // includes the time for which a request waits
	IdleTime             = 2 * time.Minute
	// RequestRate limits the requests of a group, per second and at once. Requests beyond it wait, one
	// per client: waiting costs no CPU, while clients would repeat a refused request. With 64 clients a
	// request takes six seconds.
	RequestRate           = 10
	RequestsPerConnection = 1000
)

// Bounds of a request.
const (
	HeaderBytes = 16 << 10
	HeaderSlop  = 4 << 10 // what net/http reads beyond its limit
	URLBytes    = 4 << 10
	TokenBytes  = 8 << 10
	BodyBytes   = 0
	// InForceWait is the longest wait for a version, InForceWaiting how many requests wait at a time.
	InForceWait    = 5 * time.Second
	InForceWaiting = 32
)

// Bounds of what is remembered of clients.
const (
	KnownKeys     = 1024 // with the address where each was last proved
	KnownFor      = 10 * time.Minute
	RecentClients = 1024 // with when each last began a handshake
	RecentFor     = time.Minute
	KnownNodes    = 1024 // with the keys of their agents
	ListInterval  = 5 * time.Second
	ListRate      = 5 // per second, and ListBurst at once
	ListBurst     = 20
	LeaseInterval = 5 * time.Second
	Tokens        = 32
	ReviewRate    = 2 // per second, and ReviewBurst at once
	ReviewBurst   = 10
)

// Bounds of what an agent or a status writer reads of the answers of agents.
const (
	AnswerHeader = 16 << 10
	AnswerReason = 256
	AnswerTime   = 5 * time.Second
	InForceBytes = 64 << 10
	InForceKinds = 32
	InForceText  = 512
	// InForceUncertain is how many policies with uncertain pods are listed. An entry for all stands for more.
	InForceUncertain = 32
	LineBytes        = 512 << 10
	LineSandboxes    = 1024
	LineAddresses    = 16 // of a sandbox
	LineRate         = 20 // per second and at once
	LineSilence      = 15 * time.Second
	AskedNodes       = 64
)

// Bounds of packets that wait until it is known who sent or gets them. Kubelets that start 150 pods at once
// take 3.6 s for a status.
const (
	PacketWait  = time.Second
	LongWait    = 4 * time.Second // for packets of unknown sources
	LongWaiting = 1280            // in a queue
)
