// The guest agent: process 1 in a sandbox's machine, or a plain server on a host for tests.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
)

// version is told by /v1/health; the protocol's own number is in the name of the upgrade, space-frames/1.
const version = "0.1.0"

func main() {
	if os.Getpid() == 1 {
		runAsInit()
		return
	}
	listen := flag.String("listen", "", "address to serve on a host, such as tcp:127.0.0.1:0")
	portFile := flag.String("port-file", "", "file to write the port to once the agent listens")
	flag.Parse()
	if err := runOnHost(*listen, *portFile); err != nil {
		fmt.Fprintln(os.Stderr, "space-agent:", err)
		os.Exit(1)
	}
}

func runAsInit() {
	listener, err := boot()
	if err != nil {
		logf("boot failed: %v", err)
		powerOff()
		select {}
	}
	agent := newAgent(true)
	logf("ready")
	err = agent.serve(listener)
	logf("stopped serving: %v", err)
	powerOff()
	select {}
}

func runOnHost(listen, portFile string) error {
	address, found := strings.CutPrefix(listen, "tcp:")
	if !found {
		return fmt.Errorf("--listen wants tcp:ADDRESS:PORT, got %q", listen)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	if portFile != "" {
		port := fmt.Sprintf("%d\n", listener.Addr().(*net.TCPAddr).Port)
		if err := os.WriteFile(portFile+".part", []byte(port), 0o644); err != nil {
			return err
		}
		if err := os.Rename(portFile+".part", portFile); err != nil {
			return err
		}
	}
	return newAgent(false).serve(listener)
}

func logf(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "space-agent: "+format+"\n", values...)
}
