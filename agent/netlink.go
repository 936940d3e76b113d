package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"syscall"
)

const iflaNetNsFd = 28 // IFLA_NET_NS_FD

// netlink sends one request to the kernel's routing socket of the calling thread's namespace and reads its answer.
func netlink(kind uint16, flags uint16, body []byte) error {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	message := make([]byte, 16, 16+len(body))
	binary.NativeEndian.PutUint32(message[0:], uint32(16+len(body)))
	binary.NativeEndian.PutUint16(message[4:], kind)
	binary.NativeEndian.PutUint16(message[6:], flags|syscall.NLM_F_REQUEST|syscall.NLM_F_ACK)
	binary.NativeEndian.PutUint32(message[8:], 1)
	message = append(message, body...)
	if err := syscall.Sendto(fd, message, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := syscall.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != syscall.NLMSG_ERROR {
		return fmt.Errorf("odd answer from netlink")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
		return syscall.Errno(-code)
	}
	return nil
}

func attribute(kind uint16, value []byte) []byte {
	out := make([]byte, 4, 4+len(value)+3)
	binary.NativeEndian.PutUint16(out[0:], uint16(4+len(value)))
	binary.NativeEndian.PutUint16(out[2:], kind)
	out = append(out, value...)
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	return out
}

func linkMessage(index int, flags, change uint32) []byte {
	body := make([]byte, 16)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	binary.NativeEndian.PutUint32(body[8:], flags)
	binary.NativeEndian.PutUint32(body[12:], change)
	return body
}

func linkUp(index int) error {
	return netlink(syscall.RTM_NEWLINK, 0, linkMessage(index, syscall.IFF_UP, syscall.IFF_UP))
}

func linkRename(index int, name string) error {
	return netlink(syscall.RTM_NEWLINK, 0,
		append(linkMessage(index, 0, 0), attribute(syscall.IFLA_IFNAME, append([]byte(name), 0))...))
}

func linkToNamespace(index int, namespaceFd uint32) error {
	value := binary.NativeEndian.AppendUint32(nil, namespaceFd)
	return netlink(syscall.RTM_NEWLINK, 0, append(linkMessage(index, 0, 0), attribute(iflaNetNsFd, value)...))
}

func addAddress(index int, address string, prefix byte) error {
	ip := net.ParseIP(address).To4()
	body := []byte{syscall.AF_INET, prefix, 0, 0, 0, 0, 0, 0}
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	body = append(body, attribute(syscall.IFA_LOCAL, ip)...)
	body = append(body, attribute(syscall.IFA_ADDRESS, ip)...)
	return netlink(syscall.RTM_NEWADDR, syscall.NLM_F_CREATE|syscall.NLM_F_REPLACE, body)
}

func addDefaultRoute(index int, gateway string) error {
	body := []byte{
		syscall.AF_INET, 0, 0, 0, syscall.RT_TABLE_MAIN, syscall.RTPROT_BOOT, syscall.RT_SCOPE_UNIVERSE, syscall.RTN_UNICAST,
		0, 0, 0, 0,
	}
	body = append(body, attribute(syscall.RTA_GATEWAY, net.ParseIP(gateway).To4())...)
	body = append(body, attribute(syscall.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))...)
	return netlink(syscall.RTM_NEWROUTE, syscall.NLM_F_CREATE|syscall.NLM_F_REPLACE, body)
}
