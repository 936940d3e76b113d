package main

import "net/http"

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (a *agent) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/adopt", a.adopt)
	mux.HandleFunc("POST /v1/shutdown", a.shutdown)
	mux.HandleFunc("GET /v1/processes", a.listCommands)
	mux.HandleFunc("GET /v1/processes/{id}", a.showCommand)
	mux.HandleFunc("POST /v1/processes/{id}/attach", a.attach)
	mux.HandleFunc("POST /v1/processes/{id}/signal", a.signalCommand)
	mux.HandleFunc("POST /v1/processes/{id}/resize", a.resizeCommand)
	mux.HandleFunc("GET /v1/system/processes", a.processTable)
	mux.HandleFunc("GET /v1/watch", a.watch)
}
