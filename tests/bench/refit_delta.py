"""What a delta is, against the dense weights: bytes, and time against one memcpy in the same run.

    python -m tests.bench.refit_delta [MILLIONS OF WEIGHTS]

bf16 weights (normal, standard deviation 0.02) over fp32 masters that AdamW (betas 0.9 and 0.95) moves by
random gradients; the eleventh step is measured.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from kubealign_services.refit.delta import apply, encode

_STEPS = 10
_RATES = (1e-6, 1e-5, 1e-4)


def versions(count: int, rate: float) -> tuple[bytes, bytes]:
    """The bits of two versions, one optimiser step apart."""
    generator = torch.Generator().manual_seed(1)
    master = torch.nn.Parameter(0.02 * torch.randn(count, generator=generator))
    optimizer = torch.optim.AdamW([master], lr=rate, betas=(0.9, 0.95))
    found = []
    for step in range(_STEPS + 1):
        master.grad = torch.randn(count, generator=generator)
        optimizer.step()
        if step >= _STEPS - 1:
            found.append(master.detach().bfloat16().view(torch.uint8).numpy().tobytes())
    return found[0], found[1]


def measure(count: int, rate: float) -> dict[str, float]:
    """changed: share of the elements. size: of the delta, of the dense bytes. encode, apply: best of three,
    in memcpys of the dense bytes; encode_gib, apply_gib: dense GiB a second."""
    old, new = versions(count, rate)
    changed = float((np.frombuffer(old, np.uint16) != np.frombuffer(new, np.uint16)).mean())
    source, target = np.frombuffer(new, np.uint8), np.empty(len(new), np.uint8)
    target[:] = source
    state = bytearray(old)
    delta = encode(old, new, 2)

    def restored() -> None:
        state[:] = old
        begun = time.perf_counter()
        apply(memoryview(state), memoryview(delta), 2)
        spent.append(time.perf_counter() - begun)

    spent: list[float] = []
    copying = _best(lambda: np.copyto(target, source))
    encoding = _best(lambda: encode(old, new, 2))
    for _ in range(3):
        restored()
    if state != new:
        raise AssertionError("the delta did not give the bits back")
    gib = len(old) / 2**30
    return {
        "changed": changed,
        "size": len(delta) / len(old),
        "encode": encoding / copying,
        "apply": min(spent) / copying,
        "encode_gib": gib / encoding,
        "apply_gib": gib / min(spent),
    }


def _best(action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def main(argv: list[str]) -> int:
    torch.set_num_threads(1)
    count = int(float(argv[1]) * 1e6) if len(argv) > 1 else 32_000_000
    print(f"{count / 1e6:g} million bf16 weights\n")
    print(
        "| learning rate | changed | delta / dense | encode / memcpy | apply / memcpy | encode, apply GiB/s |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for rate in _RATES:
        m = measure(count, rate)
        print(
            f"| {rate:g} | {m['changed']:.1%} | {m['size']:.1%} | {m['encode']:.0f} | {m['apply']:.0f} "
            f"| {m['encode_gib']:.2f}, {m['apply_gib']:.2f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
