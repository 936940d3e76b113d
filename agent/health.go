package main

import (
	"net/http"
	"time"
)

// health answers that the agent is there and which boot this is.
func (a *agent) health(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	adopted := a.adopted
	a.mu.Unlock()
	reply(w, http.StatusOK, map[string]any{
		"version": version, "boot_id": readTrimmed("/proc/sys/kernel/random/boot_id"),
		"adopted": adopted, "uptime_ms": time.Since(a.started).Milliseconds(),
	})
}
