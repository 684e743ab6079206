"""Write a container image archive (docker-archive, as `ctr images import` reads it) of a folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path


def write_image(
    out: Path, name: str, root: Path, entrypoint: tuple[str, ...], env: tuple[str, ...] = ()
) -> None:
    """Pack the folder as an image of one layer."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as layer:
        layer.add(root, arcname=".", filter=_owned_by_root)
    blob = gzip.compress(raw.getvalue(), 1, mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(entrypoint),
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", *env],
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(raw.getvalue())}"]},
            "history": [{"created_by": "hami-node e2e"}],
        }
    ).encode()
    manifest = {
        "Config": f"{_digest(config)}.json",
        "RepoTags": [name],
        "Layers": [f"{_digest(blob)}.tar.gz"],
    }
    with tarfile.open(out, "w") as archive:
        _add(archive, f"{_digest(config)}.json", config)
        _add(archive, f"{_digest(blob)}.tar.gz", blob)
        _add(archive, "manifest.json", json.dumps([manifest]).encode())


def write_busybox(
    out: Path,
    name: str,
    scratch: Path,
    entrypoint: tuple[str, ...],
    env: tuple[str, ...] = (),
) -> None:
    """An image of the machine's static busybox with all its applets."""
    shutil.rmtree(scratch, ignore_errors=True)
    for sub in ("bin", "tmp", "etc", "proc", "sys", "dev", "root", "var"):
        (scratch / sub).mkdir(parents=True)
    (scratch / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    )
    shutil.copy("/bin/busybox", scratch / "bin/busybox")
    applets = subprocess.run(("busybox", "--list"), capture_output=True, text=True, check=True)
    for applet in applets.stdout.split():
        if applet != "busybox":
            (scratch / "bin" / applet).symlink_to("busybox")
    write_image(out, name, scratch, entrypoint, env)
    shutil.rmtree(scratch)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info
