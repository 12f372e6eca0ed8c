"""Measures the copy with checksum into a snapshot against the xxhash library in the same run.

    python -m tests.bench.checksum_speed [--mib 256] [--repeats 7]

Our kernel (`weights/verify/copy_with_checksum.py`) makes one pass. The library needs a second one: over the
whole tensor, from memory, or over chunks that the copy has left in the cache. The faster of the two counts.
Tensors of 1, 16 and 256 MiB, 256 MiB in all; on one thread, and on two that share the tensors in batches of
16 MiB, like those of the trainer. The library releases the interpreter's lock, like the kernel.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import xxhash

from kubealign_services.weights.send.piece_copy import BATCH_BYTES
from kubealign_services.weights.verify.copy_with_checksum import Bytes, copy_with_checksum

_PARTS = (256, 16, 1)
_THREADS = (1, 2)
# Half of a core's second-level cache.
_CHUNK_BYTES = 1 << 18
_SHARED_MEMORY = Path("/dev/shm")

#: A target and a source of equal length.
Piece = tuple[Bytes, Bytes]


def two_passes(target: Bytes, source: Bytes) -> str:
    """Copy everything, then compute the checksum."""
    np.copyto(target, source)
    return str(xxhash.xxh3_64_hexdigest(target.data))


def chunks(target: Bytes, source: Bytes) -> str:
    """Copy and checksum chunk by chunk, while each chunk is in the cache."""
    checksum = xxhash.xxh3_64()
    for start in range(0, len(source), _CHUNK_BYTES):
        chunk = target[start : start + _CHUNK_BYTES]
        np.copyto(chunk, source[start : start + _CHUNK_BYTES])
        checksum.update(chunk.data)
    return str(checksum.hexdigest())


COPIES: dict[str, Callable[[Bytes, Bytes], str]] = {
    "own": copy_with_checksum,
    "two passes": two_passes,
    "chunks": chunks,
}


def measure(largest: int = 256 << 20, repeats: int = 7) -> dict[str, dict[str, float]]:
    """Return case -> best seconds of each copy; `ratio`, the library's fastest time to the kernel's, and
    `cpu_ratio`, the same ratio of processor times.

    largest: bytes of the largest tensor.
    """
    results = {}
    total = largest * max(_THREADS)
    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as folder:
        target = np.asarray(np.memmap(Path(folder) / "snapshot", np.uint8, "w+", shape=(total,)))
        source = torch.randint(0, 256, (total,), dtype=torch.uint8).numpy()
        for parts in _PARTS:
            size = largest // parts
            for threads in _THREADS:
                ends = range(size, max(largest, threads * size) + 1, size)
                pieces = [(target[end - size : end], source[end - size : end]) for end in ends]
                case = f"{size / 2**20:g} MiB, {threads} thread{'s' * (threads > 1)}"
                results[case] = _compare(pieces, threads, repeats)
    return results


def _compare(pieces: Sequence[Piece], threads: int, repeats: int) -> dict[str, float]:
    wall = dict.fromkeys(COPIES, float("inf"))
    processor = dict(wall)
    with ThreadPoolExecutor(threads) as pool:
        # The first round only maps the pages and is not measured.
        for number in range(repeats + 1):
            checksums = []
            for name, copy in COPIES.items():
                begun, at_first = time.perf_counter(), time.process_time()
                checksums.append(_copy_all(copy, pieces, pool if threads > 1 else None))
                spent, seconds = time.process_time() - at_first, time.perf_counter() - begun
                if number:
                    wall[name] = min(wall[name], seconds)
                    processor[name] = min(processor[name], spent)
            if any(each != checksums[0] for each in checksums):
                raise AssertionError("the checksums differ")
    return {
        **wall,
        "ratio": min(wall["two passes"], wall["chunks"]) / wall["own"],
        "cpu_ratio": min(processor["two passes"], processor["chunks"]) / processor["own"],
    }


def _copy_all(
    copy: Callable[[Bytes, Bytes], str], pieces: Sequence[Piece], pool: ThreadPoolExecutor | None
) -> list[str]:
    """Copy all pieces and return their checksums. pool: None with one thread, like in the trainer."""
    if pool is None:
        return [copy(*piece) for piece in pieces]
    count = max(1, BATCH_BYTES // len(pieces[0][0]))
    batches = [pieces[start : start + count] for start in range(0, len(pieces), count)]
    done = pool.map(lambda batch: [copy(*piece) for piece in batch], batches)
    return [checksum for batch in done for checksum in batch]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args(argv)
    print("| tensors, threads | own ms | two passes | chunks | library / own | of processor time |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case, m in measure(arguments.mib << 20, arguments.repeats).items():
        times = " | ".join(f"{1e3 * m[name]:.1f}" for name in COPIES)
        print(f"| {case} | {times} | {m['ratio']:.2f} | {m['cpu_ratio']:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
