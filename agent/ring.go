package main

import (
	"sort"
	"sync"
	"time"
)

const (
	frameStdin  = 0
	frameStdout = 1
	frameStderr = 2
	frameJSON   = 3

	ringBytes  = 4 << 20
	chunkBytes = 32 << 10
	entryCost  = 64 // what an entry takes beside its bytes, so that a million tiny writes are bounded too
	// A reader that takes nothing for this long no longer holds the command up.
	stallBound = 30 * time.Second
)

// entry is one piece of a command's stream. Output of n bytes is n positions long, an event one.
type entry struct {
	start, end uint64
	kind       byte
	data       []byte
}

func (e *entry) cost() int { return len(e.data) + entryCost }

// ring keeps the newest output of a command and all of its events, by position.
type ring struct {
	mu      sync.Mutex
	changed *sync.Cond
	entries []*entry
	cost    int
	end     uint64
	closed  bool
	readers map[*reader]struct{}
}

type reader struct {
	ring  *ring
	at    uint64
	moved time.Time
	gone  bool
}

func newRing() *ring {
	r := &ring{readers: map[*reader]struct{}{}}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *ring) event(data []byte, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(&entry{start: r.end, end: r.end + 1, kind: frameJSON, data: data})
	r.closed = r.closed || last
}

func (r *ring) add(e *entry) {
	r.entries = append(r.entries, e)
	r.cost += e.cost()
	r.end = e.end
	r.changed.Broadcast()
}

// output appends, waiting while an attached reader still needs what would have to go.
func (r *ring) output(kind byte, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.cost+len(data)+entryCost > ringBytes {
		i := r.oldestOutput()
		if i < 0 {
			break
		}
		if wait := r.needed(r.entries[i].end); wait > 0 {
			timer := time.AfterFunc(wait, r.changed.Broadcast)
			r.changed.Wait()
			timer.Stop()
			continue
		}
		r.cost -= r.entries[i].cost()
		if i == 0 {
			r.entries[0] = nil
			r.entries = r.entries[1:]
		} else {
			r.entries = append(r.entries[:i], r.entries[i+1:]...)
		}
	}
	if n := len(r.entries); n > 0 {
		last := r.entries[n-1]
		if last.kind == kind && len(last.data)+len(data) <= chunkBytes {
			last.data = append(last.data, data...)
			last.end += uint64(len(data))
			r.cost += len(data)
			r.end = last.end
			r.changed.Broadcast()
			return
		}
	}
	r.add(&entry{start: r.end, end: r.end + uint64(len(data)), kind: kind, data: append([]byte(nil), data...)})
}

func (r *ring) oldestOutput() int {
	for i, e := range r.entries {
		if e.kind != frameJSON {
			return i
		}
	}
	return -1
}

// needed says how long to wait for readers that have not passed a position; stalled ones do not count.
func (r *ring) needed(position uint64) time.Duration {
	var longest time.Duration
	for reader := range r.readers {
		if reader.at < position {
			longest = max(longest, stallBound-time.Since(reader.moved))
		}
	}
	return longest
}

func (r *ring) attach(after uint64) *reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	reader := &reader{ring: r, at: after, moved: time.Now()}
	r.readers[reader] = struct{}{}
	return reader
}

func (d *reader) detach() {
	d.ring.mu.Lock()
	defer d.ring.mu.Unlock()
	d.gone = true
	delete(d.ring.readers, d)
	d.ring.changed.Broadcast()
}

// next waits for what follows the reader's position. dropped tells how many bytes before it are lost.
func (d *reader) next() (e entry, dropped uint64, ok bool) {
	r := d.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if d.gone {
			return entry{}, 0, false
		}
		i := sort.Search(len(r.entries), func(i int) bool { return r.entries[i].end > d.at })
		if i < len(r.entries) {
			e = *r.entries[i]
			if e.start > d.at {
				dropped = e.start - d.at
			} else if skip := d.at - e.start; skip > 0 {
				e.data, e.start = e.data[skip:], d.at
			}
			d.at, d.moved = e.end, time.Now()
			r.changed.Broadcast()
			return e, dropped, true
		}
		if r.closed {
			return entry{}, 0, false
		}
		d.moved = time.Now() // it waits for the command, not the command for it
		r.changed.Wait()
	}
}
