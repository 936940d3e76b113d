package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	cgroupRoot     = "/sys/fs/cgroup"
	commandsCgroup = cgroupRoot + "/commands"
	// What stays for the kernel and the agent when the workload takes all it may: the agent needs about 15 MiB with
	// its rings, the rest lets the kernel keep its own lists without killing.
	memoryReserve = 48 << 20
	// Threads the agent and the kernel may still make when the workload is at its limit.
	pidReserve = 512
)

// protectAgent makes the kernel choose any other process first, and bounds the workload's memory and processes.
func protectAgent() {
	setOOMScore(-1000)
	if err := os.MkdirAll(commandsCgroup, 0o755); err != nil {
		logf("control groups: %v", err)
		return
	}
	for _, dir := range []string{cgroupRoot, commandsCgroup} {
		for _, controller := range []string{"+memory", "+pids", "+cpu"} {
			if err := os.WriteFile(dir+"/cgroup.subtree_control", []byte(controller), 0o644); err != nil {
				logf("control group %s %s: %v", dir, controller, err)
			}
		}
	}
	if total := memoryTotal(); total > 2*memoryReserve {
		writeLimit("memory.max", total-memoryReserve)
	}
	pids, err := strconv.ParseInt(readTrimmed("/proc/sys/kernel/threads-max"), 10, 64)
	if most, err2 := strconv.ParseInt(readTrimmed("/proc/sys/kernel/pid_max"), 10, 64); err2 == nil && (err != nil || most < pids) {
		pids = most
	}
	if pids > 2*pidReserve {
		writeLimit("pids.max", pids-pidReserve)
	}
}

func writeLimit(name string, value int64) {
	if err := os.WriteFile(commandsCgroup+"/"+name, fmt.Appendf(nil, "%d", value), 0o644); err != nil {
		logf("limit %s: %v", name, err)
	}
}

func setOOMScore(score int) {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(score)), 0o644)
}

func memoryTotal() int64 {
	for _, line := range strings.Split(readTrimmed("/proc/meminfo"), "\n") {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}
