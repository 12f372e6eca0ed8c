"""Measures deltas against the dense weights: size, and processor time against one memcpy in the same run, on
one thread; and the cost of eight receivers for a streaming sender, against one.

    PYTHONPATH=tests python -m tests.bench.refit_delta [MILLIONS OF WEIGHTS]

The weights are bf16 with fp32 masters, updated by AdamW (betas 0.9 and 0.95). Normally distributed weights
(standard deviation 0.02) get random gradients; a small Llama gets the gradients of its loss on ascending
token sequences, with learning rate 1e-6. The eleventh step is measured, best of several.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from kubealign_services.weights.transfer.delta.codec import apply_delta, encode_delta

_STEPS = 10
_RATES = (1e-6, 1e-5, 1e-4)
_REPEATS = 5
_SENT_BYTES = 256 << 20
_RECEIVERS = 8


def versions(count: int, rate: float) -> tuple[bytes, bytes]:
    """Return the bytes of two versions, one optimiser step apart."""
    generator = torch.Generator().manual_seed(1)
    master = torch.nn.Parameter(0.02 * torch.randn(count, generator=generator))
    optimizer = torch.optim.AdamW([master], lr=rate, betas=(0.9, 0.95))
    states = []
    for step in range(_STEPS + 1):
        master.grad = torch.randn(count, generator=generator)
        optimizer.step()
        if step >= _STEPS - 1:
            states.append(master.detach().bfloat16().view(torch.uint8).numpy().tobytes())
    return states[0], states[1]


def model_versions(rate: float) -> tuple[bytes, bytes]:
    """Return two versions like `versions`, of a Llama of 10 million weights with the gradients of its
    loss."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=384, intermediate_size=1024, num_hidden_layers=5,
        num_attention_heads=6, num_key_value_heads=6, max_position_embeddings=64,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(2)
    states = []
    for step in range(_STEPS + 1):
        first = torch.randint(2048, (4, 1), generator=generator)
        tokens = (first + torch.arange(64)) % 2048
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= _STEPS - 1:
            flat = torch.cat([parameter.detach().bfloat16().reshape(-1) for parameter in model.parameters()])
            states.append(flat.view(torch.uint8).numpy().tobytes())
    return states[0], states[1]


def measure(count: int, rate: float) -> dict[str, float]:
    """Compare two versions of `count` weights."""
    return compare(*versions(count, rate))


def compare(old: bytes, new: bytes) -> dict[str, float]:
    """Measure the delta between two states in bf16.

    Returns changed, the share of changed elements; size, the delta's bytes relative to the dense bytes;
    encode and apply, in memcpys of the dense bytes; encode_gib and apply_gib, in dense GiB per second of one
    core."""
    changed = float((np.frombuffer(old, np.uint16) != np.frombuffer(new, np.uint16)).mean())
    source, target = np.frombuffer(new, np.uint8), np.empty(len(new), np.uint8)
    target[:] = source
    delta = memoryview(encode_delta(old, new, 2))
    state = bytearray(old)
    copying, encoding, applying = [], [], []
    for _ in range(_REPEATS):
        copying.append(_spent(lambda: np.copyto(target, source)))
        encoding.append(_spent(lambda: encode_delta(old, new, 2)))
        state[:] = old
        applying.append(_spent(lambda: apply_delta(memoryview(state), delta, 2)))
    if state != new:
        raise AssertionError("the delta did not give the bits back")
    gib = len(old) / 2**30
    return {
        "changed": changed,
        "size": len(delta) / len(old),
        "encode": min(encoding) / min(copying),
        "apply": min(applying) / min(copying),
        "encode_gib": gib / min(encoding),
        "apply_gib": gib / min(applying),
    }


def sender_cost(fan_out: int | None, size_bytes: int = _SENT_BYTES) -> dict[str, float]:
    """Stream a version on one machine. Return the sender's processor seconds for one receiver and for eight,
    and the bytes sent to the eight, in multiples of the version's size."""
    from support.weights_line import weights_line

    seconds: dict[int, float] = {}
    sent = 0
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        weights_line(Path(folder), size_bytes, fan_out=fan_out, timeout=120.0) as line,
    ):
        receivers = line.receivers(_RECEIVERS)
        for version, count in enumerate((1, 1, _RECEIVERS, 1, _RECEIVERS)):
            announcement, digest = line.publish(version)
            _, before = line.spent()
            for receiver in receivers[:count]:
                receiver.take(announcement)
            if any(receiver.taken()[0] != digest for receiver in receivers[:count]):
                raise AssertionError("a receiver has other weights")
            sent, after = line.spent()
            seconds[count] = min(seconds.get(count, float("inf")), after - before)
    return {
        "one": seconds[1],
        "eight": seconds[_RECEIVERS],
        "ratio": seconds[_RECEIVERS] / seconds[1],
        "sent": sent / size_bytes,
    }


def _spent(action: Callable[[], object]) -> float:
    begun = time.process_time()
    action()
    return time.process_time() - begun


def main(argv: list[str]) -> int:
    torch.set_num_threads(1)
    count = int(float(argv[1]) * 1e6) if len(argv) > 1 else 32_000_000
    print(
        "| bf16 weights, learning rate | changed | delta / dense | encode / memcpy | apply / memcpy "
        "| encode, apply GiB/s |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    cases = [(f"{count / 1e6:g} million, {rate:g}", versions(count, rate)) for rate in _RATES]
    cases.append(("a Llama of 10 million, 1e-06", model_versions(1e-6)))
    for name, (old, new) in cases:
        m = compare(old, new)
        print(
            f"| {name} | {m['changed']:.1%} | {m['size']:.1%} | {m['encode']:.1f} | {m['apply']:.1f} "
            f"| {m['encode_gib']:.2f}, {m['apply_gib']:.2f} |"
        )
    print(
        f"\n| fanOut | sender's processor seconds, {_SENT_BYTES >> 20} MiB to one, to eight | ratio | sent |"
    )
    print("| --- | --- | --- | --- |")
    for fan_out in (None, 2, 1):
        c = sender_cost(fan_out)
        print(f"| {fan_out} | {c['one']:.2f}, {c['eight']:.2f} | {c['ratio']:.2f} | {c['sent']:.1f} sizes |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
