package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type winsize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

type startSpec struct {
	Command   []string          `json:"command"`
	Cwd       string            `json:"cwd"`
	Env       map[string]string `json:"env"`
	User      string            `json:"user"`
	TTY       *winsize          `json:"tty"`
	Stdin     bool              `json:"stdin"`
	TimeoutMs int64             `json:"timeout_ms"`
}

// start runs a command under an id; when it fails, nothing of it stays.
func (t *commandTable) start(id string, spec startSpec, extra map[string]string) (*command, *problem) {
	user, ok := findUser(orElse(spec.User, "root"))
	if !ok {
		return nil, &problem{Code: "user_not_found", Path: spec.User, Message: "no such user or group in the machine"}
	}
	cwd := spec.Cwd
	if cwd == "" {
		cwd = "/"
		if info, err := os.Stat(user.home); err == nil && info.IsDir() {
			cwd = user.home
		}
	}
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
		return nil, &problem{Code: "cwd_not_found", Path: cwd, Message: "the working directory does not exist"}
	}
	env := environment(user, spec, extra)
	path, bad := findExecutable(spec.Command[0], env["PATH"], cwd)
	if bad != nil {
		return nil, bad
	}
	pipes, err := openPipes(spec)
	if err != nil {
		return nil, &problem{Code: "start_failed", Path: path, Message: err.Error()}
	}
	defer pipes.closeChild()
	c, err := t.fork(id, path, cwd, env, user, spec, pipes)
	if err != nil {
		pipes.closeOwn()
		return nil, startProblem(path, err)
	}
	return c, nil
}

func startProblem(path string, err error) *problem {
	code := "start_failed"
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
		code = "permission_denied"
	} else if errors.Is(err, syscall.ENOENT) {
		code = "executable_not_found" // the file is there, so its interpreter is not
	}
	return &problem{Code: code, Path: path, Message: err.Error()}
}

func (t *commandTable) fork(
	id, path, cwd string, env map[string]string, user account, spec startSpec, pipes *pipes,
) (*command, error) {
	attributes := &syscall.SysProcAttr{Setsid: true}
	if spec.TTY != nil {
		attributes.Setctty = true
	}
	if int(user.uid) != os.Getuid() || int(user.gid) != os.Getgid() || (os.Getuid() == 0 && t.cgroups) {
		attributes.Credential = &syscall.Credential{Uid: user.uid, Gid: user.gid, Groups: user.groups}
	}
	c := &command{ID: id, State: "running", ring: newRing(), tty: pipes.tty, done: make(chan struct{})}
	if t.cgroups {
		c.cgroup = commandsCgroup + "/" + id
		if err := os.Mkdir(c.cgroup, 0o755); err != nil && !os.IsExist(err) {
			return nil, err
		}
		dir, err := os.Open(c.cgroup)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		attributes.UseCgroupFD, attributes.CgroupFD = true, int(dir.Fd())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cgroups {
		setOOMScore(0) // a child inherits it; only the agent itself is to be spared
	}
	pid, err := syscall.ForkExec(path, spec.Command, &syscall.ProcAttr{
		Dir: cwd, Env: flatten(env), Files: pipes.child(), Sys: attributes,
	})
	if t.cgroups {
		setOOMScore(-1000)
	}
	if err != nil {
		_ = syscall.Rmdir(c.cgroup)
		return nil, err
	}
	c.PID, c.StartedAt = pid, stamp()
	t.byID[id], t.byPID[pid] = c, c
	data, _ := json.Marshal(map[string]any{"type": "process_started", "id": id, "pid": pid, "at": c.StartedAt})
	c.ring.event(data, false)
	t.tell(data)
	if pipes.in != nil {
		c.stdin = newStdinQueue(pipes.in, spec.TTY != nil)
	}
	if spec.TimeoutMs > 0 {
		c.timer = time.AfterFunc(time.Duration(spec.TimeoutMs)*time.Millisecond, func() { t.timeOut(c) })
	}
	go t.pump(c, pipes)
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return c, nil
}

func (t *commandTable) timeOut(c *command) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.State == "running" {
		c.why = "timeout"
		t.killAll(c)
	}
}

func environment(user account, spec startSpec, extra map[string]string) map[string]string {
	env := map[string]string{
		"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell, "PATH": defaultPath,
	}
	if spec.TTY != nil {
		env["TERM"] = "xterm-256color"
	}
	for _, layer := range []map[string]string{extra, spec.Env} {
		for name, value := range layer {
			env[name] = value
		}
	}
	return env
}

func flatten(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	return out
}

// findExecutable looks the name up in the command's own PATH, as its shell would.
func findExecutable(name, searchPath, cwd string) (string, *problem) {
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		candidates = nil
		for _, dir := range filepath.SplitList(searchPath) {
			candidates = append(candidates, filepath.Join(orElse(dir, "."), name))
		}
	}
	denied := ""
	for _, candidate := range candidates {
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(cwd, candidate)
		}
		info, err := os.Stat(candidate)
		if err != nil {
			continue
		}
		if !info.IsDir() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
		denied = candidate
	}
	if denied != "" {
		return "", &problem{Code: "permission_denied", Path: denied, Message: "not an executable file"}
	}
	return "", &problem{Code: "executable_not_found", Path: name, Message: "no such executable"}
}

func orElse(value, other string) string {
	if value == "" {
		return other
	}
	return value
}

// pump moves the command's output into its ring until the pipes end or the grace after its exit does.
func (t *commandTable) pump(c *command, p *pipes) {
	ended := make(chan struct{}, 2)
	for kind, file := range p.out {
		go func() {
			pumpOne(c, kind, file)
			ended <- struct{}{}
		}()
	}
	left := len(p.out)
	for exited := c.done; left > 0; {
		select {
		case <-ended:
			left--
		case <-exited:
			exited = nil
			for _, file := range p.out {
				_ = file.SetReadDeadline(time.Now().Add(streamGrace))
			}
		}
	}
	<-c.done
	if c.stdin != nil {
		c.stdin.end()
	}
	c.ring.event([]byte(`{"type":"stream_closed"}`), true)
	for kind := range p.out {
		go discard(p.out[kind])
	}
	t.removeCgroup(c)
}

func pumpOne(c *command, kind byte, file *os.File) {
	buffer := make([]byte, chunkBytes)
	for {
		n, err := file.Read(buffer)
		if n > 0 {
			c.ring.output(kind, buffer[:n])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drain(c, kind, file, buffer)
		}
		if err != nil {
			return
		}
	}
}

// drain takes what already stands in the pipe when the grace ends: a slow reader may have kept us from it until now.
func drain(c *command, kind byte, file *os.File, buffer []byte) {
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	for range drainBytes / chunkBytes {
		n := 0
		_ = raw.Control(func(fd uintptr) { n, _ = syscall.Read(int(fd), buffer) })
		if n <= 0 {
			return
		}
		c.ring.output(kind, buffer[:n])
	}
}

// discard reads on for processes that outlive their command: without a reader their next line would kill them.
func discard(file *os.File) {
	defer file.Close()
	_ = file.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, file)
}

// removeCgroup takes the control group away once nothing of the command lives any more.
func (t *commandTable) removeCgroup(c *command) {
	if c.cgroup == "" {
		return
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		if err := syscall.Rmdir(c.cgroup); err == nil || err == syscall.ENOENT {
			return
		}
		time.Sleep(wait)
	}
}
