package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

const ioctlUnlockPty = 0x40045431 // TIOCSPTLCK

// pipes are the ends of a command's streams: its own three files, and ours.
type pipes struct {
	files []*os.File
	in    *os.File
	tty   *os.File
	out   map[byte]*os.File
}

func openPipes(spec startSpec) (*pipes, error) {
	if spec.TTY != nil {
		return openPty(*spec.TTY)
	}
	p := &pipes{out: map[byte]*os.File{}}
	var err error
	var child *os.File
	if spec.Stdin {
		child, p.in, err = os.Pipe()
	} else {
		child, err = os.Open("/dev/null")
	}
	if err != nil {
		return nil, err
	}
	p.files = append(p.files, child)
	for _, kind := range []byte{frameStdout, frameStderr} {
		own, child, err := os.Pipe()
		if err != nil {
			p.closeChild()
			p.closeOwn()
			return nil, err
		}
		p.out[kind] = own
		p.files = append(p.files, child)
	}
	return p, nil
}

func openPty(size winsize) (*pipes, error) {
	fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	own := os.NewFile(uintptr(fd), "/dev/ptmx")
	var unlock, number int32
	err = ioctl(uintptr(fd), ioctlUnlockPty, unsafe.Pointer(&unlock))
	if err == nil {
		err = ioctl(uintptr(fd), syscall.TIOCGPTN, unsafe.Pointer(&number))
	}
	if err == nil {
		err = setSize(own, size)
	}
	var child *os.File
	if err == nil {
		child, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		own.Close()
		return nil, fmt.Errorf("set a terminal up: %w", err)
	}
	return &pipes{
		files: []*os.File{child, child, child}, in: own, tty: own, out: map[byte]*os.File{frameStdout: own},
	}, nil
}

// setSize goes through the raw connection: asking the file for its descriptor would make it block.
func setSize(tty *os.File, size winsize) error {
	raw, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	cells := [4]uint16{size.Rows, size.Cols}
	err2 := raw.Control(func(fd uintptr) { err = ioctl(fd, syscall.TIOCSWINSZ, unsafe.Pointer(&cells)) })
	if err2 != nil {
		return err2
	}
	return err
}

func (p *pipes) child() []uintptr {
	var fds []uintptr
	for _, file := range p.files {
		fds = append(fds, file.Fd())
	}
	return fds
}

func (p *pipes) closeChild() {
	for _, file := range p.files {
		file.Close()
	}
}

func (p *pipes) closeOwn() {
	if p.in != nil {
		p.in.Close()
	}
	for _, file := range p.out {
		file.Close()
	}
}
