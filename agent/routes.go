package main

import "net/http"

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (a *agent) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/adopt", a.adopt)
	mux.HandleFunc("POST /v1/shutdown", a.shutdown)
}
