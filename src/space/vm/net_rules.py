"""The addresses every sandbox namespace has and the packet rules loaded into it.

Rules in words: what the guest sends to its egress tap, to whatever address, is counted, logged with a limit and refused
at once, before routing and before connection tracking (so a guest cannot fill the table). On the control tap only
replies to the host's own connections to the agent pass. Nothing is forwarded.
"""

EGRESS = "eth0tap"
CONTROL = "ctl0"
GATEWAY_ADDRESS, GATEWAY_PREFIX = "10.77.0.1", 24
GUEST_ADDRESS, GUEST_MAC = "10.77.0.2", "02:53:50:00:00:01"
CONTROL_ADDRESS, CONTROL_PREFIX = "169.254.77.1", 30
AGENT_ADDRESS, AGENT_MAC, AGENT_PORT = "169.254.77.2", "02:53:50:00:00:02", 1024

# nfnetlink_log group within the namespace; a reader that wants the packets must be in it. Not the kernel's log, which
# the host's owner reads and a guest must not be able to fill.
LOG_GROUP = 5

SYSCTLS = {
    "ipv4/ip_forward": "0",
    "ipv4/conf/all/rp_filter": "1",
    "ipv4/conf/default/rp_filter": "1",
    "ipv4/conf/all/accept_redirects": "0",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/all/arp_ignore": "1",  # an interface answers only for its own address
    # Unlimited: with the kernel's default (six, then one a second) the seventh refused DNS query would time out.
    "ipv4/icmp_ratelimit": "0",
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
}

RULES = f"""
table inet space {{
  counter refused {{ }}
  counter control_dropped {{ }}
  chain refuse {{
    counter name refused
    limit rate 5/second burst 10 packets log prefix "space refused " group {LOG_GROUP} snaplen 128
    meta l4proto tcp reject with tcp reset
    reject with icmpx port-unreachable
  }}
  chain prerouting {{
    type filter hook prerouting priority raw; policy drop;
    iifname "lo" accept
    iifname "{EGRESS}" goto refuse
    iifname "{CONTROL}" ip saddr {AGENT_ADDRESS} ip daddr {CONTROL_ADDRESS} tcp sport {AGENT_PORT} accept
    counter name control_dropped
  }}
  chain input {{
    type filter hook input priority filter; policy drop;
    iifname "{CONTROL}" ct state established accept
    iifname "{CONTROL}" counter name control_dropped
    iifname "{EGRESS}" goto refuse
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
  }}
  chain output {{
    type filter hook output priority filter; policy drop;
    oifname "{CONTROL}" ip daddr {AGENT_ADDRESS} tcp dport {AGENT_PORT} accept
    # the refusals themselves leave by this hook
    oifname "{EGRESS}" tcp flags & rst == rst accept
    oifname "{EGRESS}" icmp type destination-unreachable accept
  }}
}}
"""
