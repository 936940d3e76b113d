package main

import (
	"os"
	"sync"
)

const (
	stdinWindow = 64 << 10
	endOfInput  = 4 // Ctrl-D, what a terminal takes for the end
)

// stdinQueue feeds a command's input in order; each attachment has its own window, given back as bytes go in.
type stdinQueue struct {
	mu      sync.Mutex
	changed *sync.Cond
	pieces  []stdinPiece
	closed  bool
}

type stdinPiece struct {
	data []byte
	done func(int)
}

func newStdinQueue(file *os.File, tty bool) *stdinQueue {
	q := &stdinQueue{}
	q.changed = sync.NewCond(&q.mu)
	go q.feed(file, tty)
	return q
}

func (q *stdinQueue) put(data []byte, done func(int)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		go done(len(data)) // nobody reads it any more; the sender need not wait
		return
	}
	q.pieces = append(q.pieces, stdinPiece{data, done})
	q.changed.Signal()
}

func (q *stdinQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Signal()
}

func (q *stdinQueue) feed(file *os.File, tty bool) {
	broken := false
	for {
		q.mu.Lock()
		for len(q.pieces) == 0 && !q.closed {
			q.changed.Wait()
		}
		if len(q.pieces) == 0 {
			q.mu.Unlock()
			break
		}
		piece := q.pieces[0]
		q.pieces = q.pieces[1:]
		q.mu.Unlock()
		if !broken {
			_, err := file.Write(piece.data)
			broken = err != nil
		}
		piece.done(len(piece.data))
	}
	if tty {
		_, _ = file.Write([]byte{endOfInput})
		return
	}
	file.Close()
}
