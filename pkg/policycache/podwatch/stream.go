package podwatch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// bufferSize is how much of an answer is read at once, in bytes.
	bufferSize = 64 << 10
	// maxSize is the longest object that is believed, in bytes. What etcd
	// stores is at most a tenth of it.
	maxSize = 16 << 20
)

// input is an answer as it comes in.
type input struct {
	*bufio.Reader
	room []byte // of the latest piece
}

func newInput(r io.Reader) *input { return &input{Reader: bufio.NewReaderSize(r, bufferSize)} }

// piece reads n bytes, which are valid until the next call. There is an end of
// file within them only by mistake.
func (in *input) piece(n uint64) ([]byte, error) {
	if n > maxSize {
		return nil, fmt.Errorf("%d bytes in one piece, more than %d", n, maxSize)
	}
	if uint64(cap(in.room)) < n {
		in.room = make([]byte, n)
	}
	in.room = in.room[:n]
	if _, err := io.ReadFull(in, in.room); err != nil {
		return nil, unexpected(err)
	}
	return in.room, nil
}

// bytesField reads up to the content of the next field, which has to be bytes. The
// error is io.EOF when there is none.
func (in *input) bytesField() (id protowire.Number, length uint64, err error) {
	if _, err := in.Peek(1); err != nil {
		return 0, 0, err
	}
	tag, err := binary.ReadUvarint(in)
	if err != nil {
		return 0, 0, unexpected(err)
	}
	id, typ := protowire.DecodeTag(tag)
	if typ != protowire.BytesType {
		return 0, 0, fmt.Errorf("field %d of a list is of type %d", id, typ)
	}
	length, err = binary.ReadUvarint(in)
	return id, length, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readList reads a PodList, one pod at a time: all pods of a large cluster are
// some hundred megabytes.
func readList(body io.Reader, d *decoder) (*List, error) {
	in := newInput(body)
	if begin, err := in.piece(uint64(len(magic))); err != nil || !bytes.Equal(begin, magic) {
		return nil, errors.Join(errNoProtobuf, err)
	}
	for {
		id, length, err := in.bytesField()
		if err != nil {
			return nil, unexpected(err)
		}
		if id == 2 {
			return readItems(in, int64(length), d)
		}
		if _, err := in.piece(length); err != nil {
			return nil, err
		}
	}
}

// readItems reads the message of a PodList of that many bytes.
func readItems(body io.Reader, length int64, d *decoder) (*List, error) {
	limited := &io.LimitedReader{R: body, N: length}
	in, list := newInput(limited), &List{}
	for {
		id, length, err := in.bytesField()
		if err == io.EOF && limited.N == 0 {
			return list, nil
		}
		if err != nil {
			return nil, unexpected(err)
		}
		message, err := in.piece(length)
		if err != nil {
			return nil, err
		}
		switch id {
		case 1:
			if err := list.Unmarshal(message); err != nil {
				return nil, fmt.Errorf("metadata of a list: %w", err)
			}
		case 2:
			o, err := d.decode(message)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, *o)
		}
	}
}

// events is the watch.Decoder of an answer: a sequence of WatchEvents, each
// behind its length in four bytes.
type events struct {
	body   io.Closer
	in     *input
	listed func() // is called when a list that comes first has ended
	*decoder
}

func newEvents(body io.ReadCloser, d *decoder, listed func()) *events {
	return &events{body, newInput(body), listed, d}
}

// Close ends the answer.
func (e *events) Close() {
	e.listed()
	_ = e.body.Close()
}

// Decode returns the next event. The error is io.EOF at the end.
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	var length [4]byte
	if _, err := io.ReadFull(e.in, length[:]); err != nil {
		return "", nil, err
	}
	frame, err := e.in.piece(uint64(binary.BigEndian.Uint32(length[:])))
	if err != nil {
		return "", nil, err
	}
	typ, message, err := event(frame)
	if err != nil {
		return "", nil, err
	}
	object, err := e.object(typ, message)
	return typ, object, err
}

// event reads a WatchEvent, and returns the message of its object.
func event(frame []byte) (typ watch.EventType, message []byte, err error) {
	err = each(frame, func(f field) error {
		switch f.id {
		case 1:
			typ = watch.EventType(f.bytes)
		case 2: // a RawExtension
			return each(f.bytes, func(f field) (err error) {
				if f.id == 1 {
					message, err = unwrap(f.bytes)
				}
				return err
			})
		}
		return nil
	})
	return typ, message, err
}

// object reads what an event of that type is about.
func (e *events) object(typ watch.EventType, message []byte) (runtime.Object, error) {
	switch typ {
	case watch.Added, watch.Modified, watch.Deleted:
		return e.decode(message)
	case watch.Bookmark:
		o, err := bookmark(message)
		if o.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			e.listed()
		}
		return o, err
	case watch.Error:
		status := &metav1.Status{}
		return status, status.Unmarshal(message)
	}
	return nil, fmt.Errorf("watch event of type %q", typ)
}

// bookmark reads the metadata of a Pod, which is all that a bookmark has.
func bookmark(message []byte) (*Object, error) {
	o := &Object{}
	return o, each(message, func(f field) error {
		if f.id == 1 {
			return o.Unmarshal(f.bytes)
		}
		return nil
	})
}
