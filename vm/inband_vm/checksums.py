"""What tcpdump, an independent reader, says of the frames that left the guests' interfaces."""

from .cluster import Failed

# tcpdump's own words.
BAD = ["bad udp cksum", "bad cksum", "[bad", "truncated", "length mismatch", "[|"]
PACKETS_MIN = 1000
TTL = "ttl 64,"


def check(capture, expression="udp port 7400", packets_min=PACKETS_MIN):
    """Every UDP packet of the cluster has right lengths and checksums, and its first time to live: nobody routes it."""
    lines = capture.lines(expression)
    if len(lines) < packets_min:
        raise Failed(f"only {len(lines)} packets of the cluster were captured, at least {packets_min} are expected")
    bad = [line for line in lines if any(mark in line for mark in BAD) or TTL not in line]
    if bad:
        raise Failed(f"{len(bad)} of {len(lines)} packets are wrong, the first: {bad[0]}")
    unchecked = sum("[no cksum]" in line for line in lines)
    checked = sum("[udp sum ok]" in line for line in lines)
    if checked + unchecked != len(lines):
        odd = next(line for line in lines if "[udp sum ok]" not in line and "[no cksum]" not in line)
        raise Failed(f"tcpdump does not say whether the checksum of a packet is right: {odd}")
    print(f"      {checked} packets with a right UDP checksum, {unchecked} without one, of {len(lines)}")
    return f"tcpdump found {len(lines)} packets right" + (f", {unchecked} of them without a UDP checksum" if unchecked else "")
