"""Chat templates after the published formats of seven model families, each with a small tokenizer.

The templates are written for the tests: they follow the models' documented prompt formats, and leave out
what no test reads (built-in tools, dates, images).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_TEXTS = [
    "the user asks what is one and one, and the assistant answers two, of course.",
    'system\nuser\nassistant\nmodel\n\nYou are a helpful assistant. Tools: {"name": "add"}',
]

# Tools are the first lines of the first user message.
_LLAMA3 = """\
{{- bos_token }}
{%- set ns = namespace(tools=tools) %}
{%- for message in messages %}
    {%- set header = '<|start_header_id|>' + ('ipython' if message.role == 'tool' else message.role) %}
    {{- header + '<|end_header_id|>\n\n' }}
    {%- if message.role == 'user' and ns.tools %}
        {{- 'Given the following functions, respond with JSON.\n\n' + ns.tools | tojson + '\n\n' }}
        {%- set ns.tools = none %}
    {%- endif %}
    {%- if message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
    {%- elif message.role == 'tool' %}
        {{- message.content | tojson }}
    {%- else %}
        {{- message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""

_TOOL_INTRODUCTION = (
    "'\\n\\n# Tools\\n\\n<tools>' }}{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}"
    "{{- '\\n</tools>'"
)
_CHATML_SYSTEM = """\
{%- set ns = namespace(first=0, system=DEFAULT) %}
{%- if messages[0].role == 'system' %}
    {%- set ns.system = messages[0].content %}
    {%- set ns.first = 1 %}
{%- endif %}
{%- if ns.system or tools %}
    {{- '<|im_start|>system\n' + ns.system }}
    {%- if tools %}{{- TOOLS }}{%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
""".replace("TOOLS", _TOOL_INTRODUCTION)
_CHATML_TOOL_CALLS = """\
        {%- for call in message.tool_calls %}
            {%- if not loop.first or content %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\n</tool_call>' }}
        {%- endfor %}
"""
_CHATML_TOOL_RESULTS = """\
        {%- if loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
"""

_QWEN25 = (
    _CHATML_SYSTEM.replace("DEFAULT", "'You are Qwen. You are a helpful assistant.'")
    + """\
{%- for message in messages[ns.first:] %}
    {%- if message.role == 'tool' %}
"""
    + _CHATML_TOOL_RESULTS
    + """\
    {%- else %}
        {%- set content = message.content or '' %}
        {{- '<|im_start|>' + message.role + '\n' + content }}
"""
    + _CHATML_TOOL_CALLS
    + """\
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
)

# Reasoning is rendered in the turns after the last question alone.
_QWEN3 = (
    _CHATML_SYSTEM.replace("DEFAULT", "''")
    + """\
{%- set state = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set state.question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages[ns.first:] %}
    {%- set index = loop.index0 + ns.first %}
    {%- if message.role == 'tool' %}
"""
    + _CHATML_TOOL_RESULTS
    + """\
    {%- else %}
        {%- set content = message.content if message.content is string else '' %}
        {%- set reasoning = message.reasoning_content or '' %}
        {%- if not reasoning and '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1] %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if message.role == 'assistant' and index > state.question and (loop.last or reasoning) %}
            {{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- content.lstrip('\n') if message.role == 'assistant' else content }}
        {%- endif %}
"""
    + _CHATML_TOOL_CALLS
    + """\
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
"""
)

# The system message is the first lines of the first user message; parts of text are accepted.
_GEMMA3 = """\
{{- bos_token }}
{%- set ns = namespace(first=0, system='') %}
{%- if messages[0].role == 'system' %}
    {%- set ns.system = messages[0].content + '\n\n' %}
    {%- set ns.first = 1 %}
{%- endif %}
{%- for message in messages[ns.first:] %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
    {%- if loop.first %}{{- ns.system }}{%- endif %}
    {%- if message.content is string %}
        {{- message.content | trim }}
    {%- elif message.content is iterable %}
        {%- for part in message.content %}{{- part.text | trim }}{%- endfor %}
    {%- else %}
        {{- raise_exception('Invalid content type') }}
    {%- endif %}
    {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}
"""

_PHI4 = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '<|im_sep|>' + message['content'] + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_sep|>' }}{%- endif %}
"""

# No opening of the assistant's turn; tools are written before the last question.
_MISTRAL = """\
{{- bos_token }}
{%- set ns = namespace(first=0, system='', question=-1) %}
{%- if messages[0].role == 'system' %}
    {%- set ns.system = messages[0].content + '\n\n' %}
    {%- set ns.first = 1 %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages[ns.first:] %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.index0 + ns.first == ns.question %}
            {{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + (ns.system if loop.last else '') + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}{{- call.function | tojson }}{%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + '}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

_SMOLLM2 = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""


@dataclass(frozen=True)
class ChatFamily:
    """A template with the special tokens of its models.

    end: the token that ends a turn. eos: that of the tokenizer, which need not be the same. rewrites: the
    template renders earlier messages differently once others follow. has_metaspace: a SentencePiece
    tokenizer, which begins a text with a space of its own.
    """

    name: str
    template: str
    end: str
    eos: str
    bos: str | None = None
    special: Sequence[str] = ()
    plain: Sequence[str] = ()
    takes_tools: bool = False
    rewrites: bool = False
    has_metaspace: bool = False

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return a small tokenizer with the template and the special tokens."""
        core = _metaspace_bpe() if self.has_metaspace else _byte_level_bpe()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)  # type: ignore[no-untyped-call]
        more = [token for token in (*self.special, self.end) if token not in (self.eos, self.bos)]
        tokenizer.add_special_tokens({"eos_token": self.eos, "additional_special_tokens": more})
        if self.bos is not None:
            tokenizer.add_special_tokens({"bos_token": self.bos})
        tokenizer.add_tokens(list(self.plain))
        tokenizer.chat_template = self.template
        return tokenizer


_CHATML = ("<|im_start|>", "<|im_end|>")
_TOOL_TOKENS = ("<tool_call>", "</tool_call>")
FAMILIES = {
    family.name: family
    for family in (
        ChatFamily(
            "llama3",
            _LLAMA3,
            "<|eot_id|>",
            "<|eot_id|>",
            "<|begin_of_text|>",
            ("<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>"),
            takes_tools=True,
        ),
        ChatFamily(
            "qwen25", _QWEN25, "<|im_end|>", "<|im_end|>", None, _CHATML, _TOOL_TOKENS, takes_tools=True
        ),
        # The base models have the template of the instruction models and another end.
        ChatFamily(
            "qwen25-base",
            _QWEN25,
            "<|im_end|>",
            "<|endoftext|>",
            None,
            _CHATML,
            _TOOL_TOKENS,
            takes_tools=True,
        ),
        ChatFamily(
            "qwen3",
            _QWEN3,
            "<|im_end|>",
            "<|im_end|>",
            None,
            _CHATML,
            (*_TOOL_TOKENS, "<think>", "</think>"),
            takes_tools=True,
            rewrites=True,
        ),
        ChatFamily("gemma3", _GEMMA3, "<end_of_turn>", "<eos>", "<bos>", ("<start_of_turn>",)),
        ChatFamily("phi4", _PHI4, "<|im_end|>", "<|endoftext|>", None, (*_CHATML, "<|im_sep|>")),
        ChatFamily(
            "mistral",
            _MISTRAL,
            "</s>",
            "</s>",
            "<s>",
            ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            takes_tools=True,
            has_metaspace=True,
        ),
        ChatFamily("smollm2", _SMOLLM2, "<|im_end|>", "<|im_end|>", None, _CHATML),
    )
}


def _byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def _metaspace_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    alphabet = [chr(code) for code in range(32, 127)] + ["\n"]
    tokenizer.train_from_iterator(
        _TEXTS,
        trainers.BpeTrainer(
            vocab_size=200, special_tokens=["<unk>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer
