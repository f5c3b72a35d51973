"""How the GPUs of a host reach one another, from ``nvidia-smi topo -m`` and ``-p2p r``. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_ESCAPES = re.compile(r"\x1b?\[\d*m")
_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PCIe?", re.IGNORECASE)
_MEANING = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "a PCIe host bridge",
    "NODE": "host bridges of one socket",
    "SYS": "between sockets",
    "SOC": "between sockets",
}
#: From the closest to the farthest.
_ORDER = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC")


@dataclass(frozen=True)
class Topology:
    """Links between pairs of GPUs, as nvidia-smi names them; pairs are (lower, higher)."""

    gpus: tuple[str, ...]
    links: dict[tuple[int, int], str]
    numa: tuple[str, ...] = ()
    p2p: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def nvlink(self) -> bool:
        """Whether every pair of GPUs is joined by NVLink; False where there is one GPU."""
        return bool(self.links) and all(link.startswith("NV") for link in self.links.values())

    @property
    def kinds(self) -> dict[str, int]:
        """How many pairs there are of each kind of link, the closest first."""
        counted = Counter(self.links.values())
        return dict(sorted(counted.items(), key=lambda item: (_rank(item[0]), item[0])))

    def summary(self) -> str:
        """Return one line for a report."""
        if len(self.gpus) < 2:
            return f"{len(self.gpus)} GPU: nothing to link"
        parts = [f"{count} pairs {kind} ({_meaning(kind)})" for kind, count in self.kinds.items()]
        lead = "NVLink between all" if self.nvlink else ("NVLink between some" if self._some else "no NVLink")
        return f"{len(self.gpus)} GPUs, {lead}: {', '.join(parts)}"

    @property
    def _some(self) -> bool:
        return any(link.startswith("NV") for link in self.links.values())

    def findings(self) -> tuple[str, ...]:
        """Return what stands out: pairs that cannot reach each other directly, sockets in between."""
        found = []
        refused = sorted(pair for pair, status in self.p2p.items() if status != "OK")
        if refused:
            named = ", ".join(f"{self.gpus[a]}–{self.gpus[b]} ({self.p2p[a, b]})" for a, b in refused[:4])
            more = f" and {len(refused) - 4} more" if len(refused) > 4 else ""
            found.append(f"no P2P between {named}{more}: these pairs go through the host's memory")
        crossing = [pair for pair, link in self.links.items() if link in {"SYS", "SOC"}]
        if crossing and len(self.gpus) > 1:
            found.append(f"{len(crossing)} of {len(self.links)} pairs cross between sockets")
        return tuple(found)


def _rank(kind: str) -> int:
    return next((place for place, start in enumerate(_ORDER) if kind.startswith(start)), len(_ORDER))


def _meaning(kind: str) -> str:
    return f"{kind[2:]} NVLinks" if kind.startswith("NV") else _MEANING.get(kind, "unknown to this version of opsctl")


def _table(text: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of GPUs; nvidia-smi separates columns by tabs and underlines with escapes."""
    header: list[str] = []
    rows: list[list[str]] = []
    for raw in text.splitlines():
        line = _ESCAPES.sub("", raw)
        cells = [cell.strip() for cell in line.split("\t")]
        if not header and any(re.fullmatch(r"GPU\d+", cell) for cell in cells[1:]):
            header = cells
        elif header and re.fullmatch(r"GPU\d+", cells[0]):
            rows.append(cells)
    return header, rows


def _pairs(header: list[str], rows: list[list[str]]) -> dict[tuple[int, int], str]:
    names = [row[0] for row in rows]
    columns = {name: header.index(name) for name in names if name in header}
    pairs = {}
    for first, row in enumerate(rows):
        for second in range(first + 1, len(rows)):
            column = columns.get(names[second])
            if column is not None and column < len(row):
                pairs[first, second] = row[column]
    return pairs


def parse_topology(matrix: str, peers: str = "") -> Topology:
    """Return the topology from the two outputs. Raises ValueError when the first holds no matrix of GPUs."""
    header, rows = _table(matrix)
    if not rows:
        msg = f"no matrix of GPUs in {matrix[:80]!r}"
        raise ValueError(msg)
    links = _pairs(header, rows)
    odd = sorted({link for link in links.values() if not _LINK.fullmatch(link)})
    if odd:
        msg = f"links that nvidia-smi does not explain: {', '.join(odd)}"
        raise ValueError(msg)
    place = header.index("NUMA Affinity") if "NUMA Affinity" in header else None
    numa = tuple(row[place] if place is not None and place < len(row) else "" for row in rows)
    peer_header, peer_rows = _table(peers)
    return Topology(
        gpus=tuple(row[0] for row in rows),
        links=links,
        numa=numa if place is not None else (),
        p2p=_pairs(peer_header, peer_rows),
    )
