"""An agent that guesses a number from 0 to 9, and asks the policy by the client library of the OpenAI API."""

from openai import AsyncOpenAI

from kubealign.agents import AgentClient, AgentRow

HIGHEST = 9
MAX_GUESSES = 4


async def solve(client: AgentClient, row: AgentRow) -> dict[str, object]:
    """Play one game and return its reward. Each answer of the game is appended to the text so far."""
    secret = row.columns["seed"] % (HIGHEST + 1)
    text, reward, is_won = row.prompt, 0.0, False
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        for _ in range(MAX_GUESSES):
            reply = await policy.completions.create(model=client.model, prompt=text, max_tokens=1)
            guess = reply.choices[0].text
            if not guess.isdecimal():
                # Anything but a number ends the game.
                reward -= 1.0
                break
            is_won = int(guess) == secret
            # Each guess costs a little, so that few are better.
            reward += 1.0 if is_won else -0.1
            if is_won:
                break
            text += guess + ("<" if int(guess) > secret else ">")
    return {"reward": reward, "metrics": {"won": float(is_won)}}
