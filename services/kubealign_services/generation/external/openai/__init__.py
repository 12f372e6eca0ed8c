"""An inference server with an OpenAI-compatible API behind the engine contract: vLLM or SGLang, started by
the user.
"""
