"""Generate hami_node/kubelet_api from protos/: `python -m tests.protos [OUT_ROOT]`."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
PACKAGE = "hami_node/kubelet_api"


def generate(out_root: Path) -> None:
    """Write the generated modules below `out_root`."""
    out_root.joinpath(PACKAGE).mkdir(parents=True, exist_ok=True)
    for proto in sorted(ROOT.joinpath("protos").glob("*.proto")):
        arguments = [
            "protoc",
            f"-I{PACKAGE}={ROOT / 'protos'}",
            f"--python_out={out_root}",
            f"--pyi_out={out_root}",
            f"--grpc_python_out={out_root}",
            f"{PACKAGE}/{proto.name}",
        ]
        if protoc.main(arguments):
            raise SystemExit(f"protoc failed on {proto}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
