package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

const (
	ioctlDeviceSize = 0x80081272 // BLKGETSIZE64
	ioctlResizeExt4 = 0x40086610 // EXT4_IOC_RESIZE_FS, _IOW('f', 16, u64)
	superblockAt    = 1024
)

// growFilesystem makes a mounted ext4 as large as its device; nothing happens when it already is.
func growFilesystem(device, mountPoint string) error {
	disk, err := os.Open(device)
	if err != nil {
		return err
	}
	defer disk.Close()
	var size uint64
	if err := ioctl(disk.Fd(), ioctlDeviceSize, unsafe.Pointer(&size)); err != nil {
		return err
	}
	super := make([]byte, 1024)
	if _, err := disk.ReadAt(super, superblockAt); err != nil {
		return err
	}
	blocks := uint64(binary.LittleEndian.Uint32(super[4:])) | uint64(binary.LittleEndian.Uint32(super[0x150:]))<<32
	shift := binary.LittleEndian.Uint32(super[0x18:])
	if shift > 6 {
		return fmt.Errorf("block size 2^%d KiB", shift)
	}
	wanted := size / (1024 << shift)
	if wanted <= blocks {
		return nil
	}
	root, err := os.Open(mountPoint)
	if err != nil {
		return err
	}
	defer root.Close()
	return ioctl(root.Fd(), ioctlResizeExt4, unsafe.Pointer(&wanted))
}

func ioctl(fd, request uintptr, argument unsafe.Pointer) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(argument))
	if errno != 0 {
		return errno
	}
	return nil
}
