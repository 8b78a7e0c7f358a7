"""GPU slots: every job takes devices of its own, whichever workflow of this user started it.

A slot is an exclusive lock (flock) on a file named after a device's UUID, so that workflows with other orders of
CUDA_VISIBLE_DEVICES agree on it. The lock is held for the life of the process; the kernel releases it however the
process dies. Devices come from ``nvidia-smi -L``: nothing here imports torch or makes a CUDA context.

A scheduler that gives a job one device is no exception: that lock is free unless two jobs were given the same device,
which happens where CUDA_VISIBLE_DEVICES was set by hand. With HWH_JOBS_PER_GPU above 1 a device has as many slots, for
jobs that are too small to keep it busy.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .locks import lock
from .scripting import UserError, start_time

FIRST_NOTICE_SECONDS, NOTICE_SECONDS, POLL_SECONDS = 5.0, 600.0, 0.5


@dataclass(frozen=True)
class Device:
    """A device that a process can use alone: a GPU, or one MIG instance of it. ``gpu``: UUID of the whole GPU.

    ``slot``: which of its slots is meant, where several jobs may share it.
    """

    uuid: str
    gpu: str
    number: int
    slot: int = 0

    def __str__(self) -> str:
        return f"GPU {self.number} ({self.uuid})" + (f", slot {self.slot}" if self.slot else "")


def parse_listing(text: str) -> tuple[Device, ...]:
    """Devices in the output of ``nvidia-smi -L``; a GPU that is split stands there by its MIG instances."""
    gpus: list[tuple[Device, list[Device]]] = []
    for line in text.splitlines():
        if match := re.match(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)", line):
            gpus.append((Device(match[2], match[2], int(match[1])), []))
        elif gpus and (match := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line)):
            gpu, instances = gpus[-1]
            instances.append(Device(match[1], gpu.uuid, gpu.number))
    return tuple(device for gpu, instances in gpus for device in instances or [gpu])


def select(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """The devices that CUDA_VISIBLE_DEVICES = ``visible`` names, in its order (None: all).

    As in CUDA, what follows an unknown entry is hidden, an abbreviated UUID must be unique, and an entry given twice
    hides everything. Numbers are those of nvidia-smi; the number or UUID of a split GPU stands for all its instances.
    """
    if visible is None:
        return tuple(devices)
    chosen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        of_gpu = entry if entry.startswith("GPU-") else "no GPU"
        found = [d for d in devices if entry in (str(d.number), d.uuid) or d.gpu.startswith(of_gpu)]
        if len({device.gpu for device in found}) != 1:
            break
        if any(device in chosen for device in found):
            return ()
        chosen += found
    return tuple(chosen)


def torch_is_for_cuda() -> bool:
    """Whether the torch installed here was built for CUDA, without importing it; True where none is installed."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return True
    version = Path(found.origin).with_name("version.py")
    return not version.is_file() or re.search(r"^cuda\b.*= None", version.read_text(encoding="utf-8"), re.M) is None


def visible_devices() -> tuple[Device, ...]:
    """Devices that a job of this process would see; none without a driver, or with a torch that cannot use them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not torch_is_for_cuda():
        return ()
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return select(parse_listing(done.stdout), os.environ.get("CUDA_VISIBLE_DEVICES"))


def jobs_per_gpu() -> int:
    """Jobs that may use one device at a time: HWH_JOBS_PER_GPU, by default 1. Raises :class:`UserError` for others."""
    text = os.environ.get("HWH_JOBS_PER_GPU", "1")
    if not re.fullmatch(r"[1-9]\d?", text):
        raise UserError(f"HWH_JOBS_PER_GPU is {text!r}, expected a number from 1 to 99; correct or unset it")
    return int(text)


def slots(devices: Sequence[Device], jobs: int) -> tuple[Device, ...]:
    """``jobs`` slots of each device; all first slots come first, so that jobs spread over the devices."""
    return tuple(replace(device, slot=slot) for slot in range(jobs) for device in devices)


def lock_folder() -> Path:
    """Where locks of this user lie. Fixed rather than from the environment, which differs between two logins."""
    base = Path("/tmp") if os.access("/tmp", os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return base / f"hwh-gpu-{os.getuid()}"


def _open_folder(folder: Path) -> Path:
    """Make ``folder`` and hold it shared for the life of this process: cleaners of /tmp leave locked folders alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise UserError(f"GPU locks: {folder} is not a folder of this user; remove it")
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)
    return folder


def _file(folder: Path, device: Device, suffix: str = "lock") -> Path:
    slot = f".{device.slot}" if device.slot else ""
    return folder / f"{device.uuid.replace('/', '_')}{slot}.{suffix}"


def _owner(folder: Path, device: Device) -> dict[str, str]:
    """What the last owner of a device wrote about itself; empty where nothing complete is there."""
    try:
        return json.loads(_file(folder, device).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _describe(owner: dict[str, str]) -> str:
    return f"is held by process {owner['pid']}" if "pid" in owner else "is free"


def _take(devices: Sequence[Device], count: int, folder: Path, owner: dict[str, str]) -> list[Device]:
    """The first ``count`` devices with a free slot, locked until this process ends; none of them if there are fewer."""
    # One at a time: two jobs that each need several would take some from each other, and both give up.
    gate = lock(folder / "gate", fcntl.LOCK_EX)
    taken: dict[Device, int] = {}
    for device in devices:
        if len(taken) == count or device.uuid in {other.uuid for other in taken}:
            continue
        if (descriptor := lock(_file(folder, device))) is not None:
            # Processes of a launcher that outlive its first one are still on its devices.
            if (users := lock(_file(folder, device, "users"))) is not None:
                taken[device] = descriptor
            os.close(descriptor if users is None else users)
    complete = len(taken) == count
    for descriptor in taken.values():
        os.truncate(descriptor, 0)
        if complete:
            os.write(descriptor, json.dumps(owner).encode())
        else:
            os.close(descriptor)
    os.close(gate)
    return list(taken) if complete else []


def take_devices(folder: Path | None = None) -> tuple[Device, ...]:
    """Take one device, or as many as torchrun started processes here, and show CUDA these alone; waits until free.

    Call it before torch initialises CUDA. Returns the devices, the same for all processes of a torchrun: the first one
    locks them. Without enough visible devices nothing is taken and nothing changed. A job that needs several takes all
    or none; who asks first is not served first.
    """
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    devices = visible_devices()
    if not devices or len(devices) < count:
        return ()
    offered = slots(devices, jobs_per_gpu())
    folder = _open_folder(lock_folder() if folder is None else folder)
    parent = os.getppid()
    job = f"{parent}-{start_time(parent)}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    notice = time.monotonic() + FIRST_NOTICE_SECONDS
    while True:
        if first:
            taken = _take(offered, count, folder, {"pid": str(os.getpid()), "job": job})
        else:
            taken = [device for device in offered if _owner(folder, device).get("job") == job]
        if len(taken) == count:
            break
        if first and time.monotonic() >= notice:
            notice += NOTICE_SECONDS
            held = (f"{device} {_describe(_owner(folder, device))}" for device in offered)
            print(f"waiting until {count} of these are free: {', '.join(held)}", file=sys.stderr, flush=True)
        time.sleep(POLL_SECONDS)
    for device in () if first else taken:
        lock(_file(folder, device, "users"), fcntl.LOCK_SH)
    # By UUID also where numbers named the same: CUDA counts from the fastest card, nvidia-smi by place.
    if [device.uuid for device in taken] != [device.uuid for device in devices] or "CUDA_VISIBLE_DEVICES" in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in taken)
    return tuple(taken)
