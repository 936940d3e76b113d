package main

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
)

const maxAttachments = 16 // readers of one command at a time

var idShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

// attach starts the command if its id is new, and follows it by frames.
func (a *agent) attach(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	after, err := strconv.ParseUint(orElse(r.URL.Query().Get("after"), "0"), 10, 63)
	if !idShape.MatchString(id) || err != nil {
		fail(w, http.StatusBadRequest, "invalid_request", "odd id or after")
		return
	}
	if !wantsUpgrade(r) {
		fail(w, http.StatusUpgradeRequired, "upgrade_required", "attach speaks "+protocolName)
		return
	}
	var spec startSpec
	found, ok := readJSON(w, r, &spec)
	if !ok {
		return
	}
	c := a.commandFor(w, id, spec, found)
	if c == nil {
		return
	}
	c.ring.mu.Lock()
	count := len(c.ring.readers)
	c.ring.mu.Unlock()
	if count >= maxAttachments {
		fail(w, http.StatusTooManyRequests, "too_many_attachments", "16 readers are attached already")
		return
	}
	frames, err := upgrade(w)
	if err != nil {
		return
	}
	a.follow(c, frames, after)
}

// starting makes the check for an id and its start one step, so two requests never start a command twice.
var starting sync.Mutex

func (a *agent) commandFor(w http.ResponseWriter, id string, spec startSpec, found bool) *command {
	starting.Lock()
	defer starting.Unlock()
	c := a.commands.find(id)
	if c != nil {
		return c
	}
	if !found {
		fail(w, http.StatusNotFound, "unknown_process", "no command with this id")
		return nil
	}
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		fail(w, http.StatusBadRequest, "invalid_request", "command is an argument list of at least one")
		return nil
	}
	a.mu.Lock()
	extra := a.env
	a.mu.Unlock()
	c, bad := a.commands.start(id, spec, extra)
	if bad != nil {
		reply(w, http.StatusUnprocessableEntity, bad)
		return nil
	}
	return c
}

func (a *agent) follow(c *command, frames *frameConn, after uint64) {
	defer frames.conn.Close()
	reader := c.ring.attach(after)
	defer reader.detach()
	stop := frames.beat()
	defer stop()
	var credit atomic.Int64
	if c.stdin != nil {
		credit.Store(stdinWindow)
		if frames.event(0, map[string]any{"type": "stdin_credit", "bytes": stdinWindow}) != nil {
			return
		}
	}
	go func() {
		defer reader.detach()
		a.listen(c, frames, &credit)
	}()
	for {
		e, dropped, ok := reader.next()
		if !ok {
			return
		}
		if dropped > 0 {
			if frames.event(e.start, map[string]any{"type": "output_dropped", "bytes": dropped}) != nil {
				return
			}
		}
		if frames.write(e.kind, e.end, e.data) != nil {
			return
		}
	}
}

type clientEvent struct {
	Type   string `json:"type"`
	Signal string `json:"signal"`
	winsize
}

// listen takes what the client sends until it goes or breaks the rules.
func (a *agent) listen(c *command, frames *frameConn, credit *atomic.Int64) {
	for {
		kind, data, err := frames.read()
		if err != nil {
			return
		}
		switch kind {
		case frameStdin:
			if c.stdin == nil || credit.Add(-int64(len(data))) < 0 {
				_ = frames.event(0, map[string]any{"type": "error", "code": "stdin_credit_exceeded"})
				return
			}
			c.stdin.put(data, func(n int) {
				credit.Add(int64(n))
				_ = frames.event(0, map[string]any{"type": "stdin_credit", "bytes": n})
			})
		case frameJSON:
			var event clientEvent
			if json.Unmarshal(data, &event) != nil || !a.obey(c, event) {
				return
			}
		default:
			return
		}
	}
}

func (a *agent) obey(c *command, event clientEvent) bool {
	switch event.Type {
	case "close_stdin":
		if c.stdin != nil {
			c.stdin.end()
		}
	case "signal":
		_ = a.commands.signal(c, event.Signal)
	case "resize":
		if c.tty != nil {
			_ = setSize(c.tty, event.winsize)
		}
	default:
		return false
	}
	return true
}
