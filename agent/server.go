package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	maxHeader      = 16 << 10
	maxBody        = 1 << 20
	maxConnections = 256
	headerTimeout  = 10 * time.Second // a peer on the same host that needs longer for its header is not one
)

// agent is the state all verbs share.
type agent struct {
	init     bool // process 1 of a machine, not a test on a host
	started  time.Time
	commands *commandTable

	mu      sync.Mutex
	adopted bool
	env     map[string]string
}

func newAgent(asInit bool) *agent {
	return &agent{init: asInit, started: time.Now(), commands: newCommandTable(asInit), env: map[string]string{}}
}

func (a *agent) serve(listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health", a.health)
	a.routes(mux)
	server := &http.Server{
		Handler: recovered(mux), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return server.Serve(&boundedListener{Listener: listener, slots: make(chan struct{}, maxConnections)})
}

// recovered answers a handler's panic with a 500 and bounds every body.
func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if problem := recover(); problem != nil {
				logf("%s %s panicked: %v", r.Method, r.URL.Path, problem)
				fail(w, http.StatusInternalServerError, "internal", "the agent failed; its console says how")
			}
		}()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// boundedListener takes no more than its slots' number of connections; further ones wait in the kernel's queue.
type boundedListener struct {
	net.Listener
	slots chan struct{}
}

func (l *boundedListener) Accept() (net.Conn, error) {
	l.slots <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &boundedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

type boundedConn struct {
	net.Conn
	release func()
}

func (c *boundedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Path    string `json:"path,omitempty"`
}

func fail(w http.ResponseWriter, status int, code, message string) {
	reply(w, status, problem{Code: code, Message: message})
}

// readJSON fills value from the body; an empty body is told by found false.
func readJSON(w http.ResponseWriter, r *http.Request, value any) (found, ok bool) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			fail(w, http.StatusRequestEntityTooLarge, "too_large", "the body is larger than 1 MiB")
		} else {
			fail(w, http.StatusBadRequest, "invalid_request", err.Error())
		}
		return false, false
	}
	if len(data) == 0 {
		return false, true
	}
	if err := json.Unmarshal(data, value); err != nil {
		fail(w, http.StatusBadRequest, "invalid_request", err.Error())
		return true, false
	}
	return true, true
}
