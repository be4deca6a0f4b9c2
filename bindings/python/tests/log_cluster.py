"""A cluster for a log, on 127.0.0.1: three hosts that lead and accept, and configurations for two replicas."""

import pathlib
import subprocess

from ports import free_port

ROOT = pathlib.Path(__file__).parents[3]
HOSTS, REPLICAS = (1, 2, 3), (11, 12)


class LogCluster:
    def __init__(self, dir):
        self.dir, self.processes = dir, {}
        self.nodes = ""
        for node in HOSTS + REPLICAS:
            roles = '["leader", "acceptor"]' if node in HOSTS else '["replica"]'
            self.nodes += (
                f'[[node]]\nid = {node}\nname = "host-{node}"\naddress = "127.0.0.1:{free_port()}"\n'
                f"roles = {roles}\n"
            )
        for node in HOSTS:
            self.start(node)

    def config(self, node):
        path = self.dir / f"host-{node}.toml"
        state = self.dir / f"state-{node}"
        path.write_text(
            '[cluster]\nname = "log"\nepoch = 1\nfirst_instance = 1\ndurability = "memory"\nring_slots = 1024\n'
            f'[host]\nnode = {node}\nstate_dir = "{state}"\ndata_dir = "{state}/data"\ndataplane = "udp"\n'
            f"[host.timing]\nsubmit_deadline_ms = 30000\n{self.nodes}"
        )
        return path

    def start(self, node):
        with open(self.dir / f"host-{node}.log", "a") as log:
            command = [ROOT / "target/release/inband", "run", "--config", self.config(node)]
            self.processes[node] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, node):
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def end(self):
        for node in list(self.processes):
            self.kill(node)
