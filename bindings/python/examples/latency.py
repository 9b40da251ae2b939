# %% [markdown]
# # Latency over size
#
# How long a round trip between two processes takes, by the size of what is sent: the other process
# copies it back. The cells run one after the other in Jupyter (this file opens as a notebook with
# jupytext, or in editors that know `# %%`), and all at once as a program: `python latency.py
# [FILE.svg]`.

# %%
import inspect
import statistics
import subprocess
import sys
import time

import vmmc

SIZES = [8, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576]
ROUNDS = 300
AREA_BYTES = SIZES[-1] + 8


# %%
def echo() -> None:
    """The other process: sends back what has come, then a word that says so."""
    session = vmmc.attach()
    mine = session.export(AREA_BYTES, name="latency-echo")
    back = session.import_("latency-here", wait=10)
    view = memoryview(mine)
    number = 0
    for size in SIZES:
        for _ in range(ROUNDS):
            number += 1
            mine.wait_word(0, at_least=number, timeout=10)
            back.send(8, view[8 : 8 + size])
            back.send(0, number.to_bytes(8, "little"))


def start_echo() -> subprocess.Popen[bytes]:
    """Starts it from its source: a function of a notebook is nowhere where another process could import it from."""
    constants = f"SIZES, ROUNDS, AREA_BYTES = {SIZES}, {ROUNDS}, {AREA_BYTES}\n"
    return subprocess.Popen([sys.executable, "-c", f"import vmmc\n{constants}{inspect.getsource(echo)}\necho()"])


def measure() -> list[tuple[int, float, float]]:
    """Size, median and 90th percentile of half a round trip, microseconds."""
    session = vmmc.attach()
    here = session.export(AREA_BYTES, name="latency-here")
    other = start_echo()
    there = session.import_("latency-echo", wait=10)
    results, number = [], 0
    for size in SIZES:
        data = b"x" * size
        times_us = []
        for _ in range(ROUNDS):
            number += 1
            start = time.perf_counter_ns()
            there.send(8, data)
            there.send(0, number.to_bytes(8, "little"))
            here.wait_word(0, at_least=number, timeout=10)
            times_us.append((time.perf_counter_ns() - start) / 2000)
        tenths = statistics.quantiles(times_us, n=10)
        results.append((size, statistics.median(times_us), tenths[8]))
    other.wait(10)
    return results


# %%
def show(results: list[tuple[int, float, float]], file: str | None = None) -> None:
    print(f"{'bytes':>9} {'median us':>10} {'90 % us':>9}")
    for size, median, late in results:
        print(f"{size:>9} {median:>10.2f} {late:>9.2f}")
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("(install matplotlib to see it as a plot)")
        return
    figure, axes = plt.subplots()
    sizes = [size for size, _, _ in results]
    axes.loglog(sizes, [median for _, median, _ in results], "o-", label="median")
    axes.loglog(sizes, [late for _, _, late in results], "--", label="90th percentile")
    axes.set(xlabel="bytes", ylabel="one way, µs", title="VMMC between two Python processes")
    axes.legend()
    axes.grid(True, which="both", alpha=0.3)
    if file:
        figure.savefig(file)
        print(f"plotted to {file}")
    else:
        plt.show()


# %%
if __name__ == "__main__":
    # A notebook is no file, and its arguments are Jupyter's.
    is_program = "__file__" in globals()
    show(measure(), sys.argv[1] if is_program and len(sys.argv) > 1 else None)
