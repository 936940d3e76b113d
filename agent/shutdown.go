package main

import (
	"net/http"
	"time"
)

// shutdown answers, then writes everything out and powers the machine off.
func (a *agent) shutdown(w http.ResponseWriter, _ *http.Request) {
	if !a.init {
		fail(w, http.StatusConflict, "not_a_machine", "this agent runs on a host, which it will not power off")
		return
	}
	reply(w, http.StatusAccepted, map[string]any{"shutting_down": true})
	time.AfterFunc(50*time.Millisecond, powerOff) // long enough for the answer to leave
}
