package main

import (
	"errors"
	"net/http"
	"syscall"
)

func (a *agent) listCommands(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, map[string]any{"epoch": a.commands.epoch, "processes": a.commands.snapshot()})
}

func (a *agent) named(w http.ResponseWriter, r *http.Request) *command {
	c := a.commands.find(r.PathValue("id"))
	if c == nil {
		fail(w, http.StatusNotFound, "unknown_process", "no command with this id")
	}
	return c
}

func (a *agent) showCommand(w http.ResponseWriter, r *http.Request) {
	if c := a.named(w, r); c != nil {
		a.commands.mu.Lock()
		copied := *c
		a.commands.mu.Unlock()
		reply(w, http.StatusOK, copied)
	}
}

func (a *agent) signalCommand(w http.ResponseWriter, r *http.Request) {
	c := a.named(w, r)
	if c == nil {
		return
	}
	var request clientEvent
	if _, ok := readJSON(w, r, &request); !ok {
		return
	}
	err := a.commands.signal(c, request.Signal)
	switch {
	case errors.Is(err, syscall.ESRCH):
		fail(w, http.StatusConflict, "process_exited", "the command has exited")
	case err != nil:
		fail(w, http.StatusBadRequest, "invalid_request", err.Error())
	default:
		reply(w, http.StatusOK, map[string]any{})
	}
}

func (a *agent) resizeCommand(w http.ResponseWriter, r *http.Request) {
	c := a.named(w, r)
	if c == nil {
		return
	}
	var size winsize
	if _, ok := readJSON(w, r, &size); !ok {
		return
	}
	if c.tty == nil {
		fail(w, http.StatusConflict, "no_terminal", "the command has no terminal")
		return
	}
	if err := setSize(c.tty, size); err != nil {
		fail(w, http.StatusConflict, "process_exited", "the terminal is closed")
		return
	}
	reply(w, http.StatusOK, map[string]any{})
}

// snapshotBatch commands fit one frame: an entry is below 512 bytes.
const snapshotBatch = 100

// watch follows all commands: first a snapshot, then every start and exit.
func (a *agent) watch(w http.ResponseWriter, r *http.Request) {
	if !wantsUpgrade(r) {
		fail(w, http.StatusUpgradeRequired, "upgrade_required", "watch speaks "+protocolName)
		return
	}
	frames, err := upgrade(w)
	if err != nil {
		return
	}
	defer frames.conn.Close()
	defer frames.beat()()
	t := a.commands
	changes := make(chan []byte, watcherBacklog)
	t.mu.Lock()
	t.watchers[changes] = struct{}{}
	all := t.snapshotLocked()
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.watchers, changes)
		t.mu.Unlock()
	}()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			if _, _, err := frames.read(); err != nil {
				return
			}
		}
	}()
	for first := true; first || len(all) > 0; first = false {
		part := all[:min(len(all), snapshotBatch)]
		all = all[len(part):]
		if frames.event(0, map[string]any{"type": "snapshot", "epoch": t.epoch, "processes": part}) != nil {
			return
		}
	}
	for seq := uint64(1); ; seq++ {
		select {
		case <-gone:
			return
		case data, open := <-changes:
			if !open || frames.write(frameJSON, seq, data) != nil {
				return
			}
		}
	}
}
