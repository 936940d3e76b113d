package main

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	keptCommands   = 1024 // how many finished commands are remembered
	keptRings      = 16   // and of how many of these the output; 16 rings are 64 MiB at the very worst
	streamGrace    = 5 * time.Second
	drainBytes     = 1 << 20 // the largest pipe an unprivileged process can make
	watcherBacklog = 256
)

// command is one started command; the table's lock guards its state.
type command struct {
	ID         string  `json:"id"`
	PID        int     `json:"pid"`
	State      string  `json:"state"`
	ExitCode   *int    `json:"exit_code,omitempty"`
	Signal     string  `json:"signal,omitempty"`
	Reason     *string `json:"reason,omitempty"`
	StartedAt  string  `json:"started_at"`
	FinishedAt string  `json:"finished_at,omitempty"`

	ring   *ring
	stdin  *stdinQueue
	tty    *os.File
	cgroup string
	why    string
	timer  *time.Timer
	done   chan struct{}
}

// commandTable knows every command, and is the only one that waits for processes.
type commandTable struct {
	mu       sync.Mutex
	cgroups  bool
	epoch    string
	byID     map[string]*command
	byPID    map[int]*command
	finished []*command
	watchers map[chan []byte]struct{}
	wake     chan struct{}
}

func newCommandTable(cgroups bool) *commandTable {
	t := &commandTable{
		cgroups: cgroups, epoch: readTrimmed("/proc/sys/kernel/random/uuid"), byID: map[string]*command{},
		byPID: map[int]*command{}, watchers: map[chan []byte]struct{}{}, wake: make(chan struct{}, 1),
	}
	go t.reap()
	return t
}

// reap waits for all children in one place. It only looks outside the lock and collects inside it, so a start that is
// not yet in the table never loses its exit, and a failed start's child is left to the start.
func (t *commandTable) reap() {
	for {
		if !waitable() {
			<-t.wake // no child at all: the next start says when to look again
			continue
		}
		t.mu.Lock()
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			if c := t.byPID[pid]; c != nil {
				delete(t.byPID, pid)
				t.finish(c, status)
			}
		}
		t.mu.Unlock()
	}
}

func (t *commandTable) finish(c *command, status syscall.WaitStatus) {
	c.State, c.FinishedAt = "exited", stamp()
	reason := c.why
	event := map[string]any{"type": "process_exited", "id": c.ID, "at": c.FinishedAt}
	if status.Signaled() {
		c.Signal = signalName(status.Signal())
		event["signal"] = c.Signal
		if reason == "" && oomKilled(c.cgroup) {
			reason = "oom"
		} else if reason == "" {
			reason = "signal"
		}
	} else {
		code := status.ExitStatus()
		c.ExitCode = &code
		event["exit_code"] = code
		if reason == "signal" {
			reason = "" // it was sent a signal and chose to exit by itself
		}
	}
	event["reason"] = nil
	if reason != "" {
		c.Reason = &reason
		event["reason"] = reason
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	data, _ := json.Marshal(event)
	c.ring.event(data, false)
	close(c.done)
	t.tell(data)
	t.finished = append(t.finished, c)
	if len(t.finished) > keptRings {
		old := t.finished[len(t.finished)-1-keptRings]
		old.ring.shed()
	}
	if len(t.finished) > keptCommands {
		delete(t.byID, t.finished[0].ID)
		t.finished = t.finished[1:]
	}
}

// shed lets the output of a long finished command go; its events stay.
func (r *ring) shed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.readers) > 0 || !r.closed {
		return
	}
	events := make([]*entry, 0, 3)
	r.cost = 0
	for _, e := range r.entries {
		if e.kind == frameJSON {
			events = append(events, e)
			r.cost += e.cost()
		}
	}
	r.entries = events
}

// tell sends a change to every watcher; one that does not keep up is cut off and gets a snapshot on its next watch.
func (t *commandTable) tell(data []byte) {
	for watcher := range t.watchers {
		select {
		case watcher <- data:
		default:
			delete(t.watchers, watcher)
			close(watcher)
		}
	}
}

func (t *commandTable) find(id string) *command {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

func (t *commandTable) snapshot() []command {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.snapshotLocked()
}

func (t *commandTable) snapshotLocked() []command {
	all := make([]command, 0, len(t.byID))
	for _, c := range t.byID {
		all = append(all, *c)
	}
	return all
}

func oomKilled(cgroup string) bool {
	if cgroup == "" {
		return false
	}
	for _, line := range strings.Split(readTrimmed(cgroup+"/memory.events"), "\n") {
		if count, found := strings.CutPrefix(line, "oom_kill "); found {
			return count != "0"
		}
	}
	return false
}

func stamp() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000000Z") }
