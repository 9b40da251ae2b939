"""`python -m vmmc node run OPTIONS`: a node, for machines where the program `vmmc` is not
installed.
"""

import sys

from ._vmmc import run_node


def main() -> int:
    if sys.argv[1:3] != ["node", "run"]:
        print("usage: python -m vmmc node run [--name N] [--listen ADDRESS] [--peer ADDRESS] [--plain] …", file=sys.stderr)
        return 2
    try:
        run_node(sys.argv[3:])
    except Exception as error:  # noqa: BLE001 — the last words of a program
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
