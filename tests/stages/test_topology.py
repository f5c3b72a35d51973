from pathlib import Path

import pytest

from opsctl.stages.topology import parse_topology

DATA = Path(__file__).parent / "data"
# As nvidia-smi writes them (tabs, the header underlined by escapes). Two sockets of four GPUs behind PCIe switches:
PCIE = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tPIX\tSYS\tSYS\tPXB\t0-31\t0\t\tN/A\n"
    "GPU1\tPIX\t X \tSYS\tSYS\tPXB\t0-31\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tPHB\tSYS\t32-63\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tPHB\t X \tSYS\t32-63\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n"
)
NVLINK = (
    "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV18\tNV18\t0-47\t0\nGPU1\tNV18\t X \tNV18\t0-47\t0\nGPU2\tNV18\tNV18\t X \t48-95\t1\n"
)
PEERS = (
    " \tGPU0\tGPU1\tGPU2\tGPU3\t\n GPU0\tX\tOK\tNS\tNS\t\n GPU1\tOK\tX\tNS\tNS\t\n GPU2\tNS\tNS\tX\tOK\t\n"
    " GPU3\tNS\tNS\tOK\tX\t\n"
)


def test_pcie_and_two_sockets() -> None:
    topology = parse_topology(PCIE, PEERS)
    assert topology.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert topology.kinds == {"PIX": 1, "PHB": 1, "SYS": 4}
    assert topology.numa == ("0", "0", "1", "1")
    assert not topology.nvlink
    assert topology.summary() == (
        "4 GPUs, no NVLink: 1 pairs PIX (one PCIe switch), 1 pairs PHB (a PCIe host bridge), "
        "4 pairs SYS (between sockets)"
    )
    assert topology.p2p[0, 1] == "OK"
    assert topology.findings() == (
        "no P2P between GPU0–GPU2 (NS), GPU0–GPU3 (NS), GPU1–GPU2 (NS), GPU1–GPU3 (NS): "  # noqa: ISC004
        "these pairs go through the host's memory",
        "4 of 6 pairs cross between sockets",
    )


def test_nvlink_everywhere() -> None:
    topology = parse_topology(NVLINK)
    assert topology.nvlink
    assert topology.summary() == "3 GPUs, NVLink between all: 3 pairs NV18 (18 NVLinks)"
    assert topology.findings() == ()


def test_nvlink_between_some() -> None:
    assert "NVLink between some" in parse_topology(NVLINK.replace("NV18", "SYS", 2)).summary()


def test_the_real_output_of_one_gpu() -> None:
    matrix, peers = (DATA / "h200-topo-m.txt").read_text(), (DATA / "h200-topo-p2p-r.txt").read_text()
    topology = parse_topology(matrix, peers)
    assert topology.gpus == ("GPU0",)
    assert topology.links == {}
    assert topology.summary() == "1 GPU: nothing to link"
    assert not topology.nvlink


@pytest.mark.parametrize(
    "text", ["", "unknown: nvidia-smi is not on the PATH", "Legend:\n", PCIE.replace("PIX", "ZZZ")]
)
def test_what_is_no_matrix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no matrix|does not explain"):
        parse_topology(text)
