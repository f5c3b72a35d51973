from __future__ import annotations

from pathlib import Path

from opsctl.playbook.hashing import content_hash
from opsctl.playbook.loading import load_playbook
from opsctl.stages.gemm import Gemm
from opsctl.stages.profile import Profile
from tests.playbook.files import inventory_at, write

TEXT = "name: x\nhosts: kimi\nphases:\n  - name: a\n    serve: nothing\n    steps:\n      - gemm: {OPTIONS}\n"


def test_only_what_is_asked_for_counts(tmp_path: Path) -> None:
    inventory = inventory_at(tmp_path)

    def hashed(options: str) -> str:
        text = TEXT.replace("{OPTIONS}", options)
        return content_hash(load_playbook(write(tmp_path, "p.yml", text), inventory).phases[0].steps[0].options)

    same = {
        hashed(text)
        for text in (
            "{tokens: [1, 8], limit: 1h}   # a comment",
            "{limit: 60m, tokens: [1, 8]}",
            "{tokens: '{{ [1, 8] }}', limit: 3600s}",
            "{tokens: [1, 8], repetitions: 100}",
        )
    }
    assert len(same) == 1
    assert hashed("{tokens: [1, 9]}") not in same


def test_the_class_counts_and_the_value_is_pinned() -> None:
    # A resumed run compares with what an earlier version wrote: changing this on purpose makes it measure again.
    assert content_hash(Gemm(tokens=(1,))) == content_hash(Gemm(tokens=(1,)))
    assert content_hash(Gemm()) != content_hash(Profile())
    assert len(content_hash(Gemm())) == 32
