import pytest

from opsctl.payload.prompts import WORDS, PromptSource


def words_are_tokens(text: str) -> int:
    return 1 + len(text.split())


def bytes_are_tokens(text: str) -> int:
    return len(text.encode())


@pytest.mark.parametrize("tokens", [1, 2, 17, 1024])
def test_length_is_exact_where_words_are_tokens(tokens: int) -> None:
    source = PromptSource(tokens, count=words_are_tokens)
    for _ in range(12):
        assert words_are_tokens(source.next_exact()) == max(tokens, 2)


@pytest.mark.parametrize("tokens", [64, 500])
def test_length_is_close_where_bytes_are_tokens(tokens: int) -> None:
    source = PromptSource(tokens, count=bytes_are_tokens)
    for _ in range(12):
        assert abs(bytes_are_tokens(source.next_exact()) - tokens) <= 5


def test_a_trusted_tokenizer_is_not_asked_for_each_of_thousands() -> None:
    asked = 0

    def count(text: str) -> int:
        nonlocal asked
        asked += 1
        return words_are_tokens(text)

    source = PromptSource(100, count=count)
    for _ in range(500):
        source.next_exact()
    assert asked < 40


def test_prompts_are_unique_in_a_run_and_between_runs() -> None:
    made = []
    for _ in range(4):
        source = PromptSource(64, count=words_are_tokens)
        made += [source.next_exact() for _ in range(100)]
    assert len(set(made)) == 400
    # A prefix cache works in blocks of 16 tokens: the first block alone must differ already.
    assert len({tuple(prompt.split()[:15]) for prompt in made}) == 400


def test_without_a_tokenizer_the_report_says_so() -> None:
    source = PromptSource(130, count=lambda _text: None)
    text = source.next_exact()
    assert len(text.split()) in {100, 101}
    assert "approximation" in source.method


def test_words_are_words() -> None:
    assert len(WORDS) == len(set(WORDS)) > 100
    assert all(word.isalpha() for word in WORDS)
