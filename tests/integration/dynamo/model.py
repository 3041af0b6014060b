"""Write the folder of a model that Dynamo's mocker serves: a tokenizer of a thousand words, and no weights. Run by its Python."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

folder = Path(sys.argv[1])
words = {"<unk>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, 1024)}
special = {"unk_token": "<unk>", "eos_token": "<eos>"}
tokenizer = Tokenizer(models.WordLevel(words, special["unk_token"]))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
made.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
made.save_pretrained(folder)
shape = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": len(words), "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
    "intermediate_size": 128, "max_position_embeddings": 4096, "eos_token_id": 1, "bos_token_id": 1,
}  # fmt: skip
(folder / "config.json").write_text(json.dumps(shape))
(folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
