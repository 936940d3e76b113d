package main

import (
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"unsafe"
)

const (
	ioctlAddEntropy = 0x40085203 // RNDADDENTROPY
	ioctlReseed     = 0x5207     // RNDRESEEDCRNG
	entropyBytes    = 64
)

type adoptRequest struct {
	Entropy    []byte            `json:"entropy"`
	TimeUnixNs int64             `json:"time_unix_ns"`
	Hostname   string            `json:"hostname"`
	MachineID  string            `json:"machine_id"`
	Env        map[string]string `json:"env"`
	Nonce      string            `json:"nonce"`
}

// adopt makes this machine one of its own: first its randomness, because everything after may draw on it.
func (a *agent) adopt(w http.ResponseWriter, r *http.Request) {
	var request adoptRequest
	if _, ok := readJSON(w, r, &request); !ok {
		return
	}
	if !a.init {
		fail(w, http.StatusConflict, "not_a_machine", "this agent runs on a host, which it will not change")
		return
	}
	if len(request.Entropy) != entropyBytes || len(request.Nonce) == 0 || len(request.Nonce) > 128 {
		fail(w, http.StatusBadRequest, "invalid_request", "adopt wants 64 bytes of entropy and a nonce")
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := reseed(request.Entropy); err != nil {
		fail(w, http.StatusInternalServerError, "reseed_failed", err.Error())
		return
	}
	if err := setIdentity(request); err != nil {
		fail(w, http.StatusInternalServerError, "adopt_failed", err.Error())
		return
	}
	a.env, a.adopted = request.Env, true
	random := make([]byte, 16)
	if err := readURandom(random); err != nil {
		fail(w, http.StatusInternalServerError, "reseed_failed", err.Error())
		return
	}
	reply(w, http.StatusOK, map[string]any{"nonce": request.Nonce, "random": hex.EncodeToString(random), "reseeded": true})
}

func reseed(entropy []byte) error {
	device, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	pool := make([]byte, 8, 8+len(entropy))
	binary.NativeEndian.PutUint32(pool[0:], uint32(len(entropy)*8))
	binary.NativeEndian.PutUint32(pool[4:], uint32(len(entropy)))
	pool = append(pool, entropy...)
	if err := ioctl(device.Fd(), ioctlAddEntropy, unsafe.Pointer(&pool[0])); err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	if err := ioctl(device.Fd(), ioctlReseed, nil); err != nil {
		return fmt.Errorf("reseed: %w", err)
	}
	return nil
}

func readURandom(into []byte) error {
	device, err := os.Open("/dev/urandom")
	if err != nil {
		return err
	}
	defer device.Close()
	_, err = device.Read(into)
	if err == nil && subtle.ConstantTimeCompare(into, make([]byte, len(into))) == 1 {
		return fmt.Errorf("the kernel's random bytes are all zero")
	}
	return err
}

func setIdentity(request adoptRequest) error {
	if request.TimeUnixNs > 0 {
		now := syscall.NsecToTimeval(request.TimeUnixNs)
		if err := syscall.Settimeofday(&now); err != nil {
			return fmt.Errorf("clock: %w", err)
		}
	}
	if request.Hostname != "" {
		if err := syscall.Sethostname([]byte(request.Hostname)); err != nil {
			return fmt.Errorf("hostname: %w", err)
		}
		if err := os.WriteFile("/etc/hostname", []byte(request.Hostname+"\n"), 0o644); err != nil {
			return err
		}
	}
	if request.MachineID != "" {
		return os.WriteFile("/etc/machine-id", []byte(request.MachineID+"\n"), 0o444)
	}
	return nil
}
