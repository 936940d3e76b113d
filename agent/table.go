package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	ticksPerSecond = 100 // USER_HZ is 100 on every Linux machine this runs on
	maxTable       = 4096
	maxCommandLine = 512
)

type tableRow struct {
	PID       int    `json:"pid"`
	PPID      int    `json:"ppid"`
	User      string `json:"user"`
	State     string `json:"state"`
	Command   string `json:"command"`
	RSSKiB    int64  `json:"rss_kib"`
	CPUMs     int64  `json:"cpu_ms"`
	StartedAt string `json:"started_at"`
	CommandID string `json:"command_id,omitempty"`
}

// processTable lists what runs in the machine, from /proc.
func (a *agent) processTable(w http.ResponseWriter, _ *http.Request) {
	names := map[string]string{}
	for _, f := range table("/etc/passwd", 7) {
		names[f[2]] = f[0]
	}
	booted := time.Now()
	if up := strings.Fields(readTrimmed("/proc/uptime")); len(up) > 0 {
		seconds, _ := strconv.ParseFloat(up[0], 64)
		booted = booted.Add(-time.Duration(seconds * float64(time.Second)))
	}
	rows := []tableRow{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		if row, ok := a.tableRow(path, names, booted); ok && len(rows) < maxTable {
			rows = append(rows, row)
		}
	}
	reply(w, http.StatusOK, map[string]any{"processes": rows})
}

func (a *agent) tableRow(path string, names map[string]string, booted time.Time) (tableRow, bool) {
	text := readTrimmed(path)
	opened, closed := strings.Index(text, "("), strings.LastIndex(text, ")")
	if opened < 0 || closed < opened {
		return tableRow{}, false
	}
	fields := strings.Fields(text[closed+1:])
	if len(fields) < 22 {
		return tableRow{}, false
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(fields[i], 10, 64); return n }
	dir := filepath.Dir(path)
	row := tableRow{PPID: int(number(1)), State: fields[0], Command: "[" + text[opened+1:closed] + "]"}
	row.PID, _ = strconv.Atoi(filepath.Base(dir))
	row.RSSKiB = number(21) * int64(os.Getpagesize()) / 1024
	row.CPUMs = (number(11) + number(12)) * 1000 / ticksPerSecond
	row.StartedAt = booted.Add(time.Duration(number(19)) * time.Second / ticksPerSecond).UTC().Format(time.RFC3339Nano)
	if line := strings.Trim(readTrimmed(dir+"/cmdline"), "\x00"); line != "" {
		row.Command = strings.ToValidUTF8(strings.ReplaceAll(line[:min(len(line), maxCommandLine)], "\x00", " "), "?")
	}
	if info, err := os.Stat(dir); err == nil {
		uid := strconv.FormatUint(uint64(info.Sys().(*syscall.Stat_t).Uid), 10)
		row.User = orElse(names[uid], uid)
	}
	if _, id, found := strings.Cut(readTrimmed(dir+"/cgroup"), "/commands/"); found && a.init {
		row.CommandID, _, _ = strings.Cut(id, "/")
	}
	return row, true
}
