"""Sum a number over two processes, one device each: `python -m ...doctor.all_reduce PLATFORM`."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta

_TIMEOUT_S = 120.0


def main() -> int:
    """Start both ranks as processes and wait for them; with rank and port: be one."""
    if len(sys.argv) == 4:
        return _rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    from retool_trainer.launch.doctor._free_port import free_port

    command = [sys.executable, "-m", "retool_trainer.launch.doctor.all_reduce", sys.argv[1]]
    port = str(free_port())
    start_s = time.monotonic()
    ranks = [subprocess.Popen([*command, str(rank), port]) for rank in range(2)]
    try:
        deadline_s = start_s + _TIMEOUT_S
        codes = [rank.wait(timeout=max(0.1, deadline_s - time.monotonic())) for rank in ranks]
    except subprocess.TimeoutExpired:
        sys.stdout.write(f"no result within {_TIMEOUT_S:g} s\n")
        return 1
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
    if any(codes):
        sys.stdout.write(f"the ranks ended with {codes}\n")
        return 1
    sys.stdout.write(f"all-reduce ok, 2 ranks in {time.monotonic() - start_s:.1f} s\n")
    return 0


def _rank(name: str, rank: int, port: int) -> int:
    from retool_trainer.platform import get_platform

    platform = get_platform(name)
    platform.import_vendor()
    platform.use_device(rank)
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        platform.collective_backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=_TIMEOUT_S / 2),
    )
    value = torch.full((4,), float(rank + 1), device=platform.device(rank))
    dist.all_reduce(value)
    right = value.tolist() == [3.0] * 4
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
