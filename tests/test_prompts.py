"""Parts, tokens and spans of prompts."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvdiag.errors import DataError, UsageError
from kvdiag.prompts import PromptBuilder
from kvdiag.workloads.base import Source
from tests.folder import CHAT, CHAT_WITH_BOS, tiny_tokenizer

BOS = 1
NEEDLE = "The special number is: 7654321."
CONTEXT = f"Notes of the day.\n{NEEDLE}\nThe sky is blue."


def source(context=CONTEXT, question="\nWhat is the number?", prefix=" The number is", gold="7654321", **known):
    if "evidence" not in known and NEEDLE in context:
        start = context.index(NEEDLE)
        known["evidence"] = ((start, start + len(NEEDLE)),)
    return Source(
        source_id="made/up/1",
        workload="ruler_1k",
        task="vt",
        index=0,
        seed=None,
        context=context,
        question=question,
        answer_prefix=prefix,
        gold=gold,
        references=(gold,),
        max_new_tokens=8,
        **known,
    )


@pytest.fixture(scope="module")
def chat():
    return PromptBuilder.create(tiny_tokenizer(), "chat")


@pytest.fixture(scope="module")
def plain():
    return PromptBuilder.create(tiny_tokenizer(), "plain")


def text(builder, ids):
    return builder.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def parts(builder, prompt):
    cuts = (0, prompt.n_context, prompt.n_prefix, len(prompt.ids))
    return [text(builder, prompt.ids[a:b]) for a, b in pairwise(cuts)]


def test_parts_of_a_chat_prompt(chat):
    prompt = chat.build(source())
    assert parts(chat, prompt) == [
        "<|user|>\n" + CONTEXT,
        "\nWhat is the number?",
        "\n<|assistant|>\nThe number is",
    ]
    assert prompt.text == "".join(parts(chat, prompt))
    assert chat.count(source()) == len(prompt.ids) == prompt.n_context + prompt.n_question + prompt.n_cue


def test_parts_of_a_plain_prompt(plain):
    assert parts(plain, plain.build(source())) == [CONTEXT, "\nWhat is the number?", " The number is"]


def test_the_whole_prompt_is_what_the_template_makes(chat):
    prompt = chat.build(source(prefix=""))
    user = CONTEXT + "\nWhat is the number?"
    expected = chat.tokenizer.apply_chat_template(
        [{"role": "user", "content": user}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(prompt.ids) == expected


@pytest.mark.parametrize("writes_bos", [True, False])
@pytest.mark.parametrize(("template", "chat_template"), [("plain", None), ("chat", CHAT), ("chat", CHAT_WITH_BOS)])
def test_one_start_token_where_there_is_one(template, chat_template, writes_bos):
    builder = PromptBuilder.create(tiny_tokenizer(chat_template, writes_bos), template)
    prompt = builder.build(source())
    wanted = writes_bos or chat_template == CHAT_WITH_BOS
    assert prompt.ids.count(BOS) == wanted
    assert (prompt.ids[0] == BOS) == wanted
    assert BOS not in prompt.gold_ids
    assert text(builder, prompt.gold_ids) == " 7654321"
    (span,) = prompt.evidence
    assert NEEDLE in text(builder, prompt.ids[slice(*span)])


def test_a_template_with_two_start_tokens_is_refused():
    builder = PromptBuilder.create(tiny_tokenizer("{{ bos_token }}" + CHAT_WITH_BOS), "chat")
    with pytest.raises(DataError, match="two start tokens"):
        builder.build(source())


@pytest.mark.parametrize(
    ("tokenizer", "template", "message"),
    [
        (tiny_tokenizer(None), "chat", "no chat template; use --prompt plain"),
        (tiny_tokenizer(), "Chat", "--prompt Chat: must be one of chat, plain"),
        (object(), "plain", "no character offsets"),
    ],
)
def test_what_cannot_make_prompts_is_refused(tokenizer, template, message):
    with pytest.raises(UsageError, match=message):
        PromptBuilder.create(tokenizer, template)


def test_a_template_that_drops_the_text_is_refused():
    with pytest.raises(DataError, match="does not repeat the user's text"):
        PromptBuilder.create(tiny_tokenizer("<|user|>\nHello\n"), "chat")


def test_a_token_across_a_border_goes_to_the_later_part(plain):
    joint = plain.tokenizer(" number", add_special_tokens=False)["input_ids"]
    assert len(joint) == 1, "the test needs a word of one token"
    prompt = plain.build(source(context="The num", question="ber?", prefix=" It is", evidence=()))
    assert parts(plain, prompt) == ["The", " number?", " It is"]
    prompt = plain.build(source(context="The sky.", question=" Which num", prefix="ber", evidence=()))
    assert parts(plain, prompt) == ["The sky.", " Which", " number"]


@pytest.mark.parametrize(
    ("template", "prefix", "prompt_end", "gold"),
    [
        ("chat", "", "<|assistant|>\n", "7654321"),  # after a newline an answer starts bare
        ("chat", " The number is", "\nThe number is", " 7654321"),
        ("chat", " The number is ", "\nThe number is", " 7654321"),  # the space is the gold's, never both's
        ("plain", " It is", "? It is", " 7654321"),
        ("plain", "\nAnswer:\n", "\nAnswer:\n", "7654321"),
        ("plain", "", "number?", " 7654321"),
    ],
)
def test_the_golds_leading_space(template, prefix, prompt_end, gold):
    builder = PromptBuilder.create(tiny_tokenizer(), template)
    prompt = builder.build(source(prefix=prefix))
    assert prompt.text.endswith(prompt_end)
    assert text(builder, prompt.gold_ids) == gold
    joint = builder.tokenizer(prompt.text + gold, add_special_tokens=False)["input_ids"]
    assert tuple(joint) == prompt.ids + prompt.gold_ids


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_spans_cover_the_evidence_and_no_other_line(template):
    builder = PromptBuilder.create(tiny_tokenizer(), template)
    prompt = builder.build(source())
    assert (prompt.evidence_status, prompt.evidence_reason) == ("available", None)
    ((start, end),) = prompt.evidence
    assert text(builder, prompt.ids[start:end]).strip() == NEEDLE
    assert 0 < start < end < prompt.n_context


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        # The last letters of the span are in a token that the question has.
        ({"context": "It is in the num", "question": "ber?", "evidence": ((9, 16),)}, "token_border"),
        ({"context": "The sky.", "evidence": ((4, 90),)}, "token_border"),
        ({"context": "The sky.", "evidence": ((3, 3),)}, "token_border"),
    ],
)
def test_a_span_that_cannot_be_mapped_is_not_measured(plain, known, expected):
    prompt = plain.build(source(**known))
    assert prompt.evidence == ()
    assert (prompt.evidence_status, prompt.evidence_reason) == ("unmapped", expected)


def test_evidence_that_is_missing_says_why(plain):
    prompt = plain.build(source(evidence=()))
    assert (prompt.evidence_status, prompt.evidence_reason) == ("not_applicable", "no_evidence")
    prompt = plain.build(source(evidence_status="not_measured", evidence_reason="ambiguous"))
    assert (prompt.evidence, prompt.evidence_status, prompt.evidence_reason) == ((), "not_measured", "ambiguous")


@pytest.mark.parametrize("question", ["\nWhat is the number?", ""])
def test_the_cue_is_never_empty(plain, question):
    prompt = plain.build(source(question=question, prefix=""))
    assert prompt.n_cue == 1
    assert prompt.n_question == max(0, len(plain.tokenizer(question)["input_ids"]) - 1)
    assert "".join(parts(plain, prompt)) == CONTEXT + question


def test_a_context_without_a_token_is_refused(plain):
    with pytest.raises(DataError, match="made/up/1: the context has no token"):
        plain.build(source(context=""))


# Any text but the special tokens' own, which a tokenizer cannot tell from the template's.
texts = st.text(max_size=30).filter(lambda t: "<" not in t)
quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(context=texts, question=texts, prefix=texts, gold=texts)
def test_parts_are_a_cut_of_the_whole(chat, plain, context, question, prefix, gold):
    for builder in (chat, plain):
        made = source(context="Notes: " + context, question=question, prefix=prefix + ":", gold=gold)
        prompt = builder.build(made)
        assert prompt.n_context >= 1
        assert prompt.n_question >= 0
        assert prompt.n_cue >= 1
        assert len(prompt.ids) == prompt.n_context + prompt.n_question + prompt.n_cue
        before, asked, after = parts(builder, prompt)
        assert before + asked + after == prompt.text
        # Nothing of the question is left of its border, nothing of the cue left of that.
        whole = builder.head + made.context
        assert whole.startswith(before)
        assert (whole + question).startswith(before + asked)
        assert len(prompt.gold_ids) >= 1


@quick
@given(before=texts, needle=texts.filter(bool), after=texts)
def test_a_mapped_span_holds_its_text(chat, before, needle, after):
    context = f"Notes:{before}{needle}{after}"
    start = len("Notes:" + before)
    prompt = chat.build(source(context=context, evidence=((start, start + len(needle)),)))
    if prompt.evidence_status == "not_measured":
        assume(False)
    ((a, b),) = prompt.evidence
    assert needle in text(chat, prompt.ids[a:b])
    assert 0 <= a < b <= prompt.n_context


def test_a_length_counts_a_gold_answer_that_is_longer_than_the_new_tokens(plain):
    long = source(gold="7654321 and 1234567 and 7654321 and 1234567")
    for limit in (1, 4, 60):
        one = replace(long, max_new_tokens=limit)
        prompt = plain.build(one)
        assert plain.count(one) + limit == prompt.positions_needed(limit)
