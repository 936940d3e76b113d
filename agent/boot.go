package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	rootDevice = "/dev/vda"
	newRoot    = "/newroot"
	// A virtio device appears a few milliseconds after its module; software emulation may need seconds.
	deviceWait = 30 * time.Second
)

// boot makes the machine usable and returns the listener on the control network.
func boot() (net.Listener, error) {
	os.Setenv("PATH", defaultPath)
	for _, m := range earlyMounts {
		if err := m.apply(""); err != nil {
			return nil, err
		}
	}
	loadModules("/modules.list")
	if err := mountRoot(); err != nil {
		return nil, err
	}
	for _, m := range lateMounts {
		if err := m.apply(""); err != nil {
			logf("%v", err)
		}
	}
	linkDevices()
	protectAgent()
	return setUpNetwork()
}

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

var earlyMounts = []mount{
	{"proc", "/proc", "proc", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, ""},
	{"sysfs", "/sys", "sysfs", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, ""},
	{"devtmpfs", "/dev", "devtmpfs", syscall.MS_NOSUID, "mode=0755"},
}

var lateMounts = []mount{
	{"devpts", "/dev/pts", "devpts", syscall.MS_NOSUID | syscall.MS_NOEXEC, "mode=0620,gid=5,ptmxmode=0666"},
	{"shm", "/dev/shm", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=1777"},
	{"run", "/run", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=0755"},
	{"tmp", "/tmp", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=1777,size=50%"},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, ""},
}

func (m mount) apply(root string) error {
	target := filepath.Join(root, m.target)
	_ = os.MkdirAll(target, 0o755)
	err := syscall.Mount(m.source, target, m.kind, m.flags, m.data)
	if err != nil && err != syscall.EBUSY {
		return fmt.Errorf("mount %s: %w", m.target, err)
	}
	return nil
}

// mountRoot mounts the disk, grows its filesystem and makes it the root; this process stays process 1.
func mountRoot() error {
	if err := waitFor(rootDevice); err != nil {
		return err
	}
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(rootDevice, newRoot, "ext4", syscall.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mount %s: %w", rootDevice, err)
	}
	if err := growFilesystem(rootDevice, newRoot); err != nil {
		logf("grow the root filesystem: %v", err)
	}
	for _, m := range earlyMounts {
		target := newRoot + m.target
		_ = os.MkdirAll(target, 0o755)
		if err := syscall.Mount(m.target, target, "", syscall.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", m.target, err)
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := syscall.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return os.Chdir("/")
}

func waitFor(path string) error {
	for end := time.Now().Add(deviceWait); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s did not appear within %s", path, deviceWait)
}

// linkDevices adds the names in /dev that the kernel leaves to user space.
func linkDevices() {
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		_ = os.Symlink(target, "/dev/"+name)
	}
	// A container's root may name a pts that is not ours; the kernel's node is the one that works.
	_ = os.Chmod("/dev/ptmx", 0o666)
}

// powerOff ends the machine. Without ACPI the kernel would only halt, so there a restart tells the monitor.
func powerOff() {
	syscall.Sync()
	command := syscall.LINUX_REBOOT_CMD_POWER_OFF
	if _, err := os.Stat("/sys/firmware/acpi"); err != nil {
		command = syscall.LINUX_REBOOT_CMD_RESTART
	}
	if err := syscall.Reboot(command); err != nil {
		logf("power off: %v", err)
	}
}

func readTrimmed(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
