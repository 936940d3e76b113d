package main

import (
	"os"
	"strings"
	"syscall"
	"unsafe"
)

const sysFinitModule = 313 // x86-64; the syscall package has no name for it

// loadModules inserts the modules a list names, in its order. A missing one shows later as a missing device.
func loadModules(list string) {
	data, err := os.ReadFile(list)
	if err != nil {
		return
	}
	for _, line := range strings.Split(string(data), "\n") {
		path, parameters, _ := strings.Cut(strings.TrimSpace(line), " ")
		if path == "" || strings.HasPrefix(path, "#") {
			continue
		}
		if err := insertModule(path, parameters); err != nil && err != syscall.EEXIST {
			logf("module %s: %v", path, err)
		}
	}
}

func insertModule(path, parameters string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	text, err := syscall.BytePtrFromString(parameters)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(sysFinitModule, file.Fd(), uintptr(unsafe.Pointer(text)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
