"""A client of a recorded server: agents that talk side by side, one that reads what all said, a chat, and what cannot be said.

python talk.py URL: prints a JSON object a request, with its id, its prompt's token ids and those of its output.
"""

import json
import random
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

IDS = 1024
TASK = {"semtrace_task": "a question"}


def main(url):
    rng = random.Random(1)

    def draw(count):
        return [rng.randrange(4, IDS) for _ in range(count)]

    def post(path, body, **headers):
        named = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        request = urllib.request.Request(url + path, json.dumps({"model": "tiny"} | body).encode(), named)  # noqa: S310  # our own server
        with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310  # the server of the test
            return json.load(answer)

    def complete(name, prompt, tokens, **more):
        headers = more.pop("headers", {})
        body = {"prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "return_token_ids": True} | more
        choice = post("/v1/completions", body, X_Request_Id=name, **headers)["choices"][0]
        sys.stdout.write(json.dumps({"name": name, "prompt": prompt, "output": choice["token_ids"]}) + "\n")
        return choice["token_ids"]

    instructions = draw(70)
    asked = [draw(12) for _ in range(3)]
    heard = [[draw(5) for _ in range(3)] for _ in range(3)]

    def agent(number):
        prompt, said = instructions + asked[number], []
        for turn in range(3):
            said = complete(
                f"a{number}-{turn}", prompt, 12, temperature=1.0, seed=9 * number + turn, vllm_xargs=TASK,
                headers={"X_Semtrace_Session": f"agent {number}"},
            )  # fmt: skip
            prompt = prompt + said + heard[number][turn]
        return said

    with ThreadPoolExecutor(3) as agents:
        said = list(agents.map(agent, range(3)))
    joined = instructions + [token for each in said for token in (7, *each)]
    complete("join", joined, 5, headers={"X_Semtrace_Task": "a question", "X_Semtrace_Stage": "answer"})
    post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "t5 t6 t7"}], "max_tokens": 4, "user": "anna"},
    )
    post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "n": 2})


if __name__ == "__main__":
    main(sys.argv[1])
