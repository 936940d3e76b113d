package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	maxFrame       = 64 << 10
	frameHeader    = 13
	protocolName   = "space-frames/1"
	heartbeatEvery = 10 * time.Second
	// A peer that takes not one byte for this long is gone; its command no longer waits for it.
	writeBound = 60 * time.Second
)

var errFrame = errors.New("frame longer than 64 KiB")

// frameConn writes whole frames from several goroutines.
type frameConn struct {
	conn net.Conn
	in   *bufio.Reader
	mu   sync.Mutex
}

// upgrade answers 101 and hands the bare connection over.
func upgrade(w http.ResponseWriter) (*frameConn, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	_, err = io.WriteString(conn,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocolName+"\r\n\r\n")
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &frameConn{conn: conn, in: buffered.Reader}, nil
}

func wantsUpgrade(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), protocolName) &&
		strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade")
}

func (f *frameConn) write(kind byte, seq uint64, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	message := make([]byte, frameHeader, frameHeader+len(data))
	message[0] = kind
	binary.BigEndian.PutUint64(message[1:], seq)
	binary.BigEndian.PutUint32(message[9:], uint32(len(data)))
	_ = f.conn.SetWriteDeadline(time.Now().Add(writeBound))
	_, err := f.conn.Write(append(message, data...))
	return err
}

func (f *frameConn) event(seq uint64, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return f.write(frameJSON, seq, data)
}

func (f *frameConn) read() (kind byte, data []byte, err error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(f.in, header[:]); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(header[9:])
	if length > maxFrame {
		return 0, nil, errFrame
	}
	data = make([]byte, length)
	_, err = io.ReadFull(f.in, data)
	return header[0], data, err
}

// beat sends heartbeats until the returned function is called.
func (f *frameConn) beat() (stop func()) {
	done := make(chan struct{})
	go func() {
		ticker := time.NewTicker(heartbeatEvery)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				if f.event(0, map[string]any{"type": "heartbeat"}) != nil {
					f.conn.Close()
					return
				}
			}
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}
