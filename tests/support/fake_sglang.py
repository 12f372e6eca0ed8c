"""A stand-in for SGLang's server: the part of its documented HTTP interface that kubealign uses, over a model
of transformers in float64.

Tokens are drawn from the full softmax at the request's temperature. Log-probabilities are those of the same
distribution.
"""

import asyncio
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from safetensors.torch import load_file
from tokenizers import decoders, pre_tokenizers

from support.engine_contract.tiny_model import CONTEXT, END_TOKEN, model

MODEL_NAME = "policy"
#: The pieces of the tiny model's tokenizer, by token.
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_BUSY = "there are running requests"


class FakeSglang:
    """The server's state. `application` serves it."""

    def __init__(self, key: str | None = None) -> None:
        """Serve random weights.

        Args:
            key: Needed by all requests but those for the health; None: none.
        """
        self.model = model(99).double()
        self._key = key
        self.version = "default"
        self.running = 0
        #: Prompts whose keys and values are cached, with the logits of their last token.
        self.cached: dict[tuple[int, ...], torch.Tensor] = {}
        self.loads: list[str] = []
        #: Answers of /flush_cache that are refused, as by a request that is still running.
        self.refused_flushes = 0

    def restart(self) -> None:
        """Lose the weights and their version, as a new process would."""
        self.model = model(99).double()
        self.version = "default"
        self.cached.clear()

    @property
    def application(self) -> web.Application:
        """A new application over this state."""
        app = web.Application(middlewares=[self._authenticate])
        app.router.add_get("/health", _ok)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/update_weights_from_disk", self._load)
        app.router.add_post("/update_weight_version", self._set_version)
        app.router.add_post("/flush_cache", self._flush)
        return app

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        if self._key is not None and request.path != "/health" and given != f"Bearer {self._key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": MODEL_NAME, "object": "model", "owned_by": "sglang", "max_model_len": CONTEXT}
        return web.json_response({"object": "list", "data": [entry]})

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "weight_version": self.version})

    async def _set_version(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["abort_all_requests"] is False
        self.version = body["new_version"]
        return web.json_response({"success": True, "new_version": self.version})

    async def _load(self, request: web.Request) -> web.Response:
        folder = Path((await request.json())["model_path"])
        self.loads.append(str(folder))
        try:
            await asyncio.to_thread(self._load_folder, folder)
        except (OSError, RuntimeError) as error:
            return web.json_response({"success": False, "message": str(error)}, status=400)
        return web.json_response({"success": True, "message": "Succeeded to update model weights."})

    def _load_folder(self, folder: Path) -> None:
        for file in sorted(folder.glob("*.safetensors")):
            self.model.load_state_dict(load_file(file), strict=False)

    async def _flush(self, request: web.Request) -> web.Response:
        if self.running or self.refused_flushes:
            self.refused_flushes = max(0, self.refused_flushes - 1)
            return web.Response(text=_BUSY, status=400)
        self.cached.clear()
        return web.Response(text="Cache flushed.\n")

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        tokens = body["input_ids"]
        if max(tokens) >= self.model.config.vocab_size:
            text = "The input_ids contain values greater than the vocab size"
            return web.json_response({"error": {"message": text}}, status=400)
        self.running += 1
        try:
            meta: dict[str, Any] = {"weight_version": self.version}
            if body.get("logprob_start_len") == 0:
                meta["input_token_logprobs"] = self._score(tokens)
            if body["sampling_params"]["max_new_tokens"]:
                meta |= await self._draw(tokens, body["sampling_params"])
        finally:
            self.running -= 1
        return web.json_response({"text": "", "output_ids": [], "meta_info": meta})

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.model(torch.tensor([tokens])).logits[0]
        return logits

    def _score(self, tokens: list[int]) -> list[list[Any]]:
        logprobs = self._logits(tokens).log_softmax(1)
        entries: list[list[Any]] = [[None, tokens[0], None]]
        return entries + [[float(logprobs[i, token]), token, None] for i, token in enumerate(tokens[1:])]

    async def _draw(self, prompt: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        random = torch.Generator().manual_seed(sampling["sampling_seed"])
        ends = set(sampling["stop_token_ids"]) | {END_TOKEN}
        entries: list[list[Any]] = []
        reason: dict[str, Any] = {"type": "length", "length": sampling["max_new_tokens"]}
        text = ""
        while len(entries) < sampling["max_new_tokens"] and reason["type"] == "length":
            await asyncio.sleep(0)
            drawn = [token for _, token, _ in entries]
            logits = self.cached.get(tuple(prompt)) if not drawn else None
            if logits is None:
                logits = self._logits(prompt + drawn)[-1]
            if not drawn:
                self.cached[tuple(prompt)] = logits
            temperature = sampling["temperature"]
            logprobs = (logits / (temperature or 1)).log_softmax(0)
            likeliest = int(logprobs.argmax())
            token = int(torch.multinomial(logprobs.exp(), 1, generator=random)) if temperature else likeliest
            entries.append([float(logprobs[token]), token, None])
            text = decoders.ByteLevel().decode(
                [_ALPHABET[each] for _, each, _ in entries if each < len(_ALPHABET)]
            )
            if token in ends or any(stop in text for stop in sampling["stop"]):
                reason = {"type": "stop", "matched": token}
        return {"output_token_logprobs": entries, "finish_reason": reason}


async def _ok(request: web.Request) -> web.Response:
    return web.Response()
