package main

import (
	"os"
	"strconv"
	"strings"
)

type account struct {
	name, home, shell string
	uid, gid          uint32
	groups            []uint32
}

// findUser resolves "name", "uid", "name:group" or "uid:gid" by the root's own files.
func findUser(wanted string) (account, bool) {
	user, group, grouped := strings.Cut(wanted, ":")
	found, ok := account{home: "/", shell: "/bin/sh"}, false
	for _, f := range table("/etc/passwd", 7) {
		if f[0] != user && f[2] != user {
			continue
		}
		uid, err := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err == nil && err2 == nil {
			found = account{name: f[0], home: f[5], shell: f[6], uid: uint32(uid), gid: uint32(gid)}
			ok = true
			break
		}
	}
	if !ok {
		uid, err := strconv.ParseUint(user, 10, 32)
		if err != nil && user != "root" {
			return found, false
		}
		found.name, found.uid, found.gid = user, uint32(uid), uint32(uid)
		if uid == 0 {
			found.home = "/root"
		}
	}
	for _, f := range table("/etc/group", 4) {
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		if grouped && (f[0] == group || f[2] == group) {
			found.gid, grouped = uint32(gid), false
		}
		for _, member := range strings.Split(f[3], ",") {
			if member == found.name {
				found.groups = append(found.groups, uint32(gid))
			}
		}
	}
	if grouped {
		gid, err := strconv.ParseUint(group, 10, 32)
		if err != nil {
			return found, false
		}
		found.gid = uint32(gid)
	}
	if found.shell == "" {
		found.shell = "/bin/sh"
	}
	return found, true
}

func table(path string, columns int) [][]string {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > 1<<20 {
		return nil
	}
	var rows [][]string
	for _, line := range strings.Split(string(data), "\n") {
		if fields := strings.Split(line, ":"); len(fields) >= columns {
			rows = append(rows, fields)
		}
	}
	return rows
}
