package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	egressMAC      = "02:53:50:00:00:01"
	controlMAC     = "02:53:50:00:00:02"
	egressAddress  = "10.77.0.2"
	egressGateway  = "10.77.0.1"
	controlAddress = "169.254.77.2"
	controlPort    = "1024"
	nicWait        = 10 * time.Second // as for the disk, but the disk's wait came before
)

// setUpNetwork gives the workload loopback and egress, and takes the control network out of its reach.
func setUpNetwork() (net.Listener, error) {
	if lo, err := net.InterfaceByName("lo"); err == nil {
		if err := linkUp(lo.Index); err != nil {
			logf("loopback: %v", err)
		}
	}
	if err := setUpEgress(); err != nil {
		logf("egress: %v", err) // a machine without egress is still one that runs commands
	}
	nameServer()
	control, err := findNIC(controlMAC)
	if err != nil {
		return nil, err
	}
	return listenOnControl(control.Index)
}

func setUpEgress() error {
	nic, err := findNIC(egressMAC)
	if err != nil {
		return err
	}
	if nic.Name != "eth0" {
		if other, err := net.InterfaceByName("eth0"); err == nil {
			_ = linkRename(other.Index, "ctl0")
		}
		if err := linkRename(nic.Index, "eth0"); err != nil {
			return err
		}
	}
	if err := linkUp(nic.Index); err != nil {
		return err
	}
	if err := addAddress(nic.Index, egressAddress, 24); err != nil {
		return err
	}
	return addDefaultRoute(nic.Index, egressGateway)
}

func findNIC(mac string) (net.Interface, error) {
	for end := time.Now().Add(nicWait); ; time.Sleep(2 * time.Millisecond) {
		all, err := net.Interfaces()
		if err != nil {
			return net.Interface{}, err
		}
		for _, nic := range all {
			if nic.HardwareAddr.String() == mac {
				return nic, nil
			}
		}
		if time.Now().After(end) {
			return net.Interface{}, fmt.Errorf("no network card %s within %s", mac, nicWait)
		}
	}
}

// nameServer names the gateway as resolver where the root has no resolver of its own.
func nameServer() {
	if strings.Contains(readTrimmed("/etc/resolv.conf"), "nameserver") {
		return
	}
	_ = os.Remove("/etc/resolv.conf") // often a dangling link into /run
	if err := os.WriteFile("/etc/resolv.conf", []byte("nameserver "+egressGateway+"\n"), 0o644); err != nil {
		logf("resolver: %v", err)
	}
}

type listening struct {
	listener net.Listener
	err      error
}

// listenOnControl listens in a network namespace only the agent has. One thread lives there for good, so that nothing
// else of the agent, and no command, ever runs in it.
func listenOnControl(index int) (net.Listener, error) {
	namespace := make(chan int)
	moved := make(chan error)
	done := make(chan listening)
	go func() {
		runtime.LockOSThread()
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			namespace <- -1
			done <- listening{err: fmt.Errorf("new network namespace: %w", err)}
			return
		}
		path := fmt.Sprintf("/proc/self/task/%d/ns/net", syscall.Gettid())
		fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			namespace <- -1
			done <- listening{err: err}
			return
		}
		namespace <- fd
		if err := <-moved; err != nil {
			done <- listening{err: fmt.Errorf("move the control card: %w", err)}
			return
		}
		listener, err := listenHere(index)
		done <- listening{listener, err}
		select {} // the thread stays, and with it the namespace
	}()
	if fd := <-namespace; fd >= 0 {
		moved <- linkToNamespace(index, uint32(fd))
	}
	result := <-done
	return result.listener, result.err
}

func listenHere(index int) (net.Listener, error) {
	if err := linkUp(index); err != nil {
		return nil, fmt.Errorf("control card up: %w", err)
	}
	if err := addAddress(index, controlAddress, 30); err != nil {
		return nil, fmt.Errorf("control address: %w", err)
	}
	return net.Listen("tcp4", controlAddress+":"+controlPort)
}
