package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

var signals = map[string]syscall.Signal{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8,
	"SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15,
	"SIGCHLD": 17, "SIGCONT": 18, "SIGSTOP": 19, "SIGTSTP": 20, "SIGTTIN": 21, "SIGTTOU": 22, "SIGURG": 23,
	"SIGXCPU": 24, "SIGXFSZ": 25, "SIGWINCH": 28, "SIGSYS": 31,
}

func signalName(number syscall.Signal) string {
	for name, value := range signals {
		if value == number {
			return name
		}
	}
	return fmt.Sprintf("SIG%d", int(number))
}

// signal reaches the command's process group; SIGKILL everything the command has started.
func (t *commandTable) signal(c *command, name string) error {
	number, known := signals[name]
	if !known {
		return fmt.Errorf("unknown signal %q", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.State == "exited" && number != syscall.SIGKILL {
		return syscall.ESRCH
	}
	if c.why == "" {
		c.why = "signal"
	}
	if number == syscall.SIGKILL {
		t.killAll(c)
		return nil
	}
	if err := syscall.Kill(-c.PID, number); err != nil {
		return syscall.Kill(c.PID, number)
	}
	return nil
}

// killAll ends every process of a command. With control groups none escapes; on a host, one that left the session and
// lost its parent does. The caller holds the table's lock, so the process id cannot have been given to another.
func (t *commandTable) killAll(c *command) {
	if c.cgroup != "" {
		if os.WriteFile(c.cgroup+"/cgroup.kill", []byte("1"), 0o644) == nil {
			return
		}
	}
	for _, pid := range family(c.PID) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if c.State != "exited" {
		_ = syscall.Kill(-c.PID, syscall.SIGKILL)
		_ = syscall.Kill(c.PID, syscall.SIGKILL)
	}
}

// family lists the descendants of a process and the members of its session.
func family(root int) []int {
	parents, sessions := map[int]int{}, map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text := readTrimmed(path)
		fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
		if len(fields) < 4 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parents[pid], _ = strconv.Atoi(fields[1])
		sessions[pid], _ = strconv.Atoi(fields[3])
	}
	var found []int
	for pid := range parents {
		up := pid
		for steps := 0; steps < 1000 && up > 1 && up != root; steps++ {
			up = parents[up]
		}
		if up == root || sessions[pid] == root {
			found = append(found, pid)
		}
	}
	return found
}
