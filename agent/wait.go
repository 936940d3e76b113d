package main

import (
	"syscall"
	"unsafe"
)

const (
	waitAll    = 0 // P_ALL
	waitExited = 4
	waitKeep   = 0x01000000 // WNOWAIT
)

// waitable blocks until some child has ended, without collecting it; false when there is no child.
func waitable() bool {
	var info [128]byte
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, waitAll, 0, uintptr(unsafe.Pointer(&info)), waitExited|waitKeep, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		return errno == 0
	}
}
