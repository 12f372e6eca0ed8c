"""Judge prompts."""

from kubealign.spec.sections.data import PromptMessages
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.tokenization.chat_template import ensure_chat_template
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.roles.driver.data_generation.requests import PromptRenderer
from kubealign_services.roles.driver.sources.iterative.judge_prompts import JudgePrompts, format_conversation
from support.chat_templates import FAMILIES

TEMPLATE = "Is {response} an answer to {prompt}? {{1-5}}"


def test_a_text_prompt_gives_a_text_question() -> None:
    tokenizer = train_character_tokenizer(["Is an answer to? {1-5}bc"])
    row = PreparedRow(row=4, prompt_tokens=[1], prompt_text="abc")
    (question,) = JudgePrompts(TEMPLATE, tokenizer, None).render([(row, "{x}")])
    assert question.prompt_text == "Is {x} an answer to abc? {1-5}"
    assert question.row == 4
    ids = tokenizer(question.prompt_text, add_special_tokens=False)["input_ids"]
    assert question.prompt_tokens == ids


def test_messages_give_a_user_message() -> None:
    tokenizer = train_character_tokenizer(["Is an answer to? {1-5}bc User:\n Assistant"])
    ensure_chat_template(tokenizer)
    message = [{"role": "user", "content": "abc"}]
    row = PreparedRow(row=0, prompt_tokens=[1], prompt_text="User:\nabc\n\n", columns={"talk": message})
    (question,) = JudgePrompts(TEMPLATE, tokenizer, PromptMessages(messages="talk")).render([(row, "b")])
    assert question.prompt_text == "User:\nIs b an answer to abc? {1-5}\n\nAssistant:\n"


def test_a_longer_conversation_is_shown_with_roles() -> None:
    assert format_conversation([{"role": "user", "content": "abc"}]) == "abc"
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c?"},
    ]
    assert format_conversation(talk) == "System: Be brief.\n\nUser: a?\n\nAssistant: b\n\nUser: c?"


def test_parts_and_tool_calls_are_shown_as_text() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_calls": None},
    ]
    shown = '{"function": {"name": "add", "arguments": {"a": 1}}}'
    assert format_conversation(talk) == f"User: a?\n\nAssistant: {shown}\n\nTool: 1"
    assert format_conversation(talk[:1]) == "a?"


def test_a_question_is_rendered_with_the_variables_of_the_template() -> None:
    """A judge that need not think answers a prompt whose reasoning is closed."""
    tokenizer = FAMILIES["qwen3"].tokenizer()
    row = PreparedRow(
        row=0, prompt_tokens=[1], prompt_text="", columns={"messages": [{"role": "user", "content": "a"}]}
    )
    chat = PromptMessages(chat_template_kwargs={"enable_thinking": False})
    (question,) = JudgePrompts(TEMPLATE, tokenizer, chat).render([(row, "b")])
    assert question.prompt_text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_critique_is_rendered_with_the_variables_of_the_template() -> None:
    tokenizer = FAMILIES["qwen3"].tokenizer()
    chat = PromptMessages(chat_template_kwargs={"enable_thinking": False})
    (tokens,) = PromptRenderer(tokenizer, chat, None).render("Judge {response}", [{"response": "b"}], 8)
    assert tokens is not None and tokenizer.decode(tokens).endswith("<think>\n\n</think>\n\n")
