#!/usr/bin/env python3
"""One LRU problem through libCacheSim and through crate vmmc-utlb, on the same file, in turns: equal misses, and how fast either is.

    pip install numpy libcachesim
    cargo build --release -p vmmc-utlb --example lru_of_trace
    python crates/utlb/examples/against_libcachesim.py target/release/examples/lru_of_trace [MILLIONS [PAGES]]

Both read an uncompressed oracleGeneral file by themselves; the times are those on the processor and include reading. libCacheSim's loop is its own native one.
"""

import subprocess
import sys
import tempfile
import time

import libcachesim as lcs
import numpy as np

RUNS = 5


def write(path: str, requests: int) -> None:
    """Skewed requests for 64 Ki pages: seven of eight go to the first 1024, the others to all."""
    rng = np.random.default_rng(1)
    pages = np.where(rng.integers(0, 8, requests) == 0, rng.integers(0, 1 << 16, requests), rng.integers(0, 1 << 10, requests))
    record = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    out = np.zeros(requests, dtype=record)
    out["time"], out["object"], out["size"], out["next"] = np.arange(requests) >> 10, pages + 1, 1, -2
    out.tofile(path)


def theirs(path: str, pages: int, requests: int) -> tuple[int, float]:
    """Misses and seconds of libCacheSim."""
    choices = lcs.ReaderInitParam(ignore_obj_size=True)
    reader = lcs.TraceReader(path, lcs.TraceType.ORACLE_GENERAL_TRACE, choices)
    cache = lcs.LRU(cache_size=pages, hashpower=18)
    start = time.process_time()
    miss_ratio, _ = cache.process_trace(reader)
    return round(miss_ratio * requests), time.process_time() - start


def ours(program: str, path: str, pages: int) -> tuple[int, float]:
    """Misses and seconds of this crate."""
    words = subprocess.run([program, path, str(pages)], check=True, capture_output=True, text=True).stdout.split()
    return int(words[1]), float(words[2])


def main() -> None:
    program = sys.argv[1]
    requests = int(float(sys.argv[2] if len(sys.argv) > 2 else 20) * 1_000_000)
    pages = int(sys.argv[3]) if len(sys.argv) > 3 else 4096
    with tempfile.NamedTemporaryFile(suffix=".oracleGeneral") as file:
        write(file.name, requests)
        results = [(theirs(file.name, pages, requests), ours(program, file.name, pages)) for _ in range(RUNS)]
    (their_misses, _), (our_misses, _) = results[0]
    their_time, our_time = (sorted(r[side][1] for r in results)[RUNS // 2] for side in (0, 1))
    print(f"{requests / 1e6:.0f} M requests, LRU of {pages} pages; medians of {RUNS} runs in turns")
    print(f"libCacheSim  {their_misses} misses  {requests / their_time / 1e6:6.1f} M requests/s")
    print(f"vmmc-utlb    {our_misses} misses  {requests / our_time / 1e6:6.1f} M requests/s, {their_time / our_time:.1f} times as fast")
    if their_misses != our_misses:
        sys.exit("the misses differ")


main()
