"""Makes a tiny model with random weights, and a tokenizer of 1,024 words: python make_model.py FOLDER."""

import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"t{at}" for at in range(4, 1024))]


def main(folder):
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, WORDS[3]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), WORDS, strict=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **named)
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
