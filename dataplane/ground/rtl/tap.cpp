// SPDX-License-Identifier: Apache-2.0
/*
 * A block, simulated by Verilator, in the place of a network card: between a wire (a packet socket on an interface) and a
 * tap interface, which is the host's. Frames of the host leave unchanged. Settings are arguments; the block's host port and its
 * counters are at a Unix socket, one command a line:
 *
 *     read SPACE INDEX WORD           the word, in decimal
 *     write SPACE INDEX WORD NUMBER   ok
 *     events                          NAME=COUNT ...
 *
 * A frame for the group leaves once for each member: what a switch does with a multicast address. It runs until it is told to
 * stop by SIGINT or SIGTERM.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "Vtop.h"
#include "reasons.h" /* REASONS: number to name; WORD_BYTES */

/* In Verilator's names of ports, ___05F stands for two underscores. */

namespace {

constexpr size_t READ_LEN_MAX_BYTES = 65536;
constexpr size_t FRAMES_WAITING_MAX = 64;
/* A block without a frame is simulated for so many cycles more: longer than any frame is under way in it. */
constexpr unsigned QUIET_CYCLES = 1000;
constexpr unsigned CYCLES_PER_TURN = 256;
constexpr unsigned RESET_CYCLES = 3;
constexpr unsigned HOST_CYCLES_MAX = 100000;
constexpr size_t COMMAND_LEN_MAX_BYTES = 256;
constexpr size_t MAC_BYTES = 6;
constexpr size_t IP_AT = 14, IP_LEN_BYTES = 20, IP_SUM_AT = 24, IP_TO_AT = 30, UDP_TO_AT = 36;
enum { TO_HOST, TO_SENDER, TO_GROUP };

struct Member {
    uint8_t mac[MAC_BYTES];
    uint32_t address;
    uint16_t port;
};

using Frame = std::vector<uint8_t>;

volatile sig_atomic_t stopped;

void stop(int) {
    stopped = 1;
}

[[noreturn]] void fail(const std::string &what) {
    fprintf(stderr, "tap: %s: %s\n", what.c_str(), strerror(errno));
    exit(1);
}

[[noreturn]] void mistake(const std::string &what) {
    fprintf(stderr, "tap: %s\n", what.c_str());
    exit(2);
}

/* Words of the streams have different C++ types by width. */
template <typename T> void put_word(T &to, const uint8_t *bytes) {
    memcpy(&to, bytes, WORD_BYTES);
}

template <typename T> void get_word(const T &from, uint8_t *bytes) {
    memcpy(bytes, &from, WORD_BYTES);
}

class Card {
  public:
    Vtop top;
    std::vector<Member> members;
    std::map<unsigned, uint64_t> events;
    int wire = -1, tap = -1;
    unsigned quiet_cycles = QUIET_CYCLES;

    bool has_room() const {
        return coming.size() < FRAMES_WAITING_MAX;
    }

    void feed(Frame frame) {
        coming.push_back(std::move(frame));
        quiet_cycles = 0;
    }

    bool is_quiet() const {
        return quiet_cycles >= QUIET_CYCLES;
    }

    void reset() {
        top.rst = 1;
        top.output___05Ftready = 1;
        for (unsigned i = 0; i < RESET_CYCLES; i++)
            cycle();
        top.rst = 0;
    }

    void cycle() {
        offer();
        top.clk = 0;
        top.eval();
        const bool accepted = top.input___05Ftvalid && top.input___05Ftready;
        quiet_cycles += !is_quiet();
        if (top.output___05Ftvalid)
            take();
        if (top.event___05Fvalid)
            events[top.event___05Freason]++;
        acknowledged = top.host___05Fack;
        if (acknowledged)
            read_data = top.host___05Fread_data;
        top.clk = 1;
        top.eval();
        if (accepted)
            at += WORD_BYTES;
        if (!coming.empty() && at >= coming.front().size()) {
            coming.pop_front();
            at = 0;
        }
    }

    /* An access of the host; `ok` is false if the block does not answer. */
    uint64_t host(uint64_t space, uint64_t index, uint64_t word, bool writes, uint64_t data,
                  bool &ok) {
        top.host___05Fspace = space;
        top.host___05Findex = index;
        top.host___05Fword = word;
        top.host___05Fwrite = writes;
        top.host___05Fwrite_data = data;
        top.host___05Fvalid = 1;
        ok = false;
        for (unsigned i = 0; i < HOST_CYCLES_MAX && !ok; i++) {
            cycle();
            ok = acknowledged;
        }
        top.host___05Fvalid = 0;
        return read_data;
    }

  private:
    std::deque<Frame> coming;
    size_t at = 0; /* of the word that is offered, in the first frame */
    Frame leaving;
    bool acknowledged = false;
    uint64_t read_data = 0;

    void offer() {
        top.input___05Ftvalid = !coming.empty();
        if (coming.empty())
            return;
        const Frame &frame = coming.front();
        const size_t left = frame.size() - at, kept = left < WORD_BYTES ? left : WORD_BYTES;
        uint8_t word[WORD_BYTES] = {};
        memcpy(word, frame.data() + at, kept);
        put_word(top.input___05Ftdata, word);
        top.input___05Ftkeep = kept == 64 ? ~0ull : (1ull << kept) - 1;
        top.input___05Ftlast = left <= WORD_BYTES;
    }

    void take() {
        uint8_t word[WORD_BYTES];
        get_word(top.output___05Ftdata, word);
        quiet_cycles = 0;
        leaving.insert(leaving.end(), word, word + __builtin_popcountll(top.output___05Ftkeep));
        if (!top.output___05Ftlast)
            return;
        send(top.output___05Ftdest);
        leaving.clear();
    }

    /* A frame that cannot be sent is lost, as on a wire. */
    void send(unsigned dest) {
        if (dest == TO_HOST)
            (void)!write(tap, leaving.data(), leaving.size());
        else if (dest == TO_SENDER)
            (void)!write(wire, leaving.data(), leaving.size());
        else
            for (const Member &member : members) {
                memcpy(leaving.data(), member.mac, MAC_BYTES);
                memcpy(leaving.data() + IP_TO_AT, &member.address, sizeof member.address);
                memcpy(leaving.data() + UDP_TO_AT, &member.port, sizeof member.port);
                sum_ip();
                (void)!write(wire, leaving.data(), leaving.size());
            }
    }

    void sum_ip() {
        uint8_t *sum = leaving.data() + IP_SUM_AT;
        sum[0] = sum[1] = 0;
        uint32_t total = 0;
        for (size_t i = 0; i < IP_LEN_BYTES; i += 2)
            total += leaving[IP_AT + i] << 8 | leaving[IP_AT + i + 1];
        total = (total & 0xFFFF) + (total >> 16);
        total = ~(total + (total >> 16));
        sum[0] = total >> 8;
        sum[1] = total;
    }
};

int open_tap(const char *name) {
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ifreq request = {};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0)
        fail(std::string("tap interface ") + name);
    return fd;
}

int open_wire(const char *name) {
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_ALL));
    sockaddr_ll address = {};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = if_nametoindex(name);
    packet_mreq all = {};
    all.mr_ifindex = address.sll_ifindex;
    all.mr_type = PACKET_MR_PROMISC;
    const int on = 1;
    if (fd < 0 || !address.sll_ifindex || bind(fd, (sockaddr *)&address, sizeof address) < 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) < 0)
        fail(std::string("wire ") + name);
    return fd;
}

int open_host(const char *path) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address.sun_path)
        mistake(std::string("the path of the host's socket is too long: ") + path);
    strcpy(address.sun_path, path);
    unlink(path);
    if (fd < 0 || bind(fd, (sockaddr *)&address, sizeof address) < 0 || listen(fd, 1) < 0)
        fail(std::string("socket ") + path);
    return fd;
}

bool mac_of(const char *text, uint8_t *mac) {
    return sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4,
                  mac + 5) == 6;
}

/* MAC,ADDRESS:PORT */
Member member_of(const std::string &text) {
    Member member = {};
    const size_t comma = text.find(','), colon = text.rfind(':');
    const bool has_all = comma != std::string::npos && colon != std::string::npos && colon > comma;
    const std::string address = has_all ? text.substr(comma + 1, colon - comma - 1) : "";
    if (!has_all || !mac_of(text.c_str(), member.mac) ||
        inet_pton(AF_INET, address.c_str(), &member.address) != 1)
        mistake("--member " + text + " is not MAC,ADDRESS:PORT");
    member.port = htons(atoi(text.c_str() + colon + 1));
    return member;
}

std::string answer(Card &card, const std::string &line) {
    uint64_t space, index, word, data = 0;
    const bool reads =
        sscanf(line.c_str(), "read %" SCNu64 " %" SCNu64 " %" SCNu64, &space, &index, &word) == 3;
    const bool writes = sscanf(line.c_str(), "write %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
                               &space, &index, &word, &data) == 4;
    if (reads || writes) {
        bool ok;
        const uint64_t found = card.host(space, index, word, writes, data, ok);
        return !ok ? "error: the block does not answer" : writes ? "ok" : std::to_string(found);
    }
    if (line != "events")
        return "error: not read SPACE INDEX WORD, write SPACE INDEX WORD NUMBER, or events";
    std::string said;
    for (const auto &[number, count] : card.events) {
        const auto known = REASONS.find(number);
        const std::string name = known == REASONS.end() ? std::to_string(number) : known->second;
        said += (said.empty() ? "" : " ") + name + "=" + std::to_string(count);
    }
    return said;
}

/* The process at the host's port. */
class Client {
  public:
    int fd = -1;

    void serve(Card &card) {
        char piece[COMMAND_LEN_MAX_BYTES];
        const ssize_t len = recv(fd, piece, sizeof piece, 0);
        if (len < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (len <= 0)
            return leave();
        text.append(piece, len);
        for (size_t end; fd >= 0 && (end = text.find('\n')) != std::string::npos;
             text.erase(0, end + 1)) {
            const std::string said = answer(card, text.substr(0, end)) + "\n";
            if (send(fd, said.data(), said.size(), MSG_NOSIGNAL) != (ssize_t)said.size())
                return leave();
        }
        if (text.size() > COMMAND_LEN_MAX_BYTES)
            leave();
    }

  private:
    std::string text;

    void leave() {
        close(fd);
        fd = -1;
        text.clear();
    }
};

bool is_for_us(const Frame &frame, const uint8_t *mac) {
    return frame.size() >= IP_AT && ((frame[0] & 1) || !memcmp(frame.data(), mac, MAC_BYTES));
}

uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

} // namespace

int main(int argc, char **argv) {
    Card card;
    uint8_t mac[MAC_BYTES] = {};
    const char *socket_path = nullptr;
    for (int i = 1; i < argc; i += 2) {
        const std::string option = argv[i];
        if (i + 1 == argc)
            mistake(option + " needs a value");
        const char *value = argv[i + 1];
        in_addr address = {};
        if (option == "--tap")
            card.tap = open_tap(value);
        else if (option == "--wire")
            card.wire = open_wire(value);
        else if (option == "--host")
            socket_path = value;
        else if (option == "--mac" && mac_of(value, mac))
            continue;
        else if (option == "--node")
            card.top.settings___05Fnode = atoi(value);
        else if (option == "--partitions")
            card.top.settings___05Fpartitions = atoi(value);
        else if (option == "--address" && inet_pton(AF_INET, value, &address) == 1)
            card.top.settings___05Faddress = ntohl(address.s_addr);
        else if (option == "--port")
            card.top.settings___05Fport = atoi(value);
        else if (option == "--member")
            card.members.push_back(member_of(value));
        else
            mistake("no such option, or not its value: " + option + " " + value);
    }
    if (card.tap < 0 || card.wire < 0 || !socket_path || card.members.empty())
        mistake("needs --tap NAME --wire INTERFACE --host SOCKET --mac MAC --node N --partitions N "
                "--address ADDRESS --port "
                "PORT --member MAC,ADDRESS:PORT ...");
    struct sigaction action = {};
    action.sa_handler = stop;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    Client client;
    const int host = open_host(socket_path);
    card.reset();
    printf("tap: ready\n");
    fflush(stdout);
    while (!stopped) {
        const short reads = card.has_room() ? POLLIN : 0;
        pollfd waits[] = {{card.wire, reads, 0},
                          {card.tap, POLLIN, 0},
                          {client.fd < 0 ? host : -1, POLLIN, 0},
                          {client.fd, POLLIN, 0}};
        if (poll(waits, 4, card.is_quiet() ? -1 : 0) < 0 && errno != EINTR)
            fail("poll");
        Frame frame(READ_LEN_MAX_BYTES);
        ssize_t len;
        while (card.has_room() &&
               (len = recv(card.wire, frame.data(), frame.size(), MSG_DONTWAIT)) > 0) {
            Frame got(frame.begin(), frame.begin() + len);
            if (is_for_us(got, mac))
                card.feed(std::move(got));
        }
        while ((len = read(card.tap, frame.data(), frame.size())) > 0)
            (void)!write(card.wire, frame.data(), len);
        if (client.fd < 0)
            client.fd = accept4(host, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        else
            client.serve(card);
        card.top.settings___05Fnow_ns = now_ns();
        for (unsigned i = 0; i < CYCLES_PER_TURN && !card.is_quiet(); i++)
            card.cycle();
    }
    unlink(socket_path);
    return 0;
}
