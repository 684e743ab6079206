"""`python -m hami_node` is the command `hami-node`."""

from __future__ import annotations

from hami_node.cli.main import main

if __name__ == "__main__":
    main(prog_name="hami-node")
