"""A server of chat messages alone, which makes its outputs longer, or leaves counts out, if a test says so."""

from support.raw_server import DONE, STREAM, as_json, event, plain, raw_server


def chat_server(*, model="fake", more=0, usage=True, port=0):
    """Serve chat messages; each answer has so many tokens more than were asked for."""

    def answer(asked):
        if asked.head.startswith("GET /v1/models "):
            return [as_json({"data": [{"id": model}]})]
        if not asked.head.startswith("POST /v1/chat/completions "):
            return [as_json({"error": {"message": "no such path"}}, "404 Not Found")]
        body = asked.json
        if body["model"] != model:
            return [as_json({"error": {"message": f"there is no {body['model']}"}}, "404 Not Found")]
        if type(body.get("min_tokens", 0)) is not int or type(body.get("ignore_eos", True)) is not bool:
            return [plain("400 Bad Request", b"")]
        count = body["max_tokens"] + more
        prompt = sum(len(str(each["content"]).split()) for each in body["messages"])
        told = {"usage": {"prompt_tokens": prompt, "completion_tokens": count}} if usage else {}
        text = {"role": "assistant", "content": "w " * count}
        if not body.get("stream"):
            return [as_json({"choices": [{"message": text, "finish_reason": "length"}], **told})]
        whole = event({"choices": [{"index": 0, "delta": text, "finish_reason": "length"}]})
        return [STREAM + whole + (event({"choices": [], **told}) if told else b"") + DONE]

    return raw_server(answer, port=port)
